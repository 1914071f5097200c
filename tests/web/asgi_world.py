"""An application behind the ASGI middleware, on the memory store with a clock that is driven."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import oncekey
from oncekey._core.op import arun
from oncekey._core.record import State
from oncekey._core.verbs import Count, Scan
from oncekey._system.clock import FakeClock
from oncekey.errors import StoreError, StoreUnavailable
from oncekey.stores.batching import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.web.asgi import IdempotencyMiddleware
from tests.clocks import set_clock

Handler = Callable[[Any, Any], Awaitable[None]]


class World:
    """An application whose handler a test can replace, its store and its clock."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.runs = 0
        self.handler: Handler = self.answer_with({"ok": True})
        settings = {"store": self.store, "tenant": tenant_of, **settings}
        self.app = IdempotencyMiddleware(self._app, **settings)
        self.app.edge.clock = self.clock
        set_clock(self.app.edge.guard, self.clock)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.runs += 1
        scope["endpoint"] = self.handler
        await self.handler(receive, send)

    def answer_with(
        self, body: Any, status: int = 201, headers: Any = (), parts: int = 1
    ) -> Handler:
        async def handler(receive: Any, send: Any) -> None:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            lines = [(b"content-type", b"application/json"), *headers]
            await send({"type": "http.response.start", "status": status, "headers": lines})
            size = max(1, -(-len(raw) // parts))
            chunks = [raw[n : n + size] for n in range(0, len(raw), size)] or [b""]
            for n, chunk in enumerate(chunks):
                more = n < len(chunks) - 1
                await send({"type": "http.response.body", "body": chunk, "more_body": more})

        return handler

    def counting(self) -> Handler:
        async def handler(receive: Any, send: Any) -> None:
            await self.answer_with({"run": self.runs})(receive, send)

        return handler

    def states(self) -> list[State]:
        return [record.state for record in Gatherer(self.store).ask(Scan(100))]

    def stored(self) -> int:
        return int(sum(Gatherer(self.store).ask(Count()).values()))


def tenant_of(request: oncekey.Request) -> str | None:
    return request.headers.get("x-account", "acme")


def held(world: World) -> tuple[Handler, asyncio.Event, asyncio.Event]:
    """A handler that stops in the middle; what is set when it has come there, and lets it go on."""
    started, go_on = asyncio.Event(), asyncio.Event()

    async def handler(receive: Any, send: Any) -> None:
        started.set()
        await go_on.wait()
        await world.counting()(receive, send)

    return handler, started, go_on


def counted(app: IdempotencyMiddleware) -> list[Any]:
    """What the application asks its store from now on."""
    asked: list[Any] = []
    gatherer_ask = app.gatherer.ask

    def ask(question: Any) -> Any:
        asked.append(question)
        return gatherer_ask(question)

    app.edge.runtime.drive = partial(arun, ask=ask)  # type: ignore[method-assign]
    return asked


async def inner_lifespan(scope: Any, receive: Any, send: Any) -> None:
    assert (await receive())["type"] == "lifespan.startup"
    await send({"type": "lifespan.startup.complete"})
    assert (await receive())["type"] == "lifespan.shutdown"
    await send({"type": "lifespan.shutdown.complete"})


class Flaky(MemoryStore):
    """Fails the next performs as told: before they happen, or after (the reply is lost)."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.before: list[StoreError] = []
        self.after: list[StoreError] = []

    def perform(self, verbs: Any) -> Any:
        if self.before:
            raise self.before.pop(0)
        outcomes = yield from super().perform(verbs)
        if self.after:
            raise self.after.pop(0)
        return outcomes


def down(sent: bool) -> StoreUnavailable:
    return StoreUnavailable("no answer", sent=sent)


def flaky_world(**settings: Any) -> tuple[World, Flaky]:
    world = World(**settings)
    store = Flaky(world.clock)
    world.store = store
    world.app = IdempotencyMiddleware(world._app, store=store, tenant=tenant_of, **settings)
    return world, store
