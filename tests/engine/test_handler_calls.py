"""Ports: what a handler's limits on time cut off, and what they do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import oncekey
from oncekey._core.endings import End
from oncekey._core.fingerprint import Fingerprint
from oncekey._core.op import Pause, arun
from oncekey._core.policy import Policy
from oncekey._core.verbs import AppendStep
from oncekey._engine.guard import Call, Execute, Guard
from oncekey._engine.handler_calls import Ports
from oncekey._engine.heartbeat import Heartbeat
from oncekey._system.clock import FakeClock
from oncekey.errors import Misuse, StepsChanged, StoreUnavailable
from oncekey.stores.batching import AsyncGatherer
from oncekey.stores.memory import MemoryStore

CALL = Call("acme", "POST /orders", "k1", Fingerprint(1, bytes(32)))
POLICY = Policy(recovery="resume").settled()


class World:
    """Attempts of one operation, in an event loop, whose steps are kept only when they may be."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.guard = Guard(clock=self.clock)
        self.gatherer = AsyncGatherer(self.store)
        self.asked, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.fails = False
        self.charged = 0

    async def ask(self, question: Any) -> Any:
        if isinstance(question, AppendStep):
            self.asked.set()
            await self.may_go_on.wait()
            if self.fails:
                raise StoreUnavailable("no reply")
        if type(question) is Pause:
            self.clock.advance(1.0)
            return None
        return await self.gatherer.ask(question)

    async def attempt(self) -> oncekey.Attempt:
        decision = await arun(self.guard.begin(CALL, POLICY), self.ask)
        assert isinstance(decision, Execute)
        heartbeat = Heartbeat(self.store, self.guard.ownership, self.clock)
        ask_sync: Callable[[Any], Any] = pytest.fail
        decision.attempt.ports = Ports(
            self.guard.ownership,
            self.store,
            heartbeat,
            ask=self.ask,
            ask_sync=ask_sync,
            forget=lambda claim: pytest.fail(repr(claim)),
        )
        return decision.attempt

    async def release(self, attempt: oncekey.Attempt) -> None:
        await arun(self.guard.ownership.conclude(attempt, End.FAILED, None, CALL), self.ask)

    def charge(self, amount: int = 1) -> str:
        self.charged += amount
        return f"charge {self.charged}"


async def cut_off(world: World, attempt: oncekey.Attempt) -> None:
    """Take a step, with a limit on time that ends while its result is being kept."""
    taking = asyncio.ensure_future(attempt.step("charge", world.charge))
    await world.asked.wait()
    taking.cancel()
    await asyncio.sleep(0)
    assert not taking.done()
    world.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await taking


async def test_a_step_that_was_taken_is_kept_although_its_time_is_over() -> None:
    world = World()
    attempt = await world.attempt()
    await cut_off(world, attempt)
    await world.release(attempt)

    again = await world.attempt()
    assert await again.step("charge", world.charge) == "charge 1"
    assert world.charged == 1


async def test_whoever_was_cut_off_may_ask_again_and_go_on() -> None:
    world = World()
    attempt = await world.attempt()
    await cut_off(world, attempt)

    assert await attempt.step("charge", world.charge) == "charge 1"
    assert world.charged == 1
    with pytest.raises(Misuse, match="taken twice"):
        await attempt.step("charge", world.charge)
    assert await attempt.step("mail", lambda: "sent") == "sent"


async def test_whoever_was_cut_off_is_not_given_the_result_of_other_arguments() -> None:
    world = World()
    attempt = await world.attempt()
    await cut_off(world, attempt)
    with pytest.raises(StepsChanged, match="with other arguments"):
        await attempt.step("charge", world.charge, 2)


async def test_a_step_that_could_not_be_kept_is_taken_anew() -> None:
    world = World()
    world.fails = True
    attempt = await world.attempt()
    await cut_off(world, attempt)

    world.fails = False
    assert await attempt.step("charge", world.charge) == "charge 2"


async def test_limits_that_cancel_again_and_again_are_outlasted() -> None:
    """As those of anyio do, until they are left."""
    world = World()
    attempt = await world.attempt()

    async def end(limit: anyio.CancelScope) -> None:
        await world.asked.wait()
        limit.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        world.may_go_on.set()

    with anyio.CancelScope() as limit:
        ending = asyncio.ensure_future(end(limit))
        await attempt.step("charge", world.charge)
    await ending
    assert limit.cancelled_caught
    assert await attempt.step("charge", world.charge) == "charge 1"
