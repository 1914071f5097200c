"""Work for a store: verbs through the library, by a crowd and one at a time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Self

import uvloop

from bench.limits import WAYS
from bench.rounds import Contest, Settings, contest
from bench.table import Goal, Row
from oncekey import Policy
from oncekey._core import lifecycle
from oncekey._core.fingerprint import VERSION, Fingerprint
from oncekey._core.op import arun, run
from oncekey._core.record import TOKEN_BYTES, Answer, Claim
from oncekey._core.verbs import Done, Insert, Inserted, Peek, Verb
from oncekey._engine.guard import Call, Execute, Guard, Stored
from oncekey.stores.base import Store
from oncekey.stores.batching import AsyncGatherer

LEASE_S, RETENTION_S = 30.0, 86_400.0
ANSWER = Answer(201, ((b"content-type", b"application/json"),), b"x" * 1024)
FINGERPRINT = Fingerprint(VERSION, bytes(32))
POLICY = Policy(lease_s=LEASE_S, retention_s=RETENTION_S).settled()

NEW, FOUND, COMPLETE, RENEW, PEEK = "insert new", "insert found", "complete", "renew", "peek"
VERBS = (NEW, FOUND, COMPLETE, RENEW, PEEK)
ALONE_SHARE = 0.25
"""One at a time needs less of a round than a crowd, but more turns: a busy neighbour shows more."""
ALONE_TURNS = 5
_ALONE_PER_S = 800


def claim() -> Claim:
    return Claim(
        id=os.urandom(32),
        token=os.urandom(TOKEN_BYTES),
        tenant="single",
        operation="POST /orders",
        key="8e03978e-40d5-43e8-bc93-6894a57f9324",
        fingerprint=FINGERPRINT.digest,
        fingerprint_version=FINGERPRINT.version,
        lease_s=LEASE_S,
        retention_s=RETENTION_S,
    )


@dataclass(frozen=True, slots=True)
class Item:
    """A record to work on; its fence is 0 until it was inserted."""

    claim: Claim
    fence: int = 0

    @property
    def held(self) -> lifecycle.Held:
        return lifecycle.Held(self.claim.id, self.fence, self.claim.token)

    def verb(self, name: str) -> Verb:
        if name == COMPLETE:
            return lifecycle.complete(self.held, ANSWER, retention_s=RETENTION_S)
        if name == RENEW:
            return lifecycle.renew(self.held, lease_s=LEASE_S, retention_s=RETENTION_S)
        return Peek(self.claim.id) if name == PEEK else Insert(self.claim)


class Library(AbstractContextManager["Library"]):
    """A store as the ASGI middleware uses it: through the gatherer, on one event loop."""

    def __init__(self, store: Store) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._gatherer = AsyncGatherer(store)
        self._guard = Guard()
        self._calls = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._gatherer.close())
        self._runner.close()

    # ------------------------------------------------------------- what one of a crowd does

    async def ask(self, verb: Verb) -> Any:
        return await self._gatherer.ask(verb)

    async def insert(self) -> Item:
        new = claim()
        outcome = await self._gatherer.ask(Insert(new))
        assert isinstance(outcome, Inserted), outcome
        return Item(new, outcome.fence)

    async def insert_and_complete(self) -> Item:
        item = await self.insert()
        outcome = await self._gatherer.ask(item.verb(COMPLETE))
        assert isinstance(outcome, Done), outcome
        return item

    async def begin(self) -> Execute:
        """As `insert`, through the engine."""
        call = self._call()
        decision = await arun(self._guard.begin(call, POLICY), self._gatherer.ask)
        assert isinstance(decision, Execute), decision
        return decision

    async def begin_and_finish(self) -> None:
        """As `insert_and_complete`, through the engine."""
        call = self._call()
        decision = await arun(self._guard.begin(call, POLICY), self._gatherer.ask)
        assert isinstance(decision, Execute), decision
        finish = self._guard.ownership.finish(decision.attempt, ANSWER, call)
        finished = await arun(finish, self._gatherer.ask)
        assert isinstance(finished, Stored), finished

    def _call(self) -> Call:
        return Call("single", "POST /orders", os.urandom(16).hex(), FINGERPRINT)

    # --------------------------------------------------------------------------- measuring

    def crowd(
        self, work: Callable[[], Awaitable[object]], seconds: float, ways: int = WAYS
    ) -> float:
        """How often `ways` callers at a time got it done, per second."""
        return self._runner.run(_crowd(work, seconds, ways))

    def alone(self, questions: Sequence[Verb]) -> float:
        """How often one caller gets it done, by the median time that it takes."""
        return self.median_rate(self._gatherer.ask, questions)

    def median_rate(
        self, ask: Callable[[Any], Awaitable[object]], questions: Sequence[Any]
    ) -> float:
        return self._runner.run(_median_rate(ask, questions))

    def run(self, work: Awaitable[Any]) -> Any:
        return self._runner.run(_await(work))

    def items(self, name: str, count: int) -> list[Item]:
        """Records as the verb needs to find them."""
        if name == NEW:
            return [Item(claim()) for _ in range(count)]
        make = self.insert_and_complete if name == FOUND else self.insert
        items: list[Item] = self._runner.run(_make(make, count))
        if name == FOUND:  # the token of another attempt, as a retry brings it
            return [Item(replace(item.claim, token=os.urandom(TOKEN_BYTES))) for item in items]
        return items


async def _await(work: Awaitable[Any]) -> Any:
    return await work


async def _make(make: Callable[[], Awaitable[Item]], count: int) -> list[Item]:
    return list(await asyncio.gather(*(make() for _ in range(count))))


async def _crowd(work: Callable[[], Awaitable[object]], seconds: float, ways: int) -> float:
    started = time.perf_counter()
    until = started + seconds
    done = 0

    async def one() -> None:
        nonlocal done
        while time.perf_counter() < until:
            await work()
            done += 1

    await asyncio.gather(*(one() for _ in range(ways)))
    return done / (time.perf_counter() - started)


async def _median_rate(ask: Callable[[Any], Awaitable[object]], questions: Sequence[Any]) -> float:
    times = []
    for question in questions:
        started = time.perf_counter()
        await ask(question)
        times.append(time.perf_counter() - started)
    return 1 / median(times)


def median_rate(ask: Callable[[Any], object], questions: Sequence[Any]) -> float:
    """The same for blocking callers."""
    times = []
    for question in questions:
        started = time.perf_counter()
        ask(question)
        times.append(time.perf_counter() - started)
    return 1 / median(times)


def alone_rows(
    engine: str,
    library: Library,
    bare: Callable[[str, list[Item]], float],
    goals: Callable[[str], Goal | None],
    settings: Settings,
) -> list[Row]:
    """Each verb, one at a time, against `bare`: the rate of the driver's one-row statement for the
    same records.
    """
    return [alone_row(engine, library, bare, (name, name), goals(name), settings) for name in VERBS]


def alone_row(
    engine: str,
    library: Library,
    bare: Callable[[str, list[Item]], float],
    names: tuple[str, str],
    goal: Goal | None,
    settings: Settings,
) -> Row:
    """A verb by the library, one at a time, against the same or another by the driver."""
    name, other = names

    def ours(seconds: float) -> float:
        items = library.items(name, max(20, int(seconds * _ALONE_PER_S)))
        return library.alone([item.verb(name) for item in items])

    def theirs(seconds: float) -> float:
        return bare(other, library.items(other, max(20, int(seconds * _ALONE_PER_S))))

    title = f"{engine}, alone, {name}" + (
        "" if name == other else f", against the driver's {other}"
    )
    result: Contest = contest(
        title, {"library": ours, "driver": theirs}, settings, share=ALONE_SHARE, turns=ALONE_TURNS
    )
    return result.row(title, "library", "driver", goal)


def migrate(store: Store) -> None:
    connection = store.connect()
    try:
        run(store.migrate(), connection.ask)
    finally:
        connection.close()
