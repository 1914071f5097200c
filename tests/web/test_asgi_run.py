"""A guarded request whose caller leaves before its handler has ended, or is guarded itself."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.middleware.cors import CORSMiddleware

from oncekey import Policy, current
from oncekey._core.op import arun
from oncekey._core.record import State
from oncekey._core.verbs import Swap
from oncekey._system import probes
from oncekey.errors import Misuse
from oncekey.stores.memory import MemoryStore
from oncekey.stores.sqlite.store import SqliteStore
from oncekey.web._asgi_messages import App, Receive, Scope, Send
from oncekey.web.asgi import IdempotencyMiddleware
from tests.web.asgi_world import World, tenant_of
from tests.web.client import Reply, ask, request_headers, scope_for

pytestmark = pytest.mark.anyio


class Caller:
    """What stands around the middleware: it gives up when told to, and answers the client."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.sent: list[Any] = []
        self.answered = False

    async def ask(self, key: str) -> None:
        scope = scope_for("POST", "/orders", request_headers(key, b"{}", "application/json", ()))
        body = [{"type": "http.request", "body": b"{}", "more_body": False}]

        async def receive() -> Any:
            return body.pop() if body else {"type": "http.disconnect"}

        try:
            await self._world.app(scope, receive, self._send)
        except asyncio.CancelledError:
            await self._send({"type": "http.response.start", "status": 504, "headers": []})
            await self._send({"type": "http.response.body", "body": b""})
            self.answered = True

    async def _send(self, message: Any) -> None:
        if self.answered:  # as servers say
            raise RuntimeError(f"Unexpected ASGI message {message['type']!r}")
        self.sent.append(message)


async def test_p1_a_handler_is_renewed_while_it_runs() -> None:
    renewed = threading.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        status = 201 if await asyncio.to_thread(renewed.wait, 20) else 500
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    app = IdempotencyMiddleware(
        slow, store=MemoryStore(), tenant=tenant_of, policy=Policy(lease_s=1)
    )
    probes.arm("before_renew", renewed.set)
    try:
        assert (await ask(app, "k1")).status == 201
    finally:
        probes.disarm()
        await app.close()


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
async def test_what_ends_a_handler_and_is_no_exception_is_answered_and_raised(
    error: BaseException,
) -> None:
    """A program that a handler calls may exit, and what it awaits may have been cancelled."""
    world, answered = World(policy=Policy(recovery="block")), Reply()

    async def breaks(receive: Any, send: Any) -> None:
        raise error

    def hear(message: Any) -> None:
        if message["type"] == "http.response.start":
            answered.status, answered.headers = message["status"], message["headers"]

    world.handler = breaks
    with pytest.raises(type(error)):
        await ask(world.app, "k1", on_message=hear)
    assert (answered.status, answered.header("idempotency-outcome")) == (500, "unknown")
    assert (await ask(world.app, "k1")).kind == "outcome-unknown"
    assert world.runs == 1


@pytest.mark.parametrize("answer_bytes_max", [1_000, 3])
async def test_e35_who_has_left_is_told_nothing_and_stops_nothing(answer_bytes_max: int) -> None:
    """A limit on time, say, that has answered the client itself: a server takes no second answer,
    and what it says to one is no failure of the handler's.
    """
    world, ended = World(policy=Policy(answer_bytes_max=answer_bytes_max)), list[bool]()
    started, go_on = asyncio.Event(), asyncio.Event()

    async def handler(receive: Any, send: Any) -> None:
        started.set()
        await go_on.wait()
        await world.answer_with({"ok": True}, parts=3)(receive, send)
        ended.append(True)  # as background work would be

    world.handler, caller = handler, Caller(world)
    request = asyncio.ensure_future(caller.ask("k1"))
    await started.wait()
    request.cancel()
    await request
    go_on.set()
    await world.app.drain()
    assert ended == [True]
    assert world.states() == [State.COMPLETED]
    assert [message.get("status") for message in caller.sent] == [504, None]


@pytest.mark.parametrize("answers", [True, False], ids=["answers itself", "raises"])
@pytest.mark.parametrize("answer_bytes_max", [1_000, 3])
async def test_an_application_that_cuts_off_the_recording_of_its_answer_does_not_run_twice(
    answers: bool, answer_bytes_max: int
) -> None:
    """A limit on time within the application may end while a slow store is asked to keep what the
    handler has answered: that goes on, and it is what the client gets.
    """
    world = World(policy=Policy(answer_bytes_max=answer_bytes_max))
    limit, hanging = asyncio.timeout(None), outage(world)

    async def handler(receive: Any, send: Any) -> None:
        try:
            async with limit:
                await world.answer_with({"ok": True})(receive, send)
        except TimeoutError:
            if not answers:
                raise
            await world.answer_with({"ok": False}, 504)(receive, send)

    world.handler = handler
    request = asyncio.ensure_future(ask(world.app, "k1"))
    await hanging.wait()
    limit.reschedule(0)
    first, again = await request, await ask(world.app, "k1")
    assert (first.status, first.body) == (201, b'{"ok": true}')
    assert again.replayed or again.kind == "answer-not-kept"
    assert world.runs == 1


def outage(world: World) -> asyncio.Event:
    """The store does not answer the first completion, and never hears of it; set when it hangs."""
    gatherer_ask, hanging = world.app.gatherer.ask, asyncio.Event()

    async def hang() -> None:
        hanging.set()
        await asyncio.Event().wait()

    def ask(question: Any) -> Any:
        completes = isinstance(question, Swap) and question.to is State.COMPLETED
        return hang() if completes and not hanging.is_set() else gatherer_ask(question)

    world.app.edge.runtime.drive = partial(arun, ask=ask)  # type: ignore[method-assign]
    return hanging


@pytest.mark.parametrize("then", ["answers", "streams", "raises"])
async def test_p3_what_was_recorded_with_the_rows_is_answered_whatever_follows(
    tmp_path: Path, then: str
) -> None:
    rows = sqlite3.connect(tmp_path / "shop.db")
    rows.execute("CREATE TABLE orders (id TEXT)")

    async def order(scope: Any, receive: Any, send: Any) -> None:
        with rows:
            rows.execute("INSERT INTO orders VALUES ('o')")
            current().complete_in_sync(rows, 201, b"made")
        if then == "raises":
            raise ConnectionError("after the commit")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if then == "streams":
            await send({"type": "http.response.body", "body": b"x" * 100, "more_body": True})
        await send({"type": "http.response.body", "body": b"something else"})

    app = IdempotencyMiddleware(
        order,
        store=SqliteStore(tmp_path / "shop.db"),
        tenant=tenant_of,
        policy=Policy(answer_bytes_max=50),
    )
    first, again = await ask(app, "k1"), await ask(app, "k1")
    assert (first.status, first.body, first.replayed) == (201, b"made", False)
    assert (again.status, again.body, again.replayed) == (201, b"made", True)
    assert rows.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    await app.close()
    rows.close()


async def test_p3_an_application_may_use_its_buffer_again() -> None:
    """Streams of frameworks may give views of memory, which a server has sent when it returns."""
    world = World()

    async def handler(receive: Any, send: Any) -> None:
        buffer = bytearray(3)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"one", b"two"):
            buffer[:] = part
            await send(
                {"type": "http.response.body", "body": memoryview(buffer), "more_body": True}
            )
        await send({"type": "http.response.body"})

    world.handler = handler
    first, again = await ask(world.app, "k1"), await ask(world.app, "k1")
    assert (first.body, again.body) == (b"onetwo", b"onetwo")


def hidden(app: IdempotencyMiddleware) -> App:
    """Behind a function, where nobody can see it."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        await app(scope, receive, send)

    return call


def test_a_middleware_around_another_is_refused_when_it_is_made() -> None:
    world = World()
    with pytest.raises(Misuse, match="there are two IdempotencyMiddleware"):
        IdempotencyMiddleware(world.app, store=world.store, tenant=tenant_of)
    with pytest.raises(Misuse, match="there are two IdempotencyMiddleware"):
        IdempotencyMiddleware(CORSMiddleware(world.app), store=MemoryStore(), tenant=tenant_of)


async def test_a_middleware_within_itself_is_refused_and_not_waited_for() -> None:
    """It was told for ever that the first request, which is itself, still runs."""
    world = World()
    twice = IdempotencyMiddleware(hidden(world.app), store=world.store, tenant=tenant_of)
    with pytest.raises(Misuse, match="guarded twice"):
        await ask(twice, "k1")
    assert world.runs == 0
    assert world.states() == [State.RELEASED]


async def test_a_middleware_may_stand_within_one_that_has_another_store() -> None:
    world = World()
    store = MemoryStore(world.clock)
    outer = IdempotencyMiddleware(hidden(world.app), store=store, tenant=tenant_of)
    first, again = await ask(outer, "k1"), await ask(outer, "k1")
    assert (first.body, again.body, again.replayed) == (b'{"ok": true}', b'{"ok": true}', True)
    assert world.runs == 1
