"""Gathering: while one round trip is under way, the verbs that arrive queue up and go together as
the next.

An idle store waits for nobody and there is no timer: a lone verb leaves at once, a crowd shares its
round trips (and, where the store commits, its commits). What goes with what is decided by `Queue`,
which is pure and is what the simulator drives. `Gatherer` and `AsyncGatherer` only move batches to
connections and outcomes to those who wait; each group of verbs has a *lane*, a connection of its
own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Awaitable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from oncekey.core.op import Pause, arun, run
from oncekey.core.verbs import Insert, Swap, Verb
from oncekey.errors import StoreUnavailable
from oncekey.stores.base import AGAIN, AsyncConnection, Connection, Store

BATCH_ROWS_MAX = 128
BATCH_BYTES_MAX = 1_048_576
QUEUE_ROWS_MAX = 10_000
ALONE = "alone"
"""The lane of verbs that could not be served in a batch: only they wait for a row that somebody
holds.
"""

W = TypeVar("W")


class Ticket(Generic[W]):
    """One verb in the queue, and whoever waits for its outcome."""

    __slots__ = ("changes", "size", "verb", "waiter")

    def __init__(self, verb: Verb, waiter: W) -> None:
        self.verb = verb
        self.waiter = waiter
        self.size = 512
        self.changes: bytes | None = None
        """The id that the verb changes: at most one per batch, so that exactly one can win."""
        if isinstance(verb, Insert):
            self.changes = verb.claim.id
        elif isinstance(verb, Swap):
            self.changes = verb.id
            if verb.answer is not None and verb.answer.body is not None:
                self.size += len(verb.answer.body)


class Queue(Generic[W]):
    """Which waiting verbs go together in the next round trip. Pure: no I/O, no clock, no threads."""

    def __init__(self, *, rows_max: int = BATCH_ROWS_MAX, bytes_max: int = BATCH_BYTES_MAX) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._waiting: deque[Ticket[W]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, ticket: Ticket[W]) -> None:
        """Queue a verb; refuses rather than grow without bound."""
        if len(self._waiting) >= QUEUE_ROWS_MAX:
            raise StoreUnavailable(
                f"{QUEUE_ROWS_MAX} verbs already wait for the store; it is too slow for this load",
                sent=False,
            )
        self._waiting.append(ticket)

    def oldest(self) -> Ticket[W] | None:
        """Who has waited longest."""
        return self._waiting[0] if self._waiting else None

    def take(self) -> list[Ticket[W]]:
        """The next batch, oldest first; empty when nothing waits.

        A second verb that changes the same id stays behind for the next batch, where it meets the
        first one's outcome. The batch is ordered by id, so that two processes that touch the same
        rows take them in the same order and cannot deadlock.
        """
        batch: list[Ticket[W]] = []
        left_behind: list[Ticket[W]] = []
        ids: set[bytes] = set()
        size = 0
        waiting = self._waiting
        while waiting and len(batch) < self._rows_max:
            ticket = waiting[0]
            if batch and size + ticket.size > self._bytes_max:
                break
            waiting.popleft()
            if ticket.changes is not None:
                if ticket.changes in ids:
                    left_behind.append(ticket)
                    continue
                ids.add(ticket.changes)
            batch.append(ticket)
            size += ticket.size
        waiting.extendleft(reversed(left_behind))
        if len(batch) > 1:
            batch.sort(key=_order)
        return batch


def _order(ticket: Ticket[Any]) -> bytes:
    return ticket.changes or b""


def _copy(error: Exception) -> Exception:
    """An exception of one's own: raised in several places, one instance would collect all their
    tracebacks.
    """
    if isinstance(error, StoreUnavailable):
        return StoreUnavailable(str(error), sent=error.sent)
    return error


def _interrupted() -> StoreUnavailable:
    return StoreUnavailable("interrupted while waiting for the store", sent=True)


# --------------------------------------------------------------------------------------- async


class AsyncLine:
    """A connection that is made, checked and made anew as needed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._connection: AsyncConnection | None = None

    async def perform(self, verbs: Sequence[Verb]) -> list[Any]:
        """Carry out verbs of one group; on `StoreUnavailable` the connection is given up."""
        try:
            connection = self._connection or await self._connect()
            return await arun(self._store.perform(verbs), connection.ask)
        except StoreUnavailable:
            await self.close()
            raise

    async def _connect(self) -> AsyncConnection:
        connection = await self._store.aconnect()
        try:
            await arun(self._store.prepare(), connection.ask)
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        return connection

    def abandon(self) -> None:
        """Leave the connection to itself: it was interrupted, nobody knows what it still carries."""
        self._connection = None

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


class _AsyncLane:
    """One connection and the verbs that wait for it."""

    def __init__(self, gatherer: AsyncGatherer, rows_max: int) -> None:
        self._gatherer = gatherer
        self._line = AsyncLine(gatherer.store)
        self._queue: Queue[asyncio.Future[Any]] = Queue(rows_max=rows_max)
        self._worker: asyncio.Task[None] | None = None

    def ask(self, verb: Verb, waiter: asyncio.Future[Any]) -> None:
        self._queue.add(Ticket(verb, waiter))
        if self._worker is None:
            self._worker = waiter.get_loop().create_task(self._work())

    async def _work(self) -> None:
        try:
            while batch := self._queue.take():
                # A claim that nobody waits for any more is better not made.
                wanted = [t for t in batch if not (t.waiter.cancelled() and type(t.verb) is Insert)]
                if wanted:
                    await self._serve(wanted)
        finally:
            self._worker = None

    async def _serve(self, batch: list[Ticket[asyncio.Future[Any]]]) -> None:
        try:
            outcomes = await self._line.perform([ticket.verb for ticket in batch])
        except StoreUnavailable as error:
            for ticket in batch:
                if not ticket.waiter.done():
                    ticket.waiter.set_exception(_copy(error))
        except Exception as error:
            if len(batch) > 1:  # one bad member fails alone
                for ticket in batch:
                    await self._serve([ticket])
            elif not batch[0].waiter.done():
                batch[0].waiter.set_exception(error)
        except BaseException:
            self._line.abandon()
            for ticket in batch:
                if not ticket.waiter.done():
                    ticket.waiter.set_exception(_interrupted())
            raise
        else:
            for ticket, outcome in zip(batch, outcomes, strict=True):
                if outcome is AGAIN:
                    self._gatherer.ask_alone(ticket)
                elif not ticket.waiter.done():
                    ticket.waiter.set_result(outcome)

    async def close(self) -> None:
        if self._worker is not None:
            await self._worker
        await self._line.close()


class AsyncGatherer:
    """A store for async callers: `await gatherer.ask(verb)`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lanes: dict[Hashable, _AsyncLane] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def ask(self, question: Any) -> Awaitable[Any]:
        """The outcome of a verb; or, for a `Pause`, that time has passed."""
        if type(question) is Pause:
            return asyncio.sleep(question.seconds)
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # a new event loop cannot use the connections of the old one
            self._lanes, self._loop = {}, loop
        waiter: asyncio.Future[Any] = loop.create_future()
        self._lane(self.store.group(question)).ask(question, waiter)
        return waiter

    def ask_alone(self, ticket: Ticket[asyncio.Future[Any]]) -> None:
        self._lane(ALONE, rows_max=1).ask(ticket.verb, ticket.waiter)

    def _lane(self, group: Hashable, rows_max: int = BATCH_ROWS_MAX) -> _AsyncLane:
        lane = self._lanes.get(group)
        if lane is None:
            lane = self._lanes[group] = _AsyncLane(self, rows_max)
        return lane

    async def close(self) -> None:
        """Serve what is queued, then give the connections back."""
        for lane in list(self._lanes.values()):
            await lane.close()
        self._lanes.clear()


# ---------------------------------------------------------------------------------------- sync


class Line:
    """A connection that is made, checked and made anew as needed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._connection: Connection | None = None

    def perform(self, verbs: Sequence[Verb]) -> list[Any]:
        """Carry out verbs of one group; on `StoreUnavailable` the connection is given up."""
        try:
            connection = self._connection or self._connect()
            return run(self._store.perform(verbs), connection.ask)
        except StoreUnavailable:
            self.close()
            raise

    def _connect(self) -> Connection:
        connection = self._store.connect()
        try:
            run(self._store.prepare(), connection.ask)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def abandon(self) -> None:
        """Leave the connection to itself: it was interrupted, nobody knows what it still carries."""
        self._connection = None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Waiter:
    """A thread that waits for its verb, or to be made the leader."""

    __slots__ = ("error", "event", "outcome", "settled")

    def __init__(self) -> None:
        self.event = threading.Event()
        self.settled = False
        self.outcome: Any = None
        self.error: Exception | None = None

    def settle(self, outcome: Any, error: Exception | None = None) -> None:
        self.outcome, self.error, self.settled = outcome, error, True
        self.event.set()


class _Lane:
    """One connection and the threads that wait for it.

    There is no thread of its own: the first to come leads, and carries the batch of those who came
    meanwhile. When its own verb is served it hands the lead to somebody who still waits.
    """

    def __init__(self, gatherer: Gatherer, rows_max: int) -> None:
        self._gatherer = gatherer
        self._line = Line(gatherer.store)
        self._queue: Queue[_Waiter] = Queue(rows_max=rows_max)
        self._mutex = threading.Lock()
        self._led = False

    def ask(self, verb: Verb) -> Any:
        waiter = _Waiter()
        with self._mutex:
            self._queue.add(Ticket(verb, waiter))
            lead = not self._led
            self._led = True
        if not lead:
            waiter.event.wait()
        if not waiter.settled:
            self._lead(waiter)
        if waiter.error is not None:
            raise waiter.error
        return self._gatherer.ask_alone(verb) if waiter.outcome is AGAIN else waiter.outcome

    def _lead(self, waiter: _Waiter) -> None:
        while not waiter.settled:
            with self._mutex:
                batch = self._queue.take()
            self._serve(batch)
        with self._mutex:
            heir = self._queue.oldest()
            self._led = heir is not None
        if heir is not None:
            heir.waiter.event.set()

    def _serve(self, batch: list[Ticket[_Waiter]]) -> None:
        try:
            outcomes = self._line.perform([ticket.verb for ticket in batch])
        except StoreUnavailable as error:
            for ticket in batch:
                ticket.waiter.settle(None, _copy(error))
        except Exception as error:
            if len(batch) > 1:  # one bad member fails alone
                for ticket in batch:
                    self._serve([ticket])
            else:
                batch[0].waiter.settle(None, error)
        except BaseException:
            self._line.abandon()
            for ticket in batch:
                ticket.waiter.settle(None, _interrupted())
            raise
        else:
            for ticket, outcome in zip(batch, outcomes, strict=True):
                ticket.waiter.settle(outcome)

    def close(self) -> None:
        with self._mutex:
            self._line.close()


class Gatherer:
    """A store for threads: `gatherer.ask(verb)` blocks."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lanes: dict[Hashable, _Lane] = {}
        self._mutex = threading.Lock()
        self._pid = os.getpid()

    def ask(self, question: Any) -> Any:
        """The outcome of a verb; or, for a `Pause`, that time has passed."""
        if type(question) is Pause:
            threading.Event().wait(question.seconds)
            return None
        if os.getpid() != self._pid:  # a forked child must not speak on its parent's connections
            self._lanes, self._mutex, self._pid = {}, threading.Lock(), os.getpid()
        return self._lane(self.store.group(question)).ask(question)

    def ask_alone(self, verb: Verb) -> Any:
        return self._lane(ALONE, rows_max=1).ask(verb)

    def _lane(self, group: Hashable, rows_max: int = BATCH_ROWS_MAX) -> _Lane:
        lane = self._lanes.get(group)
        if lane is None:
            with self._mutex:
                lane = self._lanes.setdefault(group, _Lane(self, rows_max))
        return lane

    def close(self) -> None:
        """Give the connections back."""
        for lane in list(self._lanes.values()):
            lane.close()
        self._lanes.clear()
