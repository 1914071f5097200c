"""The ASGI middleware, message by message, on the memory store with a clock that is driven."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import oncekey
from oncekey import Policy
from oncekey._core.record import State
from oncekey._core.validation import OPERATION_CHARS_MAX
from oncekey._core.verbs import Scan
from oncekey._system import clock
from oncekey.events import OutcomeUnknown
from oncekey.stores.batching import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.web._replay_cache import RECENT_S
from oncekey.web.asgi import IdempotencyMiddleware
from oncekey.web.flask import Oncekey
from tests.clocks import set_clock
from tests.web.asgi_world import World, counted, held, inner_lifespan, tenant_of
from tests.web.client import Reply, ask

pytestmark = pytest.mark.anyio


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


@pytest.mark.parametrize("account", [b"a" * 1_001, b"nul\0", b"\xed\xa0\x80"])
async def test_p7_a_tenant_that_no_store_can_keep_is_refused(account: bytes) -> None:
    world = World(
        tenant=lambda request: request.headers.lines[-1][1].decode("utf-8", "surrogatepass")
    )
    reply = await ask(world.app, "k1", headers=[(b"x-account", account)])
    assert reply.status == 400
    assert b"account" in reply.body
    assert (world.runs, world.stored()) == (0, 0)


async def test_p11_a_path_that_no_store_can_keep_is_refused() -> None:
    """Where a template names the operation, its length does not matter."""
    world = World(routes={"POST /notes/{text}": Policy()})
    path = "/" + "é" * OPERATION_CHARS_MAX
    assert (await ask(world.app, "k1", path=path)).kind == "malformed-request"
    assert (world.runs, world.stored()) == (0, 0)
    assert (await ask(world.app, "k1", path=f"/notes{path}")).status == 201


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
    set_clock(world.app.edge.guard, clock.SystemClock())
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
    set_clock(world.app.edge.guard, clock.SystemClock())
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


async def test_p2_of_an_answer_too_large_to_keep_a_stale_owner_sends_nothing_either() -> None:
    world = World(policy=Policy(lease_s=10, answer_bytes_max=100))

    async def handler(receive: Any, send: Any) -> None:
        world.clock.advance(11)
        world.handler = world.counting()
        await ask(world.app, "k1")
        await world.answer_with(b"x" * 1000, parts=5)(receive, send)

    world.handler = handler
    stale = await ask(world.app, "k1")
    assert (stale.json(), stale.replayed) == ({"run": 2}, True)


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
    with pytest.raises(oncekey.Misuse, match="outside a guarded application"):
        oncekey.current()


# ------------------------------------------------------------------- misuse


def test_a_tenant_is_required() -> None:
    with pytest.raises(oncekey.Misuse, match="needs tenant="):
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
    assert caplog.text.count("if a process dies") == 1
    assert "any other route" in caplog.text
    assert "/payments" not in caplog.text


def test_start_says_any_route_where_none_is_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with caplog.at_level(logging.WARNING, "oncekey"):
        world.app.edge.start()
    world.app.edge.stop()
    assert "any route." in caplog.text
