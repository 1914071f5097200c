"""Clients that hang up on an ASGI application, and servers that start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from oncekey import Policy
from oncekey._core.record import State
from oncekey._core.verbs import Scan
from oncekey.errors import StoreUnfit
from oncekey.stores.memory import AsyncMemoryConnection, MemoryConnection, MemoryStore
from oncekey.web.asgi import IdempotencyMiddleware
from tests.stores.unreliable import Slow
from tests.web.asgi_world import World, held, inner_lifespan, tenant_of
from tests.web.client import ask

pytestmark = pytest.mark.anyio


async def test_e35_a_client_that_hangs_up_does_not_stop_the_handler() -> None:
    world = World()
    world.handler, started, go_on = held(world)
    first = asyncio.ensure_future(ask(world.app, "k1"))
    await started.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    go_on.set()
    await world.app.drain()
    again = await ask(world.app, "k1")
    assert again.replayed
    assert world.runs == 1


async def test_p7_e35_a_client_that_leaves_before_its_claim_is_answered_spends_nothing() -> None:
    store = Slow()
    world = World(store=store)
    request = asyncio.ensure_future(ask(world.app, "k1"))
    await store.inserted.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    store.answers.set()
    await world.app.drain()
    [record] = await world.app.gatherer.ask(Scan(1))
    assert (record.state, record.no_effect) == (State.RELEASED, True)
    assert (await ask(world.app, "k1", {"another": "request"})).status == 201


async def test_e36_an_answer_that_cannot_be_delivered_is_kept() -> None:
    world = World()

    def broken(message: Any) -> None:
        raise OSError("the client is gone")

    await ask(world.app, "k1", on_message=broken)
    assert (await ask(world.app, "k1")).replayed


async def test_a_handler_that_waits_for_a_disconnect_waits_in_vain() -> None:
    world = World()

    async def handler(receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"{}"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await receive()
        await world.counting()(receive, send)

    world.handler = handler
    assert (await ask(world.app, "k1")).status == 201


@pytest.mark.parametrize("limit", [1_000, 10], ids=["kept", "too large to keep"])
async def test_a_handler_that_has_answered_hears_that_its_client_has_left(limit: int) -> None:
    world, heard = World(policy=Policy(answer_bytes_max=limit)), list[str]()

    async def handler(receive: Any, send: Any) -> None:
        await receive()
        await world.answer_with(b"x" * 100, parts=3)(receive, send)
        heard.append((await receive())["type"])

    world.handler = handler
    async with asyncio.timeout(20):
        assert len((await ask(world.app, "k1")).body) == 100
    assert heard == ["http.disconnect"]


async def test_e35_a_client_that_leaves_within_an_answer_too_large_to_keep_stops_nothing() -> None:
    """Frameworks give a stream up when they hear of it, with whatever was to be done behind it."""
    world, heard = World(policy=Policy(answer_bytes_max=10)), list[str]()

    async def handler(receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for last in (False, False, True):
            part = {"type": "http.response.body", "body": b"x" * 20, "more_body": not last}
            await send(part)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    heard.append((await receive())["type"])
            assert heard == ["http.disconnect"] * last

    world.handler = handler
    async with asyncio.timeout(20):
        assert len((await ask(world.app, "k1")).body) == 60


async def test_a_handler_whose_client_got_another_answer_hears_that_it_has_left() -> None:
    world, heard = World(policy=Policy(lease_s=10)), list[str]()

    async def handler(receive: Any, send: Any) -> None:
        await receive()
        if world.runs == 1:  # another takes over meanwhile
            world.clock.advance(11)
            await ask(world.app, "k1")
        await world.counting()(receive, send)
        heard.append((await receive())["type"])

    world.handler = handler
    async with asyncio.timeout(20):
        assert (await ask(world.app, "k1")).json() == {"run": 2}
    assert heard == ["http.disconnect"] * 2


async def test_a_client_that_leaves_within_its_body_runs_nothing() -> None:
    world = World()

    async def receive() -> Any:
        return messages.pop(0)

    messages = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/orders",
        "query_string": b"",
        "headers": [(b"idempotency-key", b"k1")],
    }

    async def send(message: Any) -> None:
        raise AssertionError("nobody is there")

    await world.app(scope, receive, send)
    assert (world.runs, world.stored()) == (0, 0)


async def test_background_work_does_not_delay_the_answer() -> None:
    world = World()
    order: list[str] = []

    async def handler(receive: Any, send: Any) -> None:
        await world.answer_with({})(receive, send)
        order.append("background")

    world.handler = handler
    await ask(world.app, "k1", on_message=lambda m: order.append("sent"))
    assert order == ["sent", "sent", "background"]


async def lifespan(app: Any, *, fail: bool = False) -> list[str]:
    told: list[str] = []
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        told.append(message["type"] + message.get("message", ""))

    with contextlib.suppress(StoreUnfit):  # what was sent tells the same
        await app({"type": "lifespan"}, receive, send)
    return told


async def test_start_and_shutdown_pass_through() -> None:
    app = IdempotencyMiddleware(inner_lifespan, store=MemoryStore(), tenant=tenant_of)
    assert await lifespan(app) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_e35_the_shutdown_waits_for_handlers_whose_clients_have_left() -> None:
    world, order = World(), []
    handler, started, go_on = held(world)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await inner_lifespan(scope, receive, send)
            order.append("the application has ended")
        else:
            await handler(receive, send)
            order.append("the handler has ended")

    world.app.app = app
    request = asyncio.ensure_future(ask(world.app, "k1"))
    await started.wait()
    request.cancel()
    ending = asyncio.ensure_future(lifespan(world.app))
    for _ in range(100):
        await asyncio.sleep(0)
    assert order == []
    go_on.set()
    assert (await ending)[-1] == "lifespan.shutdown.complete"
    assert order == ["the handler has ended", "the application has ended"]


class Counted(MemoryStore):
    """How many connections to it are open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: set[object] = set()

    def connect(self) -> MemoryConnection:
        connection = super().connect()
        self.open.add(connection)
        connection.close = lambda: self.open.remove(connection)  # type: ignore[method-assign]
        return connection

    async def aconnect(self) -> AsyncMemoryConnection:
        connection = await super().aconnect()
        self.open.add(connection)

        async def close() -> None:
            self.open.remove(connection)

        connection.close = close  # type: ignore[method-assign]
        return connection


def running() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("oncekey")}


async def test_the_shutdown_ends_all_threads_and_gives_all_connections_back() -> None:
    store, before = Counted(), running()
    app = IdempotencyMiddleware(inner_lifespan, store=store, tenant=tenant_of)
    await app.start()
    assert store.open
    assert running() > before
    await lifespan(app)
    assert store.open == set()
    assert running() <= before


async def test_without_lifespan_the_first_request_starts_what_runs_beside(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    await ask(world.app, None)
    assert caplog.text == ""
    for key in ("k1", "k2"):
        await ask(world.app, key)
    assert caplog.text.count("a retry runs it again: any route") == 1


class Unfit(MemoryStore):
    def prepare(self) -> Any:
        yield from ()
        raise StoreUnfit("run `oncekey migrate URL`")


async def test_a_store_that_must_not_be_used_stops_the_start() -> None:
    app = IdempotencyMiddleware(inner_lifespan, store=Unfit(), tenant=tenant_of)
    assert await lifespan(app) == ["lifespan.startup.failedrun `oncekey migrate URL`"]


def test_an_unfit_store_fails_a_test_client_instead_of_hanging_it() -> None:
    app = Starlette()
    app.add_middleware(IdempotencyMiddleware, store=Unfit(), tenant=tenant_of)
    with pytest.raises(StoreUnfit, match="oncekey migrate"), TestClient(app):
        pytest.fail("it started")


async def test_p4_an_unsafe_setting_stops_the_start_unless_it_is_accepted_by_name(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/keys.db?synchronous=OFF"
    refused = await lifespan(IdempotencyMiddleware(inner_lifespan, store=url, tenant=tenant_of))
    assert refused[0].startswith("lifespan.startup.failed")
    assert "synchronous = OFF" in refused[0]
    assert "allow=unsafe-durability" in refused[0]
    named = f"{url}&allow=unsafe-durability"
    accepted = await lifespan(IdempotencyMiddleware(inner_lifespan, store=named, tenant=tenant_of))
    assert accepted[0] == "lifespan.startup.complete"


async def test_an_application_that_had_started_is_ended_when_its_store_is_unfit() -> None:
    told: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await inner_lifespan(scope, receive, send)
        told.append("ended")

    guarded = IdempotencyMiddleware(app, store=Unfit(), tenant=tenant_of)
    assert [line[:23] for line in await lifespan(guarded)] == ["lifespan.startup.failed"]
    assert told == ["ended"]


async def test_without_lifespan_an_unfit_store_refuses_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(store=Unfit())
    with caplog.at_level(logging.ERROR, "oncekey"):
        refused = await ask(world.app, "k1")
    assert (refused.status, refused.kind) == (503, "store-unavailable")
    assert "oncekey migrate" in caplog.text
    assert world.runs == 0
