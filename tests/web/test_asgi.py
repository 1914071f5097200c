"""The ASGI middleware, message by message, on the memory store with a clock that is driven."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

import oncekey
from oncekey import Policy, background
from oncekey.clock import FakeClock
from oncekey.core.record import State
from oncekey.core.verbs import Count, Insert, Scan
from oncekey.errors import StoreError, StoreUnavailable, StoreUnfit
from oncekey.events import OutcomeUnknown
from oncekey.stores.gather import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.web.asgi import IdempotencyMiddleware
from oncekey.web.flask import Oncekey
from oncekey.web.recent import RECENT_S
from tests.web.client import Reply, ask, scope_for

pytestmark = pytest.mark.anyio

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
        self.app.edge.clock = self.app.edge.guard._clock = self.clock

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


# ------------------------------------------------------------------- the main road


async def test_p3_a_retry_gets_the_same_answer() -> None:
    world = World()
    world.handler = world.answer_with(
        b"\x00\xffpaid", 201, [(b"location", b"/orders/1"), (b"link", b"<a>"), (b"link", b"<b>")]
    )
    first = await ask(world.app, "k1")
    again = await ask(world.app, "k1")
    assert world.runs == 1
    assert (first.status, first.body) == (again.status, again.body) == (201, b"\x00\xffpaid")
    assert not first.replayed
    assert again.replayed
    assert again.header("location") == "/orders/1"
    assert again.all("link") == [b"<a>", b"<b>"]
    assert first.header("idempotency-key") == again.header("idempotency-key") == "k1"
    assert first.header("idempotency-expires") is not None


async def test_p3_a_crowd_of_retries_asks_the_store_once() -> None:
    """And what is replayed without asking is compared all the same (P5)."""
    world = World()
    world.handler = world.counting()
    first = await ask(world.app, "k1")
    asked = counted(world.app)
    replies = [await ask(world.app, "k1") for _ in range(20)]
    assert {(reply.status, reply.body, reply.replayed) for reply in replies} == {
        (first.status, first.body, True)
    }
    assert len(asked) == 1
    assert (await ask(world.app, "k1", body=b'{"other": 1}')).status == 422
    assert not (await ask(world.app, "k1", headers=[(b"x-account", b"other")])).replayed
    world.clock.advance(RECENT_S)
    assert (await ask(world.app, "k1")).replayed
    assert len(asked) == 5, "the other body, the other tenant's claim and answer, and this one"


async def test_p3_what_was_read_a_moment_ago_is_not_replayed_beyond_its_retention() -> None:
    world = World(policy=Policy(retention_s=2))
    world.handler = world.counting()
    await ask(world.app, "k1")
    assert (await ask(world.app, "k1")).replayed
    world.clock.advance(2)
    assert not (await ask(world.app, "k1")).replayed
    assert world.runs == 2


def counted(app: IdempotencyMiddleware) -> list[Any]:
    """What the application asks its store from now on."""
    asked: list[Any] = []
    gatherer_ask = app.gatherer.ask

    def ask(question: Any) -> Any:
        asked.append(question)
        return gatherer_ask(question)

    app.gatherer.ask = ask  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize("account", [b"a" * 1_001, b"nul\0", b"\xed\xa0\x80"])
async def test_p7_a_tenant_that_no_store_can_keep_is_refused(account: bytes) -> None:
    world = World(
        tenant=lambda request: request.headers.lines[-1][1].decode("utf-8", "surrogatepass")
    )
    reply = await ask(world.app, "k1", headers=[(b"x-account", account)])
    assert reply.status == 400
    assert b"account" in reply.body
    assert (world.runs, world.stored()) == (0, 0)


async def test_p4_nothing_is_sent_before_the_answer_is_recorded() -> None:
    world = World()
    seen: list[tuple[str, list[State]]] = []
    reply = await ask(
        world.app, "k1", on_message=lambda m: seen.append((m["type"], world.states()))
    )
    assert reply.status == 201
    assert seen == [
        ("http.response.start", [State.COMPLETED]),
        ("http.response.body", [State.COMPLETED]),
    ]


async def test_p5_another_request_never_gets_the_stored_answer() -> None:
    world = World()
    await ask(world.app, "k1", {"amount": 1})
    other = await ask(world.app, "k1", {"amount": 2})
    assert (other.status, other.kind) == (422, "mismatch")
    assert world.runs == 1


async def test_p5_e15_another_tenant_never_gets_the_stored_answer() -> None:
    world = World()
    world.handler = world.counting()
    alice = await ask(world.app, "k1", headers=[(b"x-account", b"alice")])
    bob = await ask(world.app, "k1", headers=[(b"x-account", b"bob")])
    assert alice.json() == {"run": 1}
    assert bob.json() == {"run": 2}
    assert not bob.replayed


async def test_e16_the_concrete_path_is_part_of_the_request() -> None:
    """Two confirmations with empty bodies under one route template."""
    world = World(routes={"POST /intents/{id}/confirm": Policy()})
    await ask(world.app, "k1", b"", path="/intents/1/confirm")
    other = await ask(world.app, "k1", b"", path="/intents/2/confirm")
    assert other.kind == "mismatch"
    assert world.runs == 1


async def test_e16_the_same_key_for_another_operation_is_another_key() -> None:
    world = World()
    await ask(world.app, "k1", path="/orders")
    other = await ask(world.app, "k1", path="/refunds")
    assert other.status == 201
    assert world.runs == 2


async def test_e16_scope_tenant_refuses_the_key_on_another_operation() -> None:
    world = World(policy=Policy(scope="tenant"))
    await ask(world.app, "k1", path="/orders")
    assert (await ask(world.app, "k1", path="/refunds")).kind == "mismatch"


async def test_e17_credentials_rotate_and_the_account_stays() -> None:
    world = World()
    await ask(world.app, "k1", headers=[(b"authorization", b"Bearer old")])
    again = await ask(world.app, "k1", headers=[(b"authorization", b"Bearer new")])
    assert again.replayed


async def test_e19_the_environment_belongs_into_the_tenant() -> None:
    world = World(tenant=lambda request: f"acme/{request.headers['x-mode']}")
    world.handler = world.counting()
    await ask(world.app, "k1", headers=[(b"x-mode", b"test")])
    live = await ask(world.app, "k1", headers=[(b"x-mode", b"live")])
    assert live.json() == {"run": 2}


async def test_the_tenant_function_may_be_async_and_sees_the_scope() -> None:
    async def tenant(request: oncekey.Request) -> str:
        await asyncio.sleep(0)
        return str(request.scope["user"])

    world = World(tenant=tenant)
    world.handler = world.counting()
    assert (await ask(world.app, "k1", user="a")).json() == {"run": 1}
    assert (await ask(world.app, "k1", user="b")).json() == {"run": 2}
    assert (await ask(world.app, "k1", user="a")).json() == {"run": 1}


@pytest.mark.parametrize("tenant", [None, ""])
async def test_no_tenant_no_run(tenant: str | None) -> None:
    world = World(tenant=lambda request: tenant)
    refused = await ask(world.app, "k1")
    assert (refused.status, refused.kind) == (401, "no-tenant")
    assert (world.runs, world.stored()) == (0, 0)


# ------------------------------------------------------------------- in flight


def held(world: World) -> tuple[Handler, asyncio.Event, asyncio.Event]:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def handler(receive: Any, send: Any) -> None:
        started.set()
        await go_on.wait()
        await world.counting()(receive, send)

    return handler, started, go_on


async def test_e31_a_duplicate_in_flight_is_told_when_to_come_back() -> None:
    world = World()
    world.handler, started, go_on = held(world)
    first = asyncio.ensure_future(ask(world.app, "k1"))
    await started.wait()
    refused = await ask(world.app, "k1")
    go_on.set()
    assert (refused.status, refused.kind) == (409, "in-flight")
    assert refused.json()["retryable"] is True
    assert int(refused.header("retry-after") or 0) >= 1
    assert (await first).json() == {"run": 1}
    assert (await ask(world.app, "k1")).replayed
    assert world.runs == 1


async def test_e29_a_mismatch_wins_over_in_flight() -> None:
    world = World()
    world.handler, started, go_on = held(world)
    first = asyncio.ensure_future(ask(world.app, "k1", {"amount": 1}))
    await started.wait()
    assert (await ask(world.app, "k1", {"amount": 2})).kind == "mismatch"
    go_on.set()
    await first


async def test_e31_a_duplicate_may_wait_for_the_answer() -> None:
    world = World(policy=Policy(in_flight="wait", wait_s=30))
    world.app.edge.guard._clock = oncekey.clock.SystemClock()
    world.handler, started, go_on = held(world)
    first = asyncio.ensure_future(ask(world.app, "k1"))
    await started.wait()
    second = asyncio.ensure_future(ask(world.app, "k1"))
    await asyncio.sleep(0)
    go_on.set()
    assert (await first).body == (await second).body
    assert (await second).replayed
    assert world.runs == 1


async def test_p11_a_thousand_waiters_are_served_or_refused_within_limits() -> None:
    policy = Policy(in_flight="wait", wait_s=30, waiters_per_key_max=100)
    world = World(policy=policy)
    world.app.edge.guard._clock = oncekey.clock.SystemClock()
    world.handler, started, go_on = held(world)
    first = asyncio.ensure_future(ask(world.app, "k1"))
    await started.wait()
    crowd = [asyncio.ensure_future(ask(world.app, "k1")) for _ in range(1000)]
    done, waiting = await asyncio.wait(crowd, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    while len(done) < 900:
        more, waiting = await asyncio.wait(waiting, timeout=5, return_when="FIRST_COMPLETED")
        done |= more
    assert {task.result().kind for task in done} == {"in-flight"}
    go_on.set()
    replies = [await task for task in waiting]
    assert len(replies) == 100
    assert all(reply.replayed for reply in replies)
    assert (await first).status == 201
    assert world.runs == 1


# ------------------------------------------------------------------- leases


async def test_p2_e33_a_stale_owner_answers_from_the_record_it_finds() -> None:
    """The first handler outlives its lease, a retry takes over: both get the heir's answer."""
    world = World(policy=Policy(lease_s=10))
    heirs: list[Reply] = []

    async def handler(receive: Any, send: Any) -> None:
        run = world.runs
        if run == 1:
            world.clock.advance(11)
            heirs.append(await ask(world.app, "k1"))
        await world.answer_with({"run": run})(receive, send)

    world.handler = handler
    stale = await ask(world.app, "k1")
    assert heirs[0].json() == {"run": 2}
    assert stale.json() == {"run": 2}
    assert stale.replayed
    assert (await ask(world.app, "k1")).json() == {"run": 2}


async def test_p2_a_lapsed_attempt_that_nobody_took_over_may_complete() -> None:
    world = World(policy=Policy(lease_s=10))

    async def handler(receive: Any, send: Any) -> None:
        world.clock.advance(11)
        await world.answer_with({"run": 1})(receive, send)

    world.handler = handler
    assert (await ask(world.app, "k1")).status == 201
    assert (await ask(world.app, "k1")).replayed


@pytest.mark.parametrize(("heard", "logged"), [(False, 1), (True, 0)])
async def test_e34_block_declares_the_outcome_unknown(
    caplog: pytest.LogCaptureFixture, heard: bool, logged: int
) -> None:
    """Somebody must act: where there is no hook to tell them, the log does."""
    events: list[object] = []
    hooks = [events.append] if heard else []
    world = World(policy=Policy(lease_s=10, recovery="block"), hooks=hooks)
    told: list[Reply] = []

    async def handler(receive: Any, send: Any) -> None:
        world.clock.advance(11)
        told.append(await ask(world.app, "k1"))
        await world.answer_with({"run": 1})(receive, send)

    world.handler = handler
    stale = await ask(world.app, "k1")
    assert [told[0].kind, stale.kind] == ["outcome-unknown"] * 2
    assert told[0].json()["retryable"] is False
    assert world.runs == 1
    assert caplog.text.count("`oncekey list --unknown`") == logged
    assert any(isinstance(event, OutcomeUnknown) for event in events) is heard


async def test_e68_a_record_does_not_expire_while_it_runs() -> None:
    """The lease is not the retention: a handler may outlive a short retention."""
    world = World(policy=Policy(lease_s=100, retention_s=10))
    told: list[Reply] = []

    async def handler(receive: Any, send: Any) -> None:
        world.clock.advance(50)
        told.append(await ask(world.app, "k1"))
        await world.answer_with({"run": 1})(receive, send)

    world.handler = handler
    assert (await ask(world.app, "k1")).status == 201
    assert told[0].kind == "in-flight"
    world.clock.advance(9)
    assert (await ask(world.app, "k1")).replayed
    world.clock.advance(2)
    world.handler = world.counting()
    assert (await ask(world.app, "k1")).json() == {"run": 2}


async def test_the_handler_sees_its_attempt() -> None:
    world = World(policy=Policy(lease_s=10))
    seen: list[tuple[Any, ...]] = []

    async def handler(receive: Any, send: Any) -> None:
        attempt = oncekey.current()
        seen.append((attempt.key, attempt.tenant, attempt.attempt, attempt.resumed))
        attempt.resource_id = "order_1"
        if world.runs == 1:
            world.clock.advance(11)
            await ask(world.app, "k1")
            assert attempt.mark_lost()
            with pytest.raises(oncekey.LeaseLost):
                attempt.ensure_owned()
        await world.answer_with({})(receive, send)

    world.handler = handler
    await ask(world.app, "k1")
    assert seen == [("k1", "acme", 1, False), ("k1", "acme", 2, True)]
    [record] = Gatherer(world.store).ask(Scan(10))
    assert record.resource_id == "order_1"


async def test_outside_a_guarded_handler_there_is_no_attempt() -> None:
    assert oncekey.current_or_none() is None
    with pytest.raises(oncekey.Misuse, match="outside a guarded handler"):
        oncekey.current()


# ------------------------------------------------------------------- what is kept


@pytest.mark.parametrize("status", [200, 201, 204, 303, 400, 402, 404, 410, 422])
async def test_e40_definitive_answers_are_kept(status: int) -> None:
    world = World()
    world.handler = world.answer_with(b"", status)
    await ask(world.app, "k1")
    again = await ask(world.app, "k1")
    assert (again.status, again.replayed, world.runs) == (status, True, 1)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_e39_server_errors_release_after_failure(status: int) -> None:
    world = World()
    world.handler = world.answer_with({}, status)
    assert (await ask(world.app, "k1", {"a": 1})).status == status
    assert (await ask(world.app, "k1", {"a": 2})).kind == "mismatch"
    world.handler = world.answer_with({}, 201)
    assert (await ask(world.app, "k1", {"a": 1})).status == 201


REFUSED = [307, 308, 401, 403, 405, 407, 408, 409, 413, 415, 425, 429]


@pytest.mark.parametrize("status", REFUSED)
async def test_p7_e40_refusals_leave_nothing_that_answers_or_blocks(status: int) -> None:
    world = World()
    world.handler = world.answer_with({}, status)
    assert (await ask(world.app, "k1", {"a": 1})).status == status
    world.handler = world.counting()
    assert (await ask(world.app, "k1", {"a": 2})).json() == {"run": 2}


async def test_p7_a_router_404_leaves_nothing() -> None:
    async def router(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"no such route"})

    store = MemoryStore()
    app = IdempotencyMiddleware(router, store=store, tenant=tenant_of)
    for _ in range(2):
        reply = await ask(app, "k1")
        assert (reply.status, reply.replayed) == (404, False)
    assert [r.no_effect for r in Gatherer(store).ask(Scan(10))] == [True]


async def test_e38_an_exception_releases_after_failure() -> None:
    world = World()

    async def handler(receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    world.handler = handler
    with pytest.raises(ZeroDivisionError):
        await ask(world.app, "k1")
    world.handler = world.counting()
    assert (await ask(world.app, "k1")).json() == {"run": 2}


async def test_an_application_that_never_answers_is_released() -> None:
    world = World()

    async def handler(receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    world.handler = handler
    with pytest.raises(RuntimeError, match="without a complete answer"):
        await ask(world.app, "k1")
    assert world.states() == [State.RELEASED]


@pytest.mark.parametrize(
    ("say", "status", "then"),
    [("final", 503, "kept"), ("transient", 201, "again"), ("no_effect", 201, "any")],
)
async def test_e39_the_handler_has_the_last_word(say: str, status: int, then: str) -> None:
    world = World()

    async def handler(receive: Any, send: Any) -> None:
        getattr(oncekey.current(), say)()
        await world.answer_with({"run": world.runs}, status)(receive, send)

    world.handler = handler
    await ask(world.app, "k1", {"a": 1})
    same = await ask(world.app, "k1", {"a": 1})
    other = await ask(world.app, "k1", {"a": 2})
    assert same.replayed == (then == "kept")
    assert (other.status == status) == (then == "any")


async def test_e59_an_answer_over_the_limit_is_sent_whole_but_only_the_fact_is_kept() -> None:
    world = World(policy=Policy(answer_bytes_max=1000))
    whole = bytes(range(256)) * 20
    world.handler = world.answer_with(whole, 201, [(b"location", b"/exports/7")], parts=9)
    first = await ask(world.app, "k1")
    again = await ask(world.app, "k1")
    assert (first.status, first.body) == (201, whole)
    assert again.kind == "answer-not-kept"
    assert again.header("location") == "/exports/7"
    assert world.runs == 1


async def test_e60_a_stream_that_fails_after_the_limit_stays_completed() -> None:
    world = World(policy=Policy(answer_bytes_max=10))

    async def handler(receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 20, "more_body": True})
        raise ConnectionError

    world.handler = handler
    with pytest.raises(ConnectionError):
        await ask(world.app, "k1")
    assert (await ask(world.app, "k1")).kind == "answer-not-kept"


async def test_e60_an_error_page_is_not_glued_to_an_answer_that_flows() -> None:
    """As servers have it: an answer that breaks is cut off, so that its client notices."""
    world, sent = World(policy=Policy(answer_bytes_max=10)), list[bytes]()

    async def handler(receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 20, "more_body": True})
        await world.answer_with(b"an error page", status=500)(receive, send)

    world.handler = handler
    with pytest.raises(RuntimeError, match="another answer"):
        await ask(world.app, "k1", on_message=lambda m: sent.append(m.get("body", b"")))
    assert b"".join(sent) == b"x" * 20


async def test_e60_an_event_stream_flows_at_once() -> None:
    world = World()
    seen: list[bytes] = []

    async def handler(receive: Any, send: Any) -> None:
        lines = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": lines})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        seen.append(b"".join(sent))
        await send({"type": "http.response.body", "body": b"data: 2\n\n", "more_body": False})

    sent: list[bytes] = []
    world.handler = handler
    reply = await ask(world.app, "k1", on_message=lambda m: sent.append(m.get("body", b"")))
    assert seen == [b"data: 1\n\n"]
    assert reply.body == b"data: 1\n\ndata: 2\n\n"


def streaming(ended: list[str], *, listens: bool) -> Handler:
    """Streams for as long as it does not learn that the client has left."""

    async def stream(send: Any) -> None:
        while True:
            await send({"type": "http.response.body", "body": b"data\n\n", "more_body": True})
            await asyncio.sleep(0)

    async def handler(receive: Any, send: Any) -> None:
        await receive()
        lines = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": lines})
        streaming = asyncio.ensure_future(stream(send))
        try:
            if listens:
                assert (await receive())["type"] == "http.disconnect"
                ended.append("told")
            else:
                await streaming
        except OSError:
            ended.append("raised")
        finally:
            streaming.cancel()

    return handler


@pytest.mark.parametrize("listens", [True, False])
async def test_p11_an_endless_stream_ends_when_its_client_hangs_up(listens: bool) -> None:
    world, ended, sent = World(), list[str](), list[Any]()
    world.handler = streaming(ended, listens=listens)

    def leaving(message: Any) -> None:
        sent.append(message)
        if len(sent) > 3 and not listens:
            raise OSError("the client is gone")

    async with asyncio.timeout(5):
        await ask(world.app, "k1", on_message=leaving)
    assert ended == ["told" if listens else "raised"]
    assert (await ask(world.app, "k1")).kind == "answer-not-kept"
    assert world.runs == 1


async def test_p11_an_endless_stream_that_never_reached_its_client_ends() -> None:
    world, ended = World(), list[str]()
    world.handler = streaming(ended, listens=False)

    def gone(message: Any) -> None:
        raise OSError("the client is gone")

    async with asyncio.timeout(5):
        await ask(world.app, "k1", on_message=gone)
    assert ended == ["raised"]


async def test_an_unprotected_stream_ends_when_its_client_hangs_up() -> None:
    world, store = flaky_world(policy=Policy(store_down="run"))
    ended: list[str] = []
    world.handler = streaming(ended, listens=True)
    store.before = [down(False)] * 4
    async with asyncio.timeout(5):
        await ask(world.app, "k1")
    assert ended == ["told"]


async def test_e58_an_answer_is_not_coded_for_one_client() -> None:
    world = World()
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(dict(scope["headers"]).get(b"accept-encoding"))
        await world.answer_with({})(receive, send)

    guarded = IdempotencyMiddleware(app, store=world.store, tenant=tenant_of)
    await ask(guarded, "k1", headers=[(b"accept-encoding", b"gzip")])
    await ask(guarded, None, headers=[(b"accept-encoding", b"gzip")])
    assert seen == [None, b"gzip"]


async def test_e51_extensions_that_bypass_the_capture_are_hidden() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(sorted(scope["extensions"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    guarded = IdempotencyMiddleware(app, store=MemoryStore(), tenant=tenant_of)
    await ask(guarded, "k1", extensions={"http.response.pathsend": {}, "tls": {}})
    assert seen == [["tls"]]


async def test_p12_e53_secrets_are_sent_once_and_never_stored() -> None:
    world = World()
    world.handler = world.answer_with({}, 201, [(b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")])
    first = await ask(world.app, "k1")
    again = await ask(world.app, "k1")
    assert first.all("set-cookie") == [b"a=1", b"b=2"]
    assert again.all("set-cookie") == []
    [record] = Gatherer(world.store).ask(Scan(10))
    assert b"set-cookie" not in dict(record.answer.headers)


# ------------------------------------------------------------------- clients and servers that leave


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


@pytest.mark.slow
async def test_p7_e35_a_client_that_leaves_before_its_claim_is_answered_spends_nothing() -> None:
    world = World()
    request = asyncio.ensure_future(ask(world.app, "k1"))
    await asyncio.sleep(0)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await world.app.drain()
    assert State.RUNNING not in world.states()
    assert (await ask(world.app, "k1")).status == 201


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


async def inner_lifespan(scope: Any, receive: Any, send: Any) -> None:
    assert (await receive())["type"] == "lifespan.startup"
    await send({"type": "lifespan.startup.complete"})
    assert (await receive())["type"] == "lifespan.shutdown"
    await send({"type": "lifespan.shutdown.complete"})


async def test_start_and_shutdown_pass_through() -> None:
    app = IdempotencyMiddleware(inner_lifespan, store=MemoryStore(), tenant=tenant_of)
    assert await lifespan(app) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


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


# ------------------------------------------------------------------- store trouble


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


async def test_p9_lost_replies_to_insert_and_complete_are_harmless() -> None:
    world, store = flaky_world()
    world.handler = world.counting()
    await ask(world.app, "k0")  # the store's notice has been read: what follows is about k1 alone

    async def handler(receive: Any, send: Any) -> None:
        store.after = [down(True), down(True)]
        await world.counting()(receive, send)

    store.after = [down(True), down(True)]
    world.handler = handler
    first = await ask(world.app, "k1")
    assert (first.status, first.json()) == (201, {"run": 2})
    assert not first.replayed  # it is its own answer, cookies and all
    assert (await ask(world.app, "k1")).body == first.body
    assert world.runs == 2


async def test_e42_store_down_at_the_claim_refuses_and_runs_nothing() -> None:
    world, store = flaky_world()
    store.before = [down(False)] * 4
    refused = await ask(world.app, "k1")
    assert (refused.status, refused.kind) == (503, "store-unavailable")
    assert refused.json()["retryable"] is True
    assert (world.runs, world.stored()) == (0, 0)


async def test_e42_run_unprotected_only_when_the_insert_was_not_sent() -> None:
    world, store = flaky_world(policy=Policy(store_down="run"))
    store.before = [down(False)] * 4
    unprotected = await ask(world.app, "k1")
    assert (unprotected.status, unprotected.header("idempotency-stored")) == (201, "false")
    store.before = [down(False), down(True), down(False), down(False)]
    assert (await ask(world.app, "k2")).status == 503
    assert world.runs == 1


async def test_p7_a_claim_whose_reply_was_lost_is_released_in_the_background() -> None:
    world, store = flaky_world()
    original = store.perform

    def perform(verbs: Any) -> Any:
        """The insert happens, but neither it nor its repetitions are heard of."""
        outcomes = yield from original(verbs)
        if any(isinstance(verb, Insert) for verb in verbs):
            raise down(True)
        return outcomes

    store.perform = perform  # type: ignore[method-assign]
    refused = await ask(world.app, "k1")
    await world.app.drain()
    store.perform = original  # type: ignore[method-assign]
    assert refused.status == 503
    assert world.states() == [State.RELEASED]
    assert (await ask(world.app, "k1", {"another": "request"})).status == 201


async def test_p11_what_releases_lost_claims_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "FORGETS_ASYNC_MAX", 2)
    world, forgotten = World(), list[Any]()

    def forget(claim: Any) -> Iterator[Any]:
        forgotten.append(claim)
        yield from ()

    monkeypatch.setattr(world.app.edge.guard, "forget", forget)
    for claim in range(5):
        world.app.forget(claim)  # type: ignore[arg-type]
    await world.app.drain()
    assert forgotten == [0, 1]


async def test_e43_store_down_at_complete_under_rerun_answers_503() -> None:
    world, store = flaky_world(policy=Policy(lease_s=0.2))
    world.app.edge.guard._clock = oncekey.clock.SystemClock()

    async def handler(receive: Any, send: Any) -> None:
        store.before = [down(True)] * 100
        await world.counting()(receive, send)

    world.handler = handler
    refused = await ask(world.app, "k1")
    store.before = []
    assert (refused.status, refused.kind) == (503, "store-unavailable")
    world.clock.advance(1)
    world.handler = world.counting()
    assert (await ask(world.app, "k1")).json() == {"run": 2}


async def test_p4_e43_store_down_at_complete_under_block_answers_and_says_so() -> None:
    world, store = flaky_world(policy=Policy(lease_s=0.2, recovery="block"))

    async def handler(receive: Any, send: Any) -> None:
        store.before = [down(True)] * 100
        await world.counting()(receive, send)

    world.handler = handler
    answered = await ask(world.app, "k1")
    store.before = []
    assert (answered.status, answered.header("idempotency-stored")) == (201, "false")
    world.clock.advance(1)
    assert (await ask(world.app, "k1")).kind == "outcome-unknown"
    assert world.runs == 1


async def test_e43_a_store_that_is_unfit_for_a_moment_at_complete_is_asked_again() -> None:
    world, store = flaky_world()

    async def handler(receive: Any, send: Any) -> None:
        store.before = [StoreUnfit("it is a replica now")]
        await world.counting()(receive, send)

    world.handler = handler
    assert (await ask(world.app, "k1")).json() == {"run": 1}
    assert (await ask(world.app, "k1")).replayed


async def test_e43_a_store_that_stays_unfit_at_complete_answers_503() -> None:
    world, store = flaky_world(policy=Policy(lease_s=0.2))

    async def handler(receive: Any, send: Any) -> None:
        store.before = [StoreUnfit("it is a replica now")] * 100
        await world.counting()(receive, send)

    world.handler = handler
    assert (await ask(world.app, "k1")).kind == "store-unavailable"


async def test_a_refusal_is_sent_although_the_store_is_unfit_to_release_it() -> None:
    world, store = flaky_world(policy=Policy(lease_s=0.2))

    async def handler(receive: Any, send: Any) -> None:
        store.before = [StoreUnfit("it is a replica now")] * 100
        await world.answer_with({}, status=403)(receive, send)

    world.handler = handler
    assert (await ask(world.app, "k1")).status == 403


@pytest.mark.parametrize(("created", "kept"), [(42, "42"), ("a\0b", "a\\x00b"), (None, None)])
async def test_a_resource_id_is_text_that_every_store_takes(created: Any, kept: str | None) -> None:
    world = World()

    async def handler(receive: Any, send: Any) -> None:
        oncekey.current().resource_id = created
        await world.counting()(receive, send)

    world.handler = handler
    assert (await ask(world.app, "k1")).status == 201
    [record] = Gatherer(world.store).ask(Scan(1))
    assert record.resource_id == kept


# ------------------------------------------------------------------- keys and methods


async def test_e26_methods_that_are_not_guarded_pass_through() -> None:
    world = World(policy=Policy(required=True))
    for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE"):
        assert (await ask(world.app, "k1", method=method)).status == 201
    assert (world.runs, world.stored()) == (5, 0)


async def test_e26_put_and_delete_are_guarded_when_named() -> None:
    world = World(routes={"DELETE /orders/{id}": Policy()})
    await ask(world.app, "k1", b"", method="DELETE", path="/orders/1")
    assert (await ask(world.app, "k1", b"", method="DELETE", path="/orders/1")).replayed
    assert not (await ask(world.app, "k1", b"", method="DELETE", path="/other")).replayed


async def test_no_key_passes_through_unless_it_is_required() -> None:
    world = World(routes={"POST /payments": Policy(required=True)})
    assert (await ask(world.app, None, path="/orders")).status == 201
    refused = await ask(world.app, None, path="/payments")
    assert (refused.status, refused.kind) == (400, "missing-key")
    assert "Idempotency-Key" in refused.json()["detail"]
    assert (world.runs, world.stored()) == (1, 0)


async def test_a_request_without_key_still_gets_its_body() -> None:
    world = World(routes={"POST /payments": Policy(required=True)})
    got: list[bytes] = []

    async def handler(receive: Any, send: Any) -> None:
        got.append((await receive())["body"])
        await world.answer_with({})(receive, send)

    world.handler = handler
    await ask(world.app, None, {"a": 1}, path="/orders")
    assert json.loads(got[0]) == {"a": 1}


async def test_a_large_body_without_a_key_is_nobodys_business() -> None:
    world = World(routes={"POST /payments": Policy(required=True)})
    large = b"x" * 2_000_000
    assert (await ask(world.app, None, large, content_type="text/plain")).status == 201
    refused = await ask(world.app, None, large, path="/payments", content_type="text/plain")
    assert refused.kind == "missing-key"
    assert world.runs == 1


BAD_KEYS: list[bytes] = [
    b"",
    b'""',
    b"a b",
    b"a, b",
    "schlüssel".encode(),
    b"a\x01b",
    b"k" * 256,
    b"null",
    b"undefined",
    b"[object Object]",
    b"00000000-0000-0000-0000-000000000000",
    b'"k";p=1',
]


@pytest.mark.parametrize("key", BAD_KEYS)
async def test_bad_keys_are_refused_and_nothing_is_stored(key: bytes) -> None:
    world = World()
    refused = await ask(world.app, key)
    assert (refused.status, refused.kind) == (400, "invalid-key")
    assert (world.runs, world.stored()) == (0, 0)


async def test_e2_two_key_lines_are_refused_even_if_equal() -> None:
    world = World()
    refused = await ask(world.app, "k1", headers=[(b"idempotency-key", b"k1")])
    assert (refused.status, refused.kind) == (400, "invalid-key")
    assert world.stored() == 0


async def test_e4_quoted_and_bare_are_one_key() -> None:
    world = World()
    await ask(world.app, '"k1"')
    assert (await ask(world.app, "k1")).replayed


BAD_BODIES = [b"{", b'{"a":1,"a":2}', b"[NaN]", b"\xff\xfe{", b"[" * 100_000]


@pytest.mark.parametrize("body", BAD_BODIES, ids=range(len(BAD_BODIES)))
async def test_malformed_json_is_refused_and_nothing_is_stored(body: bytes) -> None:
    world = World()
    refused = await ask(world.app, "k1", body)
    assert (refused.status, refused.kind) == (400, "malformed-request")
    assert (world.runs, world.stored()) == (0, 0)


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "application/vnd.api+json; v=1", "text/plain"],
)
async def test_e20_a_compressed_body_is_compared_by_what_it_says(content_type: str) -> None:
    """A client that compresses each try anew writes another time into it."""
    world = World()

    async def order(body: bytes, mtime: int) -> Reply:
        coded, told = gzip.compress(body, mtime=mtime), [(b"content-encoding", b"gzip")]
        return await ask(world.app, "k1", coded, content_type=content_type, headers=told)

    assert (await order(b'{"a": 1}', 1)).status == 201
    assert (await order(b'{"a": 1}', 2)).replayed
    assert (await order(b'{"a": 2}', 3)).kind == "mismatch"
    assert world.runs == 1


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "application/vnd.api+json; v=1", "multipart/form-data; boundary=b"],
)
async def test_e20_what_is_coded_in_another_way_is_compared_by_its_bytes(content_type: str) -> None:
    world = World()

    async def order(body: bytes) -> Reply:
        told = [(b"content-encoding", b"br")]
        return await ask(world.app, "k1", body, content_type=content_type, headers=told)

    assert (await order(b"\x0b\x02")).status == 201
    assert (await order(b"\x0b\x02")).replayed
    assert (await order(b"\x0b\x03")).kind == "mismatch"
    assert world.runs == 1


async def test_p5_the_same_bytes_mean_something_else_where_nothing_says_how_they_are_coded() -> (
    None
):
    world, body = World(), gzip.compress(b"1")
    coded = [(b"content-encoding", b"gzip")]
    for _ in range(2):  # so that the process remembers its replay
        reply = await ask(world.app, "k1", body, content_type="text/plain", headers=coded)
    assert reply.replayed
    assert (await ask(world.app, "k1", body, content_type="text/plain")).kind == "mismatch"


async def test_e25_a_body_over_the_limit_is_refused_before_the_claim() -> None:
    world = World()
    declared = await ask(world.app, "k1", b"x" * 5_000_000, content_type="text/plain")
    chunked = await ask(
        world.app, "k1", b"", content_type="text/plain", chunks=[b"x" * 500_000] * 10
    )
    assert [declared.kind, chunked.kind] == ["request-too-large"] * 2
    assert declared.status == chunked.status == 413
    assert (world.runs, world.stored()) == (0, 0)


async def test_a_lying_content_length_changes_nothing() -> None:
    world = World()
    headers = [(b"content-length", b"-5"), (b"content-length", b"banana")]
    assert (await ask(world.app, "k1", b"", headers=headers)).status == 201


async def test_e11_the_key_may_travel_in_the_body() -> None:
    world = World(profile="square")
    body = {"idempotency_key": "k1", "amount": 1}
    assert (await ask(world.app, None, body)).status == 201
    assert (await ask(world.app, None, body)).replayed
    other = await ask(world.app, None, {**body, "amount": 2})
    assert other.status == 400
    assert world.runs == 1


async def test_e11_json_as_the_clients_of_aws_name_it_is_read_for_the_key() -> None:
    world, kind = World(profile="aws"), "application/x-amz-json-1.1"
    body = b'{"ClientToken": "k1", "amount": 1}'
    assert (await ask(world.app, None, body, content_type=kind)).status == 201
    assert (await ask(world.app, None, body, content_type=kind)).replayed
    assert world.runs == 1


async def test_p5_where_a_header_names_the_action_another_action_is_another_request() -> None:
    world, body = World(profile="aws"), {"ClientToken": "k1", "amount": 1}
    create, delete = ([(b"x-amz-target", b"Orders." + verb)] for verb in (b"Create", b"Delete"))
    assert (await ask(world.app, None, body, headers=create)).status == 201
    assert (await ask(world.app, None, body, headers=delete)).status == 400
    assert (await ask(world.app, None, body, headers=create)).replayed
    again = await ask(world.app, None, body, headers=delete)  # now the replay is remembered
    assert again.status == 400
    assert world.runs == 1


async def test_e11_the_key_may_travel_in_a_body_that_is_compressed() -> None:
    world, told = World(profile="square"), [(b"content-encoding", b"gzip")]
    body = b'{"idempotency_key": "k1", "amount": 1}'
    assert (await ask(world.app, None, gzip.compress(body, mtime=1), headers=told)).status == 201
    assert (await ask(world.app, None, gzip.compress(body, mtime=2), headers=told)).replayed


@pytest.mark.parametrize("content_type", ["application/json", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize(
    ("coding", "body"),
    [(b"br", b"\x0b\x02"), (b"gzip", b"{}"), (b"gzip", gzip.compress(bytes(2_000_000)))],
    ids=["unreadable", "broken", "too large"],
)
async def test_e11_a_key_that_may_be_in_an_unreadable_body_is_not_taken_for_missing(
    content_type: str, coding: bytes, body: bytes
) -> None:
    world, told = World(profile="square"), [(b"content-encoding", coding)]
    refused = await ask(world.app, None, body, content_type=content_type, headers=told)
    assert (refused.status, world.runs) == (400, 0)
    upload = await ask(world.app, None, body, content_type="image/png", headers=told)
    assert (upload.status, world.runs) == (201, 1)


async def test_e11_a_large_upload_that_can_bring_no_key_is_nobodys_business() -> None:
    world = World(profile="square", policy=Policy(request_bytes_max=10))
    upload = await ask(world.app, None, b"x" * 100, content_type="image/png")
    order = await ask(world.app, None, b"{" + b" " * 100 + b"}")
    assert (upload.status, order.status, world.runs) == (201, 413, 1)


async def test_e11_the_key_may_travel_in_the_query() -> None:
    world = World(profile="gcp")
    query = b"requestId=8e03978e-40d5-43e8-bc93-6894a57f9324"
    assert (await ask(world.app, None, query=query)).status == 201
    assert (await ask(world.app, None, query=query)).replayed
    assert world.runs == 1


async def test_field_digests_name_what_differs_and_never_values() -> None:
    world = World(policy=Policy(field_digests=True))
    await ask(world.app, "k1", {"amount": 1299, "currency": "eur", "note": "x"})
    other = await ask(world.app, "k1", {"amount": 9999, "currency": "eur", "memo": "y"})
    assert other.json()["fields"] == ["amount", "memo", "note"]
    assert b"1299" not in other.body


async def test_websockets_pass_through() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    guarded = IdempotencyMiddleware(app, store=MemoryStore(), tenant=tenant_of)
    await guarded({"type": "websocket"}, None, None)  # type: ignore[arg-type]
    assert seen == ["websocket"]


# ------------------------------------------------------------------- status query


async def test_e66_a_client_may_ask_what_became_of_its_key() -> None:
    world = World(status_path="/idempotency")
    world.handler, started, go_on = held(world)
    first = asyncio.ensure_future(ask(world.app, "k1"))
    await started.wait()

    async def status(key: str, account: bytes = b"acme") -> Reply:
        return await ask(
            world.app,
            key,
            b"",
            method="GET",
            path="/idempotency",
            query=b"operation=POST%20/orders",
            headers=[(b"x-account", account)],
        )

    assert (await status("k1")).json()["state"] == "running"
    go_on.set()
    await first
    told = (await status("k1")).json()
    assert (told["state"], told["status"]) == ("completed", 201)
    assert (await status("k2")).kind == "key-not-found"
    assert (await status("k1", b"mallory")).kind == "key-not-found"
    assert (await status("null")).kind == "invalid-key"


async def test_e66_the_status_query_needs_to_know_the_operation() -> None:
    world = World(status_path="/idempotency")
    reply = await ask(world.app, "k1", b"", method="GET", path="/idempotency")
    assert (reply.status, reply.kind) == (400, "malformed-request")


async def test_e66_the_status_query_is_one_also_where_requests_of_its_method_are_guarded() -> None:
    world = World(status_path="/idempotency", routes={"GET /report": Policy()})
    await ask(world.app, "k1")
    at: dict[str, Any] = {"path": "/idempotency", "query": b"operation=POST%20/orders"}
    assert (await ask(world.app, "k1", b"", method="GET", **at)).json()["state"] == "completed"
    assert (await ask(world.app, "k1", b"", method="OPTIONS", **at)).status == 201  # its own
    assert world.runs == 2


async def test_e66_the_status_query_says_when_the_store_is_down() -> None:
    world, store = flaky_world(status_path="/idempotency")
    store.before = [down(False)] * 4
    query = b"operation=POST%20/orders"
    told = await ask(world.app, "k1", b"", method="GET", path="/idempotency", query=query)
    assert (told.status, told.kind) == (503, "store-unavailable")


async def test_e66_the_status_query_compares_keys_as_the_profile_does() -> None:
    profile = oncekey.PROFILES["oncekey"].derive(name="folding", case_insensitive=True)
    world = World(status_path="/idempotency", profile=profile)
    await ask(world.app, "Key-1")
    query = b"operation=POST%20/orders"
    told = await ask(world.app, "KEY-1", b"", method="GET", path="/idempotency", query=query)
    assert told.json()["state"] == "completed"


async def test_others_can_look_at_what_became_of_a_key_without_claiming_it() -> None:
    """P7: a rate limiter that stands outside asks before anything is spent."""
    world = World(routes={"POST /orders": Policy(scope="tenant")})

    async def look(key: str | None, account: bytes = b"acme", method: str = "POST") -> str | None:
        lines = [(b"x-account", account), *([(b"idempotency-key", key.encode())] if key else [])]
        return await world.app.state_of(scope_for(method, "/orders", lines))

    world.handler, started, go_on = held(world)
    assert await look("k1") is None
    assert world.stored() == 0
    first = asyncio.ensure_future(ask(world.app, "k1"))
    await started.wait()
    assert await look("k1") == "running"
    go_on.set()
    await first
    assert await look("k1") == "completed"
    assert await look("k1", b"mallory") is None
    assert await look("k1", method="GET") is None
    assert await look("null") is None
    assert await look(None) is None
    assert (world.stored(), world.runs) == (1, 1)


async def test_a_look_while_the_store_is_down_says_so() -> None:
    world, store = flaky_world()
    store.before = [down(False)] * 4
    with pytest.raises(oncekey.StoreUnavailable):
        await world.app.state_of(scope_for("POST", "/orders", [(b"idempotency-key", b"k1")]))


# ------------------------------------------------------------------- misuse


def test_a_tenant_is_required() -> None:
    with pytest.raises(TypeError, match="tenant"):
        IdempotencyMiddleware(inner_lifespan, store=MemoryStore())  # type: ignore[call-arg]
    with pytest.raises(oncekey.Misuse, match="single_tenant"):
        IdempotencyMiddleware(inner_lifespan, store=MemoryStore(), tenant="acme")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"store": None}, "a store is named by its URL"),
        ({"policy": {"required": True}}, "policy=… takes an oncekey.Policy"),
        ({"routes": {"POST /orders": {"required": True}}}, "takes an oncekey.Policy"),
        ({"quota": {"records_max": 3}}, "quota=… takes an oncekey.Quota"),
        ({"routes": {7: Policy()}}, "write a route as"),
        ({"atomic": "default"}, "takes an adapter"),
        ({"status_path": "idempotency"}, "paths begin with a slash"),
        ({"status_path": True}, "paths begin with a slash"),
        ({"recent_s": "5"}, "recent_s='5': must be a number of seconds"),
        ({"drain_s_max": "30"}, "drain_s_max='30': must be a number of seconds"),
    ],
)
def test_a_setting_of_the_wrong_kind_is_refused_before_the_first_request(
    setting: dict[str, Any], said: str
) -> None:
    settings: dict[str, Any] = {"store": MemoryStore(), "tenant": tenant_of} | setting
    with pytest.raises(oncekey.Misuse, match=said):
        IdempotencyMiddleware(inner_lifespan, **settings)
    if not setting.keys() & {"status_path", "recent_s", "drain_s_max"}:  # which it has not
        with pytest.raises(oncekey.Misuse, match=said):
            Oncekey(**settings)


async def test_a_tenant_must_be_a_string() -> None:
    world = World(tenant=lambda request: 42)
    with pytest.raises(oncekey.Misuse, match="must return a str"):
        await ask(world.app, "k1")
    assert world.stored() == 0


def test_start_says_which_operations_run_again(caplog: pytest.LogCaptureFixture) -> None:
    world = World(routes={"POST /payments": Policy(recovery="block")})
    with caplog.at_level(logging.WARNING, "oncekey"):
        world.app.edge.start()
        world.app.edge.start()
    world.app.edge.stop()
    assert len(caplog.records) == 1
    assert "any other route" in caplog.text
    assert "/payments" not in caplog.text


def test_start_says_any_route_where_none_is_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with caplog.at_level(logging.WARNING, "oncekey"):
        world.app.edge.start()
    world.app.edge.stop()
    assert "any route." in caplog.text
