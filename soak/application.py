"""The application under test: orders come in through one edge of oncekey, with a route for each way
to be safe.

python -m soak.application SETTINGS STORE_URL LEDGER MARK LISTENING_FD
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
import werkzeug
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from werkzeug.serving import make_server

from oncekey import Policy, Runtime
from oncekey._core.op import arun, run
from oncekey._engine.recovery import Recoverer
from oncekey.messaging import Limits, Message, Outbox, Publisher
from oncekey.web import asgi, wsgi
from soak import calls, drivers, engines, handler
from soak.calls import FunctionCalls, InboxCalls, Reply
from soak.clock import SkewedClock
from soak.executor import Executor
from soak.ledger import Id, Ledger
from soak.settings import BLOCKING, Settings


class Application:
    """One worker's store, driver and ledger, served by ASGI or WSGI."""

    def __init__(self, settings: Settings, url: str, ledger: Ledger, mark: Path) -> None:
        self.settings = settings
        self.store = engines.open_store(url, sealed=settings.sealed)
        self.ledger = ledger
        self._mark = mark
        self.driver = None
        self.outbox = None
        if settings.driver:
            self.driver = drivers.open_driver(settings.driver, settings.engine, url)
            self.outbox = Outbox(engines.open_database(url))
        self.executor = Executor(self.driver, self.outbox)

    async def work(self, order: dict[str, Any]) -> dict[str, Any]:
        cut = order["how"] == handler.CUT_OFF
        async with asyncio.timeout(order["seconds"] + handler.LIMIT_S if cut else None):
            return await arun(handler.handle(self.ledger, order), self.executor.do)

    def work_sync(self, order: dict[str, Any]) -> dict[str, Any]:
        return run(handler.handle(self.ledger, order), self.executor.do_sync)

    def middleware_options(self) -> dict[str, Any]:
        """Return the options of the ASGI or WSGI middleware."""
        policies = {**handler.policies(self.ledger), "atomic": Policy(atomic=True)}
        return {
            "store": self.store,
            "tenant": lambda request: request.headers["x-account"],
            "routes": {f"POST /{name}": policies[name] for name in self.settings.routes},
            "atomic": None if self.driver is None else self.driver.adapter(),
            "hooks": [handler.watch],
        }

    def open_calls(self) -> FunctionCalls | InboxCalls:
        """Return what handles orders without a middleware."""
        runtime = Runtime(self.store, hooks=[handler.watch, calls.watch])
        policies = {**handler.policies(self.ledger), "atomic": Policy()}
        policies = {name: policies[name] for name in self.settings.routes}
        if self.settings.kind.startswith("inbox"):
            return InboxCalls(runtime, policies, self.work, self.work_sync, self.driver)
        work = self.work_sync if self.settings.kind in BLOCKING else self.work
        return FunctionCalls(runtime, policies, work)

    def publish(self, message: Message) -> None:
        row = json.loads(message.payload)
        self.ledger.note("published", Id(*row["id"]), row["run"], step=row["part"])

    def begin(self) -> None:
        """Note in the mark file that this worker serves."""
        self._start_publishing()
        self._mark.write_text(str(os.getpid()))

    def _start_publishing(self) -> None:
        if self.outbox is not None:
            limits = Limits(lease_s=handler.LEASE_S, attempts_max=10_000)
            publisher = Publisher(self.outbox, self.publish, limits=limits)
            threading.Thread(target=publisher.run_sync, daemon=True).start()


def serve_asgi(listening: socket.socket, application: Application) -> None:
    open_calls = None if application.settings.kind == "asgi" else application.open_calls()

    async def order(request: Request) -> Response:
        sent = await request.json()
        if open_calls is None:
            try:
                reply = calls.success(await application.work(sent))
            except handler.OrderedFailure:
                raise
            except Exception as error:
                reply = calls.failure(error)
        else:
            route, headers = request.path_params["route"], request.headers
            key = headers["idempotency-key"]
            reply = await open_calls.call(route, headers["x-account"], key, sent)
        body, status, lines = reply
        return Response(handler.encode(body), status, {**handler.JSON, **lines})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if isinstance(application.driver, drivers.Awaited):
            await application.driver.open()
        async with Recoverer(application.store):
            application.begin()
            yield

    app = Starlette(routes=[Route("/{route}", order, methods=["POST"])], lifespan=lifespan)
    if open_calls is None:
        app.add_middleware(asgi.IdempotencyMiddleware, **application.middleware_options())
    config = uvicorn.Config(app, access_log=False, log_level="warning")
    uvicorn.Server(config).run(sockets=[listening])


def serve_wsgi(listening: socket.socket, application: Application) -> None:
    open_calls = None if application.settings.kind == "wsgi" else application.open_calls()

    def order(request: werkzeug.Request) -> Reply:
        if open_calls is None:
            try:
                return calls.success(application.work_sync(request.get_json()))
            except handler.OrderedFailure:
                raise
            except Exception as error:
                return calls.failure(error)
        headers, route = request.headers, request.path[1:]
        sent = headers["x-account"], headers["idempotency-key"], request.get_json()
        return open_calls.call_sync(route, *sent)

    @werkzeug.Request.application
    def app(request: werkzeug.Request) -> werkzeug.Response:
        body, status, lines = order(request)
        return werkzeug.Response(handler.encode(body), status, {**handler.JSON, **lines})

    served: Any = app
    if open_calls is None:
        served = wsgi.IdempotencyMiddleware(app, **application.middleware_options())
    with Recoverer(application.store):
        application.begin()
        make_server("127.0.0.1", 0, served, threaded=True, fd=listening.fileno()).serve_forever()


def main() -> None:
    text, url, ledger, mark, descriptor = sys.argv[1:]
    settings = Settings.of_text(text)
    SkewedClock(Path(mark).with_suffix(".wall")).install()
    application = Application(settings, url, Ledger(ledger), Path(mark))
    serve = serve_wsgi if settings.kind in BLOCKING else serve_asgi
    serve(socket.socket(fileno=int(descriptor)), application)


if __name__ == "__main__":
    main()
