"""The recoverer: what was abandoned is finished without its client, by one owner, or said to be
unknown.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from oncekey import Policy, events
from oncekey._core.policy import Learned
from oncekey._core.record import State
from oncekey._core.verbs import Requested
from oncekey._engine.guard import Execute
from oncekey._engine.recovery import Ending
from oncekey._engine.registry import Orphan
from oncekey.web import asgi
from oncekey.web._kept_request import decode, encode
from oncekey.web._recovery import AsgiRunner
from tests.once_world import World, world
from tests.orphans import LEASE_S, TENANT, Service, Shop, nobody, service

__all__ = ["world"]

KINDS = ["asgi", "wsgi"]


# ------------------------------------------------------------------------------- it is finished


@pytest.mark.parametrize("kind", KINDS)
async def test_p6_an_orphan_is_finished_without_its_client(kind: str) -> None:
    shop = Shop()
    shopping = service(shop, kind)
    orphan = shopping.abandon("order-1", {"amount": 7}, authorise="done before")

    assert await shopping.recover() == [(Ending.FINISHED, "status 201")]

    record = shopping.look(orphan)
    assert record.state is State.COMPLETED
    assert record.answer is not None
    assert record.answer.body == b'{"paid": true}'
    assert (record.attempt, record.lapses) == (2, 1)
    assert shop.effects == ["capture"]  # the other step was kept by the attempt that died
    [run] = shop.runs
    assert run["body"] == {"amount": 7}
    assert (run["tenant"], run["key"], run["attempt"]) == (TENANT, "order-1", 2)
    assert run["recovering"]
    assert run["headers"]["idempotency-key"] == "order-1"
    assert not shopping.edge.runtime.start(), "housekeeping has begun here too"


@pytest.mark.parametrize("kind", KINDS)
async def test_p12_credentials_are_not_kept(kind: str) -> None:
    shop = Shop()
    shopping = service(shop, kind)
    secrets = [
        *((b"authorization", b"Bearer hunter2"), (b"cookie", b"s=hunter2")),
        *((b"proxy-authorization", b"hunter2"), (b"x-api-key", b"hunter2")),
        *((b"x-auth-token", b"hunter2"), (b"x-session-id", b"hunter2"), (b"x-csrf", b"hunter2")),
    ]
    orphan = shopping.begin("k", {}, headers=[*secrets, (b"x-currency", b"EUR")]).held.id
    kept = shopping.ask(Requested(orphan))
    shopping.clock.advance(LEASE_S)
    await shopping.recover()

    assert b"hunter2" not in kept
    assert shop.runs[0]["headers"]["x-currency"] == "EUR"
    assert not any("hunter2" in content for content in shop.runs[0]["headers"].values())
    assert shopping.ask(Requested(orphan)) is None  # it has ended: its request is gone


async def test_what_is_not_lapsed_is_left_alone() -> None:
    shop = Shop()
    shopping = service(shop)
    running = shopping.begin("k", {}).held.id
    shopping.clock.advance(LEASE_S - 0.1)

    assert await shopping.recover() == []
    assert shopping.look(running).state is State.RUNNING
    assert shop.runs == []


async def test_what_only_a_retry_runs_again_is_left_to_it() -> None:
    shopping = service(Shop(), recovery="rerun")
    orphan = shopping.abandon()

    assert await shopping.recover() == []
    assert shopping.look(orphan).lapsed


# ------------------------------------------------------------------------------------ one owner


async def race(shopping: Service, monkeypatch: pytest.MonkeyPatch) -> list[Ending]:
    """What two recoverers say of one orphan, if the first to look is the last to act."""
    first, late, recover = shopping.recoverer(), shopping.recoverer(), AsgiRunner.recover

    async def overtaken(runner: AsgiRunner, orphan: Orphan) -> bool:
        monkeypatch.undo()
        await first.round()
        await first.settle()
        return await recover(runner, orphan)

    monkeypatch.setattr(AsgiRunner, "recover", overtaken)
    await late.round()
    await late.settle()
    return [recovered.ending for recovered in shopping.endings]


async def test_p1_who_comes_too_late_has_finished_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop()
    shopping = service(shop)
    shopping.abandon()

    assert await race(shopping, monkeypatch) == [Ending.FINISHED, Ending.TAKEN]
    assert len(shop.runs) == 1


async def test_who_comes_too_late_does_not_say_that_it_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shopping = service(Shop(), recovery="ask", ask=lambda attempt: Learned.UNKNOWN)
    shopping.abandon()

    assert await race(shopping, monkeypatch) == [Ending.UNKNOWN, Ending.TAKEN]


async def test_p1_three_recoverers_at_once_have_one_owner() -> None:
    shop = Shop()
    shopping = service(shop)
    orphans = [shopping.abandon(f"k{n}") for n in range(20)]
    recoverers = [shopping.recoverer() for _ in range(3)]

    await asyncio.gather(*(recoverer.round() for recoverer in recoverers))
    await asyncio.gather(*(recoverer.settle() for recoverer in recoverers))

    assert sorted(run["key"] for run in shop.runs) == sorted(f"k{n}" for n in range(20))
    assert all(shopping.look(orphan).state is State.COMPLETED for orphan in orphans)
    endings = [recovered.ending for recovered in shopping.endings]
    assert endings.count(Ending.FINISHED) == 20
    assert set(endings) <= {Ending.FINISHED, Ending.TAKEN}


async def test_p6_a_recoverer_that_died_is_succeeded_by_another() -> None:
    shop = Shop()
    shopping = service(shop)
    orphan = shopping.abandon()
    record = shopping.look(orphan)
    call, policy = shopping.call("k", {}, "/pay", ())
    taken = shopping.edge.runtime.drive_sync(shopping.edge.guard.take_up(record, call, policy, 0.0))
    assert isinstance(taken, Execute)
    assert taken.attempt.recovering

    assert await shopping.recover() == []  # the lease of the dead one still runs
    shopping.clock.advance(LEASE_S)
    assert await shopping.recover() == [(Ending.FINISHED, "status 201")]
    assert shopping.look(orphan).lapses == 2
    assert len(shop.runs) == 1


async def test_p2_a_client_that_comes_back_meanwhile_is_not_disturbed() -> None:
    """The record was read as lapsed; before the take-over, its client's retry had taken it."""
    shop = Shop()
    shopping = service(shop)
    orphan = shopping.abandon()
    seen = shopping.look(orphan)
    shopping.begin("k", {})  # the retry takes over
    call, policy = shopping.call("k", {}, "/pay", ())

    taken = shopping.edge.runtime.drive_sync(shopping.edge.guard.take_up(seen, call, policy, 0.0))

    assert taken is None
    assert shopping.look(orphan).attempt == 2


@pytest.mark.parametrize("how", ["runs", "released", "expired"])
async def test_p1_nothing_is_taken_up_that_is_not_abandoned(how: str) -> None:
    """A released record waits for its client, and one that expired for nobody."""
    shopping = service(Shop(), retention_s=60.0)
    attempt = shopping.begin("k", {})
    if how == "released":
        shopping.edge.runtime.drive_sync(
            shopping.edge.guard.ownership.abandon(attempt, no_effect=False)
        )
    if how == "expired":
        shopping.clock.advance(LEASE_S + 60.0)
    before = shopping.look(attempt.held.id)
    call, policy = shopping.call("k", {}, "/pay", ())

    taken = shopping.edge.runtime.drive_sync(shopping.edge.guard.take_up(before, call, policy, 0.0))

    assert taken is None
    assert shopping.look(attempt.held.id) == before


# ------------------------------------------------------------------------------ it is not done


@pytest.mark.parametrize("kind", KINDS)
async def test_a_failed_recovery_is_left_to_lapse_until_it_is_worn_out(kind: str) -> None:
    """Released, nobody would ever finish it."""
    shop = Shop(failure=RuntimeError("the provider is down"))
    shopping = service(shop, kind, lapses_max=4)
    orphan = shopping.abandon()
    failed = (Ending.FAILED, "RuntimeError: the provider is down")

    assert await shopping.recover() == [failed]
    assert shopping.look(orphan).state is State.RUNNING
    assert await shopping.recover() == []  # not before its lease is over
    shopping.clock.advance(LEASE_S)
    assert await shopping.recover() == [failed]
    shopping.clock.advance(LEASE_S)
    assert await shopping.recover() == [failed]
    shopping.clock.advance(LEASE_S)
    assert await shopping.recover() == [(Ending.UNKNOWN, "it died too often")]
    assert shopping.look(orphan).state is State.UNKNOWN
    assert len(shop.runs) == 3
    [unknown] = [event for event in shopping.events if isinstance(event, events.OutcomeUnknown)]
    assert unknown.lapses == 4


@pytest.mark.parametrize("status", [500, 503, 429, 409])
async def test_an_answer_that_may_pass_is_a_failure(status: int) -> None:
    shop = Shop(status=status)
    shopping = service(shop)
    orphan = shopping.abandon()

    assert await shopping.recover() == [(Ending.FAILED, "it was not done")]
    assert shopping.look(orphan).state is State.RUNNING
    shop.status = 201
    shopping.clock.advance(LEASE_S)
    assert await shopping.recover() == [(Ending.FINISHED, "status 201")]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_refusal_would_stay_one(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever authenticates inside the handler is told how to let the recoverer in."""
    shopping = service(Shop(status=401), kind)
    orphan = shopping.abandon()

    [(ending, _)] = await shopping.recover()

    assert ending is Ending.UNKNOWN
    assert shopping.look(orphan).state is State.UNKNOWN
    assert "refused with status 401" in caplog.text
    assert "oncekey.current().recovering" in caplog.text
    assert f"oncekey resolve {orphan.hex()[:16]}" in caplog.text


async def test_a_kept_client_error_is_an_answer() -> None:
    shopping = service(Shop(status=402))
    orphan = shopping.abandon()

    assert await shopping.recover() == [(Ending.FINISHED, "status 402")]
    assert shopping.look(orphan).state is State.COMPLETED


async def test_blocked_operations_become_unknown() -> None:
    shop = Shop()
    shopping = service(shop, recovery="block", unknown_retention_s=1234.0)
    orphan = shopping.abandon()

    [(ending, reason)] = await shopping.recover()

    assert (ending, reason) == (Ending.UNKNOWN, "its process died, and it must not be repeated")
    record = shopping.look(orphan)
    assert (record.state, record.expires_in_s) == (State.UNKNOWN, 1234.0)
    assert shop.runs == []
    assert any(isinstance(event, events.OutcomeUnknown) for event in shopping.events)


async def test_p1_of_two_that_declare_it_unknown_one_does() -> None:
    shopping = service(Shop(), recovery="block")
    shopping.abandon()
    recoverers = [shopping.recoverer() for _ in range(2)]
    for act in ("round", "settle"):
        await asyncio.gather(*(getattr(recoverer, act)() for recoverer in recoverers))

    endings = [recovered.ending for recovered in shopping.endings]
    assert endings == [Ending.UNKNOWN, Ending.TAKEN]
    told = [event for event in shopping.events if isinstance(event, events.OutcomeUnknown)]
    assert len(told) == 1


async def test_what_a_newer_release_wrote_is_left_to_it() -> None:
    shop = Shop()
    shopping = service(shop)
    orphan = shopping.abandon()
    row = shopping.store._rows[orphan]
    row.claim = dataclasses.replace(row.claim, fingerprint_version=99)

    assert await shopping.recover() == [(Ending.LEFT, "another release wrote it")]
    assert shopping.look(orphan).lapsed
    assert shop.runs == []


async def test_a_handler_that_is_not_registered_any_more(caplog: pytest.LogCaptureFixture) -> None:
    """Other services, and the next release, get their time before the outcome is unknown."""
    before = Shop()
    shopping = service(before, scope="tenant")
    orphan = shopping.abandon()
    after = service(Shop(), store=shopping.store, scope="operation")
    shopping.edge.runtime.registry._runners.pop(0)  # the old release is gone

    left = (Ending.LEFT, "no handler for it is registered here")
    assert await after.recover(patience_s=60.0) == [left]
    assert shopping.look(orphan).lapsed
    shopping.clock.advance(60.0)
    assert await after.recover(patience_s=60.0) == [(Ending.UNKNOWN, left[1])]
    assert shopping.look(orphan).state is State.UNKNOWN
    assert "nobody here can finish it" in caplog.text
    assert before.runs == []


async def test_an_application_beside_it_does_not_run_what_it_would_not_have_kept() -> None:
    """Two of them on one store: neither in this process nor in another may one spend the other's
    tries.
    """
    shop = Shop()
    shopping = service(shop, "asgi", recovery="resume")
    beside = asgi.IdempotencyMiddleware(not_found, store=shopping.store, tenant=nobody)
    shopping.abandon("k")

    assert [ending for ending, _ in await shopping.recover()] == [Ending.FINISHED]
    assert [run["attempt"] for run in shop.runs] == [2]
    await beside.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_p6_a_function_beside_an_application_is_finished_too(world: World, kind: str) -> None:
    """The application is asked first, and cannot read what was kept for the function."""
    guarded = world.once(lambda x: "shipped", policy=Policy(recovery="resume"))
    with world.death():
        guarded("a")
    shopping = service(Shop(), kind, world.store)

    assert await shopping.recover() == [(Ending.FINISHED, "status 200")]
    assert guarded("a") == "shipped"
    assert world.runs == [("a",)]


@pytest.mark.parametrize("body", [b'{"amount": 1, "amount": 2}', b'{"amount": '])
async def test_a_kept_request_that_would_be_refused_today_is_left(body: bytes) -> None:
    shop = Shop()
    shopping = service(shop)
    orphan = shopping.abandon("k")
    row = shopping.store._rows[orphan]
    kept = dataclasses.replace(decode(row.claim.request or b""), body=body)
    object.__setattr__(row.claim, "request", encode(kept))

    assert await shopping.recover() == [(Ending.LEFT, "no handler for it is registered here")]
    assert shop.runs == []


async def not_found(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b"no such route"})


async def test_a_request_that_is_too_large_is_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop()
    shopping = service(shop, request_kept_bytes_max=1000)
    orphan = shopping.abandon("k1", {"note": "x" * 1000})
    shopping.abandon("k2", {"note": "x" * 1000})

    assert caplog.text.count("request_kept_bytes_max=1000") == 1  # said once
    assert shopping.ask(Requested(orphan)) is None
    assert await shopping.recover() == [(Ending.LEFT, "its request was not kept")] * 2
    shopping.clock.advance(300.0)
    assert await shopping.recover() == [(Ending.UNKNOWN, "its request was not kept")] * 2
    assert shop.runs == []


async def test_p5_another_request_than_the_record_s_is_not_run() -> None:
    shop = Shop()
    shopping = service(shop)
    orphan = shopping.abandon("k", {"amount": 1})
    row = shopping.store._rows[orphan]
    other, _ = shopping.call("k", {"amount": 1_000_000}, "/pay", ())
    object.__setattr__(row.claim, "request", other.request)

    [(ending, _)] = await shopping.recover()

    assert ending is Ending.UNKNOWN
    assert shop.runs == []
