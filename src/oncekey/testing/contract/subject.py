"""What the contract's tests work with: a store, its sync and async faces, and ready-made
records.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pytest

from oncekey._core import lifecycle
from oncekey._core.lifecycle import Held
from oncekey._core.op import Op, arun, run
from oncekey._core.record import TOKEN_BYTES, Answer, Claim, Record, State
from oncekey._core.verbs import Done, Find, Insert, Inserted, Refused, Swap, Verb
from oncekey.stores.base import Store
from oncekey.stores.batching import AsyncGatherer, Gatherer

ANSWER = Answer(201, ((b"content-type", b"text/plain"), (b"location", b"/orders/1")), b"created")
ID_BYTES = 32

T = TypeVar("T")
_chance = random.SystemRandom()  # ids must differ even where a test runner seeds the shared one


@dataclass(frozen=True, slots=True)
class Subject:
    """A store under test: empty, ready to use, and for this test alone."""

    store: Store
    elapse: Callable[[float], None] = time.sleep
    """Makes the store believe that so many seconds have passed, or with a negative number that its
    clock was set back.
    """
    observed: bool = False
    """Whether leases are observed (P8) instead of measured by the store's clock: setting a clock
    back then affects no lease, and no deadline can be further away than one lease.
    """

    @property
    def sleeps(self) -> bool:
        return self.elapse is time.sleep


# ----------------------------------------------------------------------------------- the two faces


class Face(Protocol):
    """A store behind plain calls, sync or async."""

    def ask(self, verb: Verb) -> Any:
        """Return the outcome of one verb."""

    def together(self, verbs: Sequence[Verb], gatherers: int = 1) -> list[Any]:
        """Return the outcomes of verbs asked at the same time, with exceptions as values.

        The verbs are dealt out in turn to so many gatherers, each with connections of its own.
        """

    def drive(self, op: Op[T]) -> T:
        """Carry out an operation of the store on a new connection."""

    def close(self) -> None: ...


class SyncFace:
    """Asks from threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._gatherers = [Gatherer(store)]

    def ask(self, verb: Verb) -> Any:
        return self._gatherers[0].ask(verb)

    def together(self, verbs: Sequence[Verb], gatherers: int = 1) -> list[Any]:
        while len(self._gatherers) < gatherers:
            self._gatherers.append(Gatherer(self._store))
        start = threading.Barrier(len(verbs))

        def ask(number: int, verb: Verb) -> Any:
            start.wait()
            return self._gatherers[number % gatherers].ask(verb)

        with ThreadPoolExecutor(len(verbs)) as threads:
            futures = [threads.submit(ask, number, verb) for number, verb in enumerate(verbs)]
        return [future.exception() or future.result() for future in futures]

    def drive(self, op: Op[T]) -> T:
        connection = self._store.connect()
        try:
            run(self._store.prepare(), connection.ask)
            return run(op, connection.ask)
        finally:
            connection.close()

    def close(self) -> None:
        for gatherer in self._gatherers:
            gatherer.close()


class AsyncFace:
    """Asks from tasks of an event loop that runs only during the call."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._gatherers = [AsyncGatherer(store)]
        self._runner = asyncio.Runner()

    def ask(self, verb: Verb) -> Any:
        [outcome] = self.together([verb])
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def together(self, verbs: Sequence[Verb], gatherers: int = 1) -> list[Any]:
        while len(self._gatherers) < gatherers:
            self._gatherers.append(AsyncGatherer(self._store))

        async def ask() -> list[Any]:
            asked = (self._gatherers[n % gatherers].ask(verb) for n, verb in enumerate(verbs))
            return await asyncio.gather(*asked, return_exceptions=True)

        return self._runner.run(ask())

    def drive(self, op: Op[T]) -> T:
        async def drive() -> T:
            connection = await self._store.aconnect()
            try:
                await arun(self._store.prepare(), connection.ask)
                return await arun(op, connection.ask)
            finally:
                await connection.close()

        return self._runner.run(drive())

    def close(self) -> None:
        with self._runner:
            for gatherer in self._gatherers:
                self._runner.run(gatherer.close())


FACES: dict[str, Callable[[Store], Face]] = {"sync": SyncFace, "async": AsyncFace}


# ---------------------------------------------------------------------------------------- one test


class Case:
    """A store under test, with short ways to bring records into every state."""

    def __init__(self, subject: Subject, face: Face) -> None:
        self.subject = subject
        self.ask = face.ask
        self.together = face.together
        self.drive = face.drive
        # Real waiting must be short, yet long enough that a slow machine does not lose a lease.
        self.lease_s, self.retention_s = (2.0, 3.0) if subject.sleeps else (30.0, 600.0)
        self.tolerance_s = self.lease_s / 5

    # -------------------------------------------------------------------------------------- time

    def elapse(self, seconds: float) -> None:
        self.subject.elapse(seconds)

    def lapse(self) -> None:
        """Let every lease run out, but no retention."""
        self.elapse(self.lease_s)

    def expire(self) -> None:
        """Let everything run out, even where a store keeps it a little longer than required."""
        self.elapse(self.lease_s + self.retention_s + self.tolerance_s)

    def set_back(self, seconds: float) -> None:
        if self.subject.sleeps:
            pytest.skip("without `elapse` the store's clock cannot be set back")
        self.elapse(-seconds)

    @property
    def observed(self) -> bool:
        return self.subject.observed

    def about(self, seconds: float) -> Any:
        """Return a value that equals a remaining time read a moment ago."""
        return pytest.approx(seconds, abs=self.tolerance_s)

    # ----------------------------------------------------------------------------------- records

    def claim(self, **changes: Any) -> Claim:
        """Return a new claim with deadlines that this store's time can reach."""
        return new_claim(**{"lease_s": self.lease_s, "retention_s": self.retention_s, **changes})

    def rival(self, record: Record, **changes: Any) -> Claim:
        """Return another attempt at the same record."""
        return self.claim(id=record.id, **changes)

    def begin(self, claim: Claim | None = None) -> Record:
        """Insert a running record and return it."""
        claim = claim or self.claim()
        assert isinstance(self.ask(Insert(claim)), Inserted)
        return self.find(claim.id)

    def find(self, record_id: bytes) -> Record:
        """Return the record, which must exist."""
        record = self.ask(Find(record_id))
        assert isinstance(record, Record)
        return record

    def stage(self, state: State, claim: Claim | None = None) -> Record:
        """Bring a record into a state in the usual way and return it."""
        record = self.begin(claim)
        match state:
            case State.COMPLETED:
                self.done(self.complete(record))
            case State.RELEASED:
                self.done(self.release(record))
            case State.UNKNOWN:
                self.lapse()
                self.done(self.doubt(record))
        return self.find(record.id)

    # ------------------------------------------------------------------------------------- swaps

    def renew(self, record: Record) -> Swap:
        return lifecycle.renew(owner(record), lease_s=self.lease_s, retention_s=self.retention_s)

    def end_lease(self, record: Record) -> Swap:
        return lifecycle.lapse(owner(record), retention_s=self.retention_s)

    def complete(self, record: Record, answer: Answer = ANSWER, **changes: Any) -> Swap:
        given: dict[str, Any] = {"retention_s": self.retention_s, "resource_id": "order_1"}
        return lifecycle.complete(owner(record), answer, **(given | changes))

    def release(self, record: Record, *, no_effect: bool = False) -> Swap:
        return lifecycle.release(owner(record), no_effect=no_effect, retention_s=self.retention_s)

    def doubt(self, record: Record) -> Swap:
        return lifecycle.doubt(record, new_token=new_token(), retention_s=self.retention_s)

    def give_up(self, record: Record) -> Swap:
        """Return the swap of an owner that cannot tell how its attempt ended."""
        return lifecycle.give_up(
            owner(record), new_token=new_token(), lapses=1, retention_s=self.retention_s
        )

    def resolve(self, record: Record, answer: Answer | None = ANSWER) -> Swap:
        return lifecycle.resolve(
            record, new_token=new_token(), answer=answer, retention_s=self.retention_s
        )

    def take(self, record: Record, **changes: Any) -> Swap:
        return lifecycle.take(record, self.rival(record, **changes))

    # ------------------------------------------------------------------------------- assertions

    def done(self, swap: Swap) -> Record:
        """Carry out the swap, which must succeed; return the record after it."""
        outcome = self.ask(swap)
        assert isinstance(outcome, Done), outcome
        record = self.find(swap.id)
        assert record.fence == outcome.fence
        return record

    def refused(self, verb: Verb, found: Record) -> None:
        """Ask for a change that must be refused; the record must stay as it was found."""
        outcome = self.ask(verb)
        assert isinstance(outcome, Refused), outcome
        assert outcome.record is not None
        self.same(outcome.record, found)
        self.same(self.find(found.id), found)

    def same(self, record: Record, other: Record) -> None:
        """Assert that two reads of a record differ only by the short time between them."""
        assert timeless(record) == timeless(other)
        assert record.age_s == self.about(other.age_s)
        assert record.expires_in_s == self.about(other.expires_in_s)
        if record.state is State.RUNNING:
            assert record.lease_left_s == self.about(other.lease_left_s)


class Contract:
    """Base of every part of the contract: each test runs over both faces of the store."""

    @pytest.fixture(params=list(FACES))
    def case(self, request: pytest.FixtureRequest, subject: Subject) -> Iterator[Case]:
        face = FACES[request.param](subject.store)
        yield Case(subject, face)
        face.close()


def new_id() -> bytes:
    return _chance.randbytes(ID_BYTES)


def new_token() -> bytes:
    return _chance.randbytes(TOKEN_BYTES)


def new_claim(**changes: Any) -> Claim:
    """Return an attempt with an id and a token of its own."""
    claim = Claim(
        id=new_id(),
        token=new_token(),
        tenant="acct_1",
        operation="POST /orders",
        key="order-17",
        fingerprint=b"\x01" * 32,
        fingerprint_version=1,
        lease_s=30.0,
        retention_s=600.0,
    )
    return dataclasses.replace(claim, **changes)


def owner(record: Record) -> Held:
    """Return the owner's view of the record."""
    return Held(record.id, record.fence, record.token)


def timeless(record: Record) -> Record:
    """Return the record without what changes by itself."""
    return dataclasses.replace(record, age_s=0.0, lease_left_s=0.0, expires_in_s=0.0)
