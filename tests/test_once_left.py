"""`@once` whose caller is cancelled, forked or gone: what was begun ends, or is finished later."""

from __future__ import annotations

import asyncio
import enum
import json
import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import oncekey
from oncekey import InFlight, Policy, Runtime, StoreUnavailable, once
from oncekey._core.record import State
from oncekey._core.verbs import Requested
from oncekey._engine.recovery import Ending, Recoverer
from tests.once_world import END_S_MAX, World, world
from tests.stores.unreliable import Slow, Unheard

__all__ = ["world"]


# ----------------------------------------------------------------- cancelled, in threads, forked


async def test_cancelling_the_caller_does_not_stop_the_work(world: World) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    @once(world.runtime, key="{x}")
    async def pay(x: str) -> str:
        begun.set()
        await end.wait()
        return "paid"

    caller = asyncio.create_task(pay("a"))
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    with pytest.raises(InFlight):
        await asyncio.wait_for(pay("a"), 5)
    end.set()
    assert await world.runtime.background.drain(END_S_MAX) == 0
    assert await pay("a") == "paid"


async def test_what_fails_after_its_caller_left_is_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    @once(world.runtime, key="{x}")
    async def pay(x: str) -> str:
        begun.set()
        await end.wait()
        raise ConnectionError("no answer")

    caller = asyncio.create_task(pay("a"))
    await begun.wait()
    caller.cancel()
    await asyncio.wait([caller])
    end.set()
    await world.runtime.background.drain(END_S_MAX)
    assert "after its caller had left" in caplog.text
    assert "no answer" in caplog.text


class Empty(Exception):
    """One that is false, as those are that hold a list of errors and hold none."""

    def __len__(self) -> int:
        return 0


async def test_p11_an_exception_that_is_false_reaches_its_caller(world: World) -> None:
    @once(world.runtime, key="{x}")
    async def pay(x: str) -> str:
        raise Empty

    with pytest.raises(Empty):
        await asyncio.wait_for(pay("a"), END_S_MAX)


@pytest.mark.parametrize("awaited", [True, False])
async def test_p6_a_call_that_was_cut_off_under_block_is_not_renewed_any_more(
    world: World, awaited: bool
) -> None:
    """It lapses, and then its outcome is unknown; renewed, it would be in flight for ever."""
    policy = Policy(recovery="block")

    @once(world.runtime, key="{x}", policy=policy)
    async def pay(x: str) -> str:
        raise asyncio.CancelledError

    @once(world.runtime, key="{x}", policy=policy)
    def pay_blocking(x: str) -> str:
        raise SystemExit(1)

    if awaited:
        with pytest.raises(asyncio.CancelledError):
            await pay("a")
    else:
        with pytest.raises(SystemExit):
            pay_blocking("a")
    assert world.runtime.heartbeat._schedule.next_at() is None


async def test_p7_a_call_cancelled_while_it_begins_forgets_its_claim(world: World) -> None:
    store = Slow(world.clock)
    async with Runtime(store, clock=world.clock) as runtime:

        @once(runtime, key="{x}", name="f")
        async def pay(x: str) -> str:
            return "paid"

        caller = asyncio.create_task(pay("a"))
        await store.inserted.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        store.answers.set()
        await runtime.background.drain(END_S_MAX)
        assert await pay("a") == "paid"


@pytest.mark.parametrize("awaited", [True, False])
async def test_p7_a_claim_whose_reply_was_lost_is_released(world: World, awaited: bool) -> None:
    store = Unheard(world.clock)
    async with Runtime(store, clock=world.clock) as runtime:

        async def waits(x: str) -> str:
            return "paid"

        def blocks(x: str) -> str:
            return "paid"

        async def pay() -> str:
            guarded = once(runtime, key="{x}", name="f")
            if awaited:
                return await guarded(waits)("a")
            return await asyncio.to_thread(guarded(blocks), "a")

        with pytest.raises(StoreUnavailable):
            await pay()
        assert await asyncio.to_thread(store.given_back.wait, END_S_MAX)
        store.heard = True
        assert await pay() == "paid"


def test_p1_many_threads_one_run(world: World) -> None:
    barrier = threading.Barrier(16)
    outcomes: list[str] = []

    def pay(x: str) -> str:
        return "paid"

    guarded = world.once(pay)

    def call() -> None:
        barrier.wait()
        try:
            outcomes.append(guarded("a"))
        except InFlight:
            outcomes.append("in flight")

    callers = [threading.Thread(target=call) for _ in range(16)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(END_S_MAX)
    assert len(outcomes) == 16
    assert set(outcomes) <= {"paid", "in flight"}
    assert len(world.runs) == 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_p1_forked_workers_share_one_run(tmp_path: Path) -> None:
    """The runtime was used before the fork: its threads and connections are the parent's."""
    ledger = tmp_path / "ledger"
    policy = Policy(in_flight="wait", wait_s=END_S_MAX)
    with Runtime(f"sqlite:///{tmp_path / 'keys.db'}") as runtime:

        @once(runtime, key="{x}", policy=policy)
        def pay(x: str) -> int:
            with open(ledger, "a") as file:
                file.write(f"{x}\n")
            return os.getpid()

        def work() -> None:
            pids.put([pay("a"), pay("a"), pay("before")])

        assert pay("before") == os.getpid()
        fork = multiprocessing.get_context("fork")
        pids = fork.SimpleQueue()
        workers = [fork.Process(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(END_S_MAX)
        assert pay("before") == os.getpid()
        seen = [pids.get() for _ in workers]
    assert len({tuple(one) for one in seen}) == 1
    assert seen[0][0] in [worker.pid for worker in workers]
    assert seen[0][2] == os.getpid()
    assert sorted(ledger.read_text().split()) == ["a", "before"]


# ------------------------------------------------------------------------------ without a caller


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_p6_a_call_nobody_comes_back_for_is_finished(world: World, kind: str) -> None:
    def ship(x: str, *, express: bool = False) -> Any:
        attempt = oncekey.current()
        return [x, express, attempt.recovering, attempt.attempt]

    async def ship_async(x: str, *, express: bool = False) -> Any:
        return ship(x, express=express)

    function = ship if kind == "sync" else ship_async
    guarded = once(world.runtime, key="{x}", name="f", policy=Policy(recovery="resume"))(function)
    with world.death():
        await _awaited(guarded("a", express=True))
    endings: list[Ending] = []
    recoverer = Recoverer(
        world.store, clock=world.clock, report=lambda one: endings.append(one.ending)
    )
    await recoverer.round()
    await recoverer.settle()

    assert endings == [Ending.FINISHED]
    found = world.look("a")
    assert found
    assert found.answer
    assert json.loads(found.answer.body or b"") == ["a", True, True, 2]


async def test_p6_a_call_whose_key_cannot_be_made_any_more_becomes_unknown(world: World) -> None:
    """A new release reads another field of what was kept: its error must not be the end of it."""
    deployed = ["id"]
    guarded = world.once(
        lambda x: x, lambda x: x[deployed[-1]], policy=Policy(recovery="resume", lapses_max=1)
    )
    with world.death():
        guarded({"id": "a"})
    deployed.append("number")
    recoverer = Recoverer(world.store, clock=world.clock)
    for _ in range(3):
        await recoverer.round()
        await recoverer.settle()
        world.clock.advance(3600)
    found = world.look("a")
    assert found
    assert found.state is State.UNKNOWN


class Size(enum.StrEnum):
    LARGE = "a"


@pytest.mark.parametrize("x", [("a", 1), [Size.LARGE], {0: "a"}])
async def test_what_json_does_not_give_back_is_not_kept(world: World, x: Any) -> None:
    """Nobody may call it again with something else: it is left to its caller."""
    guarded = world.once(lambda x: x[0], "{x[0]}", policy=Policy(recovery="resume"))
    with world.death():
        guarded(x)
    record = world.look("a")
    assert record
    assert world.runtime.gatherer.ask(Requested(record.id)) is None
    assert guarded(x) == "a"


async def _awaited(result: Any) -> Any:
    return await result if asyncio.iscoroutine(result) else result
