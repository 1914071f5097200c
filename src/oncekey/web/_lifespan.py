"""An application that is started without a server, so that what it left unfinished can be run.

As a server would: an ASGI application's lifespan runs around it. And the middleware of Starlette's
and FastAPI's applications, which is made on the first request, is made now: it registers itself
when it is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

from oncekey.errors import Misuse
from oncekey.web._asgi_messages import Message, Scope
from oncekey.web._edge import log
from oncekey.web.asgi import IdempotencyMiddleware

SHUTDOWN_S_MAX = 60.0
_NESTED_MAX = 10
_LAYERS_MAX = 50


@contextlib.asynccontextmanager
async def start_application(app: Any) -> AsyncIterator[None]:
    """While this lasts, the application is started. WSGI applications are already."""
    if not is_asgi(app):
        yield
        return
    lifespan = _Lifespan(app)
    await lifespan.start()
    try:
        build(app)
        yield
    finally:
        await lifespan.stop()


def is_asgi(app: Any) -> bool:
    return inspect.iscoroutinefunction(app) or inspect.iscoroutinefunction(
        getattr(app, "__call__", None)  # noqa: B004  (which of the two kinds of callable it is)
    )


def build(app: Any, depth: int = 0) -> None:
    """Make the middleware of an application and of those that are mounted in it."""
    if hasattr(app, "build_middleware_stack") and depth < _NESTED_MAX:
        if app.middleware_stack is None:
            app.middleware_stack = app.build_middleware_stack()
        for layer in _layers(app.middleware_stack):
            if isinstance(layer, IdempotencyMiddleware):
                layer.lifespan.setdefault("app", app)
        for route in app.routes:
            build(getattr(route, "app", None), depth + 1)


def _layers(stack: Any) -> Iterator[Any]:
    for _ in range(_LAYERS_MAX):
        if stack is None:
            return
        yield stack
        stack = getattr(stack, "app", None)


def _consume_error(task: asyncio.Task[None]) -> None:
    """It has said by messages that it failed; or it knows no lifespan, which is no failure."""
    if not task.cancelled():
        task.exception()


class _Lifespan:
    """The server's side of an ASGI application's lifespan."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._to_app: asyncio.Queue[Message] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        self._up: asyncio.Future[None] = loop.create_future()
        self._down: asyncio.Future[None] = loop.create_future()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises `Misuse` if the application says that it cannot start."""
        scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self._to_app.put_nowait({"type": "lifespan.startup"})
        self._task = asyncio.create_task(self._app(scope, self._to_app.get, self._hear))
        self._task.add_done_callback(_consume_error)
        await asyncio.wait({self._task, self._up}, return_when=asyncio.FIRST_COMPLETED)
        if self._up.done():
            self._up.result()

    async def stop(self) -> None:
        if self._task is None or self._task.done():
            return
        self._to_app.put_nowait({"type": "lifespan.shutdown"})
        both = {self._task, self._down}
        await asyncio.wait(both, timeout=SHUTDOWN_S_MAX, return_when=asyncio.FIRST_COMPLETED)

    async def _hear(self, message: Message) -> None:
        match message["type"]:
            case "lifespan.startup.complete":
                self._up.set_result(None)
            case "lifespan.startup.failed":
                said = str(message.get("message", "")).strip()
                *before, reason = said.splitlines() or [""]
                if before:  # a traceback, as Starlette sends it
                    log.error("the application did not start: %s", said)
                self._up.set_exception(Misuse(f"the application did not start: {reason}"))
            case _:
                self._down.set_result(None)
