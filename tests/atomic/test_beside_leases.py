"""Atomic mode beside leased operations: those before it, after it, and at the same time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from oncekey import current
from oncekey._core.endings import End
from oncekey._core.policy import Learned, Policy
from oncekey._core.record import Answer, State
from oncekey._engine.guard import Execute
from oncekey._engine.runtime import Runtime
from oncekey._system.clock import SystemClock
from oncekey.testing.contract.times import CLOCKS_S
from tests.atomic.shop import (
    AT_ONCE_S,
    LEASE_S,
    Opener,
    Shop,
    call,
    claim_leased,
    finish,
    kinds_as_params,
    new_key,
    opener,
    shop,
)

__all__ = ["opener", "shop"]

pytestmark = pytest.mark.anyio


# ------------------------------------------------------------------ beside leased operations


async def test_a_released_record_runs_again(shop: Shop) -> None:
    key = new_key()
    async with claim_leased(shop, key) as (runtime, attempt):
        await finish(runtime, attempt, End.FAILED)
    assert (await shop.order(key)).status == 201
    found = shop.look(key)
    assert found is not None
    assert (found.state, found.attempt, found.lapses) == (State.COMPLETED, 2, 0)
    assert found.fence > attempt.fence
    assert (await shop.order(key)).replayed
    assert shop.orders() == 1


async def test_a_released_record_stays_as_it_was_if_the_handler_fails(shop: Shop) -> None:
    key = new_key()
    async with claim_leased(shop, key) as (runtime, attempt):
        await finish(runtime, attempt, End.FAILED)
    assert (await shop.order(key, status=500)).kind == "mismatch"
    with pytest.raises(RuntimeError):
        await fail(shop, key)
    found = shop.look(key)
    assert found is not None
    assert (found.state, found.fence, found.attempt) == (State.RELEASED, attempt.fence, 1)
    assert shop.orders() == 0


async def fail(shop: Shop, key: str) -> None:
    def fails() -> None:
        raise RuntimeError("the handler failed")

    shop.during = fails
    await shop.order(key)


async def test_p6_a_lapsed_lease_is_taken_over_within_the_transaction(shop: Shop) -> None:
    key = new_key()
    async with claim_leased(shop, key) as (runtime, attempt):
        assert (await shop.order(key)).kind == "in-flight"
        shop.place.elapse(LEASE_S)
        assert (await shop.order(key)).status == 201
        await finish(runtime, attempt, End.KEPT)  # too late
    found = shop.look(key)
    assert found is not None
    assert (found.state, found.attempt, found.lapses) == (State.COMPLETED, 2, 1)
    assert found.answer is not None
    assert found.answer.body == b"run 1"


async def test_a_lapsed_lease_of_a_blocked_operation_becomes_unknown(shop: Shop) -> None:
    key = new_key()
    async with claim_leased(shop, key, recovery="block"):
        shop.place.elapse(LEASE_S)
        assert (await shop.order(key)).kind == "outcome-unknown"
        assert (await shop.order(key)).kind == "outcome-unknown"
    assert shop.runs == shop.orders() == 0


@pytest.mark.parametrize("kind", kinds_as_params("asyncpg", "sqlite3", "psycopg"))
async def test_what_is_found_not_to_be_done_runs_within_the_transaction(
    opener: Opener, kind: str
) -> None:
    key, asks = new_key(), {"recovery": "ask", "ask": lambda attempt: Learned.NOT_DONE}
    async with opener(kind, **asks) as shop, claim_leased(shop, key, **asks):
        shop.place.elapse(LEASE_S)
        assert (await shop.order(key)).status == 201
        assert (await shop.order(key)).replayed
        assert shop.runs == shop.orders() == 1


@pytest.mark.parametrize("kind", kinds_as_params("asyncpg", "sqlite3", "psycopg"))
async def test_what_a_handler_wrote_that_cannot_tell_is_rolled_back_and_asked_about(
    opener: Opener, kind: str
) -> None:
    key, asks = new_key(), {"recovery": "ask", "ask": lambda attempt: Learned.NOT_DONE}
    async with opener(kind, **asks) as shop:
        shop.during = lambda: current().unknown()
        await shop.order(key)
        assert (shop.runs, shop.orders()) == (1, 0)
        found = shop.look(key)
        assert found is not None
        assert (found.state, found.lapsed) == (State.RUNNING, True)
        shop.during = lambda: None
        assert (await shop.order(key)).status == 201  # at once
        assert (await shop.order(key)).replayed
        assert (shop.runs, shop.orders()) == (2, 1)


async def test_an_expired_answer_is_forgotten(shop: Shop) -> None:
    key = new_key()
    await shop.order(key)
    shop.place.elapse(100_000)
    assert (await shop.order(key)).body == b"run 2"
    assert (await shop.order(key)).replayed
    found = shop.look(key)
    assert found is not None
    assert (found.attempt, found.lapses) == (1, 0)


@pytest.mark.parametrize("kind", kinds_as_params("asyncpg", "sqlite3", "asyncmy"))
async def test_p3_what_is_committed_with_its_record_does_not_expire_before_its_time(
    opener: Opener, kind: str
) -> None:
    """Where the store counts coarsely, one of so many would."""
    retention_s, tombstone_s = 300.0, 600.0
    async with opener(kind, retention_s=retention_s, tombstone_s=tombstone_s) as shop:
        for key in [new_key() for _ in range(20)]:
            began_s = SystemClock.monotonic()
            assert (await shop.order(key)).status == 201
            found = shop.look(key)
            passed_s = SystemClock.monotonic() - began_s
            assert found is not None
            assert found.expires_in_s >= retention_s + tombstone_s - passed_s - CLOCKS_S


@pytest.mark.parametrize("kind", kinds_as_params("asyncpg", "asyncmy"))
async def test_p2_a_leased_claim_of_the_same_key_is_not_blocked_and_wins(
    opener: Opener, kind: str
) -> None:
    """During a deployment some processes may not know atomic mode yet: of both handlers that ran,
    only the rows of one are there.
    """
    key = new_key()
    async with opener(kind) as shop:
        order = asyncio.create_task(shop.order(key, stand=True))
        await shop.gate.wait()
        started = time.monotonic()
        runtime = Runtime(shop.place.url)
        same = call(key, b'{"stand": true}')
        decision = await runtime.drive(runtime.guard.begin(same, Policy().settled()))
        assert isinstance(decision, Execute)
        assert time.monotonic() - started < AT_ONCE_S
        shop.gate.opened.set()
        assert (await order).kind == "in-flight"
        assert shop.orders() == 0
        await finish(runtime, decision.attempt, End.KEPT)
        await runtime.aclose()
        assert (await shop.order(key, stand=True)).body == b"leased"


@pytest.mark.parametrize("kind", kinds_as_params("asyncpg", "asyncmy"))
async def test_p2_a_take_over_meanwhile_wins(opener: Opener, kind: str) -> None:
    """Both found the lapsed record; the leased one took it first, the atomic one rolls back."""
    key = new_key()
    async with opener(kind) as shop, claim_leased(shop, key):
        shop.place.elapse(LEASE_S)
        write = shop.write

        async def write_and_be_overtaken(connection: Any) -> None:
            await write(connection)
            async with claim_leased(shop, key) as (runtime, attempt):
                await finish(runtime, attempt, End.KEPT)

        shop.write = write_and_be_overtaken
        reply = await shop.order(key)
        assert (reply.status, reply.body, reply.replayed) == (202, b"leased", True)
        assert shop.orders() == 0


@pytest.mark.parametrize("kind", kinds_as_params("asyncpg", "asyncmy"))
async def test_others_go_on_while_an_atomic_one_runs(opener: Opener, kind: str) -> None:
    key = new_key()
    async with opener(kind) as shop:
        order = asyncio.create_task(shop.order(key, stand=True))
        await shop.gate.wait()
        started = time.monotonic()
        runtime = Runtime(shop.place.url)

        async def one() -> None:
            mine = call(new_key())
            decision = await runtime.drive(runtime.guard.begin(mine, Policy().settled()))
            assert isinstance(decision, Execute)
            await runtime.drive(
                runtime.guard.ownership.conclude(decision.attempt, End.KEPT, Answer(200), mine)
            )

        async def duplicate() -> None:
            assert (await shop.order(key, stand=True)).kind == "in-flight"

        async def another() -> None:
            assert (await shop.order(new_key())).status == 201

        beside = (*(duplicate() for _ in range(20)), *(another() for _ in range(5)))
        await asyncio.gather(*(one() for _ in range(40)), *beside)
        assert time.monotonic() - started < AT_ONCE_S
        await runtime.aclose()
        shop.gate.opened.set()
        assert (await order).status == 201


@pytest.mark.parametrize("kind", kinds_as_params("asyncpg", "sqlite3", "asyncmy"))
async def test_whoever_waits_gets_the_answer(opener: Opener, kind: str) -> None:
    key = new_key()
    async with opener(kind, in_flight="wait", wait_s=20, atomic_s_max=9) as shop:
        first = asyncio.create_task(shop.order(key, stand=True))
        await shop.gate.wait()
        second = asyncio.create_task(shop.order(key, stand=True))
        await asyncio.sleep(0.05)
        assert not second.done()
        shop.gate.opened.set()
        assert (await first).body == (await second).body == b"run 1"
        assert (await second).replayed
