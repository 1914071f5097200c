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
import contextlib
import contextvars
import itertools
import os
import threading
from collections import deque
from collections.abc import Awaitable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from oncekey._core.op import Offload, Pause
from oncekey._core.verbs import AppendStep, Insert, Swap, Verb
from oncekey._system.offload import cpu_thread, file_thread
from oncekey.errors import Misuse, StoreUnavailable, StoreUnfit
from oncekey.stores.base import AGAIN, Store
from oncekey.stores.connection import AsyncStoreConnection, Outage, StoreConnection

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
            self.size += len(verb.claim.request or b"")
        elif isinstance(verb, Swap):
            self.changes = verb.id
            if verb.claim is not None:
                self.size += len(verb.claim.request or b"")
            if verb.answer is not None and verb.answer.body is not None:
                self.size += len(verb.answer.body)
        elif isinstance(verb, AppendStep):
            self.changes = verb.id
            self.size += len(verb.step.result or b"")


class Queue(Generic[W]):
    """Which waiting verbs go together in the next round trip. Pure: no I/O, clock or threads."""

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

    def discard(self, ticket: Ticket[W]) -> None:
        """Forget a verb that nobody waits for any more, if it has not left yet."""
        with contextlib.suppress(ValueError):
            self._waiting.remove(ticket)

    def oldest(self) -> Ticket[W] | None:
        """Who has waited longest."""
        return self._waiting[0] if self._waiting else None

    def take(self) -> list[Ticket[W]]:
        """The next batch, oldest first; empty when nothing waits.

        A second verb that changes the same id stays behind for the next batch, where it meets the
        first one's outcome. The batch is ordered by id, so that two processes that touch the same
        rows take them in the same order and cannot deadlock.
        """
        waiting = self._waiting
        if len(waiting) == 1:
            return [waiting.popleft()]
        batch: list[Ticket[W]] = []
        left_behind: deque[Ticket[W]] = deque()
        ids: set[bytes] = set()
        size = 0
        for ticket in waiting:
            if len(batch) >= self._rows_max or (batch and size + ticket.size > self._bytes_max):
                break
            if ticket.changes is not None:
                if ticket.changes in ids:
                    left_behind.append(ticket)
                    continue
                ids.add(ticket.changes)
            batch.append(ticket)
            size += ticket.size
        left_behind.extend(itertools.islice(waiting, len(batch) + len(left_behind), None))
        if len(batch) > 1:
            batch.sort(key=_order)
        self._waiting = left_behind  # at once: a signal must not leave anybody out of both
        return batch


def _order(ticket: Ticket[Any]) -> bytes:
    return ticket.changes or b""


def _copy(error: StoreUnavailable | StoreUnfit) -> StoreUnavailable | StoreUnfit:
    """An exception of one's own: raised in several places, one instance would collect all their
    tracebacks.
    """
    copy = (
        StoreUnavailable(str(error), sent=error.sent)
        if isinstance(error, StoreUnavailable)
        else StoreUnfit(str(error))
    )
    copy.__cause__ = error.__cause__
    return copy


def _interrupted(*, sent: bool) -> StoreUnavailable:
    return StoreUnavailable("interrupted while waiting for the store", sent=sent)


# --------------------------------------------------------------------------------------- async


class _AsyncLane:
    """One connection and the verbs that wait for it."""

    def __init__(self, gatherer: AsyncGatherer, rows_max: int) -> None:
        self._gatherer = gatherer
        self._line = AsyncStoreConnection(gatherer.store)
        self._outage = Outage()
        self._queue: Queue[asyncio.Future[Any]] = Queue(rows_max=rows_max)
        self._worker: asyncio.Task[None] | None = None
        self._works = False
        """Told by the worker itself: an eager task may have ended before anybody has it."""
        self._nobody = contextvars.Context()
        """The worker serves everybody: the context of whoever came first must not stick to it."""

    def ask(self, verb: Verb, waiter: asyncio.Future[Any]) -> None:
        self._queue.add(Ticket(verb, waiter))
        if not self._works:
            self._works = True
            self._worker = waiter.get_loop().create_task(self._work(), context=self._nobody)

    async def _work(self) -> None:
        batch: list[Ticket[asyncio.Future[Any]]] = []
        try:
            while batch := self._queue.take():
                # A claim that nobody waits for any more is better not made.
                wanted = [t for t in batch if not (t.waiter.cancelled() and type(t.verb) is Insert)]
                if wanted:
                    await self._serve(wanted)
                if self._queue:  # an answer may come without waiting, and others want their turn
                    await asyncio.sleep(0)
        except BaseException:  # cancelled: nobody may be left waiting for a worker that is gone
            self._line.abandon()
            _fail(batch, _interrupted(sent=True))
            while batch := self._queue.take():
                _fail(batch, _interrupted(sent=False))
            raise
        finally:
            self._works = False

    async def _serve(self, batch: list[Ticket[asyncio.Future[Any]]]) -> None:
        try:
            outcomes = await self._line.perform([ticket.verb for ticket in batch])
            served = list(zip(batch, outcomes, strict=True))
        except StoreUnavailable as error:
            self._outage.record_failure(error)
            _fail(batch, error)
        except Exception as error:
            if isinstance(error, StoreUnfit) and not self._line.connected:
                _fail(batch, error)  # none of them is to blame
            elif len(batch) > 1:  # one bad member fails alone
                for ticket in batch:
                    await self._serve([ticket])
            elif not batch[0].waiter.done():
                batch[0].waiter.set_exception(error)
        else:
            self._outage.record_success()
            for ticket, outcome in served:
                if outcome is AGAIN:
                    self._gatherer.ask_alone(ticket)
                elif not ticket.waiter.done():
                    ticket.waiter.set_result(outcome)

    async def close(self) -> None:
        if self._works and self._worker is not None:
            await self._worker
        await self._line.close()


def _fail(
    batch: Sequence[Ticket[asyncio.Future[Any]]], error: StoreUnavailable | StoreUnfit
) -> None:
    for ticket in batch:
        if not ticket.waiter.done():
            ticket.waiter.set_exception(_copy(error))


_ASYNCIO = (
    "no event loop of asyncio runs here: oncekey works with asyncio, not with trio. Let the server "
    "run the application in asyncio (hypercorn: --worker-class asyncio)"
)


class AsyncGatherer:
    """A store for async callers: `await gatherer.ask(verb)`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lanes: dict[Hashable, _AsyncLane] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def ask(self, question: Any) -> Awaitable[Any]:
        """The outcome of a verb; or, for a `Pause`, that time has passed; or what was worked out
        apart.
        """
        if type(question) is Pause:
            return asyncio.sleep(question.seconds)
        if type(question) is Offload:
            return (file_thread if question.writes else cpu_thread).run(question.work)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise Misuse(_ASYNCIO) from None
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
        while self._lanes:  # serving one lane may open another, for what has to be asked again
            group, lane = next(iter(self._lanes.items()))
            await lane.close()
            self._lanes.pop(group, None)


# ---------------------------------------------------------------------------------------- sync


class _Waiter:
    """A thread that waits for its verb, or to be made the leader."""

    __slots__ = ("error", "event", "outcome", "settled")

    def __init__(self) -> None:
        self.event: threading.Event | None = None
        """Only followers have one: it is most of what waiting costs, and who leads never waits."""
        self.settled = False
        self.outcome: Any = None
        self.error: Exception | None = None

    def settle(self, outcome: Any, error: Exception | None = None) -> None:
        self.outcome, self.error, self.settled = outcome, error, True
        self.wake()

    def wake(self) -> None:
        if self.event is not None:
            self.event.set()


class _Lane:
    """One connection and the threads that wait for it.

    There is no thread of its own: the first to come leads, and carries the batch of those who came
    meanwhile. When its own verb is served it hands the lead to somebody who still waits.
    """

    def __init__(self, gatherer: Gatherer, rows_max: int) -> None:
        self._gatherer = gatherer
        self._line = StoreConnection(gatherer.store)
        self._outage = Outage()
        self._queue: Queue[_Waiter] = Queue(rows_max=rows_max)
        self._mutex = threading.Lock()
        self._idle = threading.Condition(self._mutex)
        self._leader: Ticket[_Waiter] | None = None

    def ask(self, verb: Verb) -> Any:
        waiter = _Waiter()
        ticket = Ticket(verb, waiter)
        try:
            with self._mutex:
                if self._leader is not None:
                    waiter.event = threading.Event()  # before it is queued: it could not be woken
                self._queue.add(ticket)
                if self._leader is None:
                    self._leader = ticket
            if waiter.event is not None:
                self._follow(ticket, waiter.event)
            if not waiter.settled:
                self._lead(ticket)
        except BaseException:
            self._leave(ticket)
            raise
        if waiter.error is not None:
            raise waiter.error
        return self._gatherer.ask_alone(verb) if waiter.outcome is AGAIN else waiter.outcome

    def _follow(self, ticket: Ticket[_Waiter], event: threading.Event) -> None:
        """Wait until the verb is served, or until it is this thread's turn to lead."""
        try:
            event.wait()
        except BaseException:  # a signal's: whoever leaves must not be left a lead that it loses
            with self._mutex:
                self._queue.discard(ticket)
                if event.is_set() and not ticket.waiter.settled:
                    self._hand_over()
            raise

    def _leave(self, ticket: Ticket[_Waiter]) -> None:
        """A signal may come between any two steps: the lead must not be lost with who had it."""
        with self._mutex:
            if not ticket.waiter.settled:
                self._queue.discard(ticket)
            if self._leader is ticket:
                self._hand_over()
            elif self._leader is not None:  # which may not have heard of it yet
                self._leader.waiter.wake()

    def _lead(self, own: Ticket[_Waiter]) -> None:
        batch: list[Ticket[_Waiter]] = []
        try:
            while not own.waiter.settled:
                with self._mutex:
                    batch = self._queue.take()
                self._serve(batch)
        except BaseException:
            self._line.abandon()
            for ticket in batch:
                if not ticket.waiter.settled:
                    ticket.waiter.settle(None, _interrupted(sent=True))
            raise
        finally:
            with self._mutex:
                if not own.waiter.settled:  # interrupted before it left: nobody would lead for it
                    self._queue.discard(own)
                self._hand_over()

    def _hand_over(self) -> None:
        """Make the thread that has waited longest the leader. Needs the mutex."""
        heir = self._leader = self._queue.oldest()
        if heir is not None:
            heir.waiter.wake()
        else:
            self._idle.notify_all()

    def _serve(self, batch: list[Ticket[_Waiter]]) -> None:
        try:
            outcomes = self._line.perform([ticket.verb for ticket in batch])
            served = list(zip(batch, outcomes, strict=True))
        except StoreUnavailable as error:
            self._outage.record_failure(error)
            for ticket in batch:
                ticket.waiter.settle(None, _copy(error))
        except Exception as error:
            if isinstance(error, StoreUnfit) and not self._line.connected:
                for ticket in batch:  # none of them is to blame
                    ticket.waiter.settle(None, _copy(error))
            elif len(batch) > 1:  # one bad member fails alone
                for ticket in batch:
                    self._serve([ticket])
            else:
                batch[0].waiter.settle(None, error)
        else:
            self._outage.record_success()
            for ticket, outcome in served:
                ticket.waiter.settle(outcome)

    def close(self) -> None:
        with self._idle:
            self._idle.wait_for(lambda: self._leader is None)
            self._line.close()


_inherited: list[dict[Hashable, _Lane]] = []
"""The lanes of a forked child's parent: kept, for a connection is closed when it is collected."""


class Gatherer:
    """A store for threads: `gatherer.ask(verb)` blocks."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lanes: dict[Hashable, _Lane] = {}
        self._mutex = threading.Lock()
        self._pid = os.getpid()

    def ask(self, question: Any) -> Any:
        """The outcome of a verb; or, for a `Pause`, that time has passed; or what was worked out
        apart.
        """
        if type(question) is Offload:
            return (file_thread if question.writes else cpu_thread).run_sync(question.work)
        if type(question) is Pause:
            threading.Event().wait(question.seconds)
            return None
        if os.getpid() != self._pid:
            self._leave_to_parent()
        return self._lane(self.store.group(question)).ask(question)

    def ask_alone(self, verb: Verb) -> Any:
        return self._lane(ALONE, rows_max=1).ask(verb)

    def _lane(self, group: Hashable, rows_max: int = BATCH_ROWS_MAX) -> _Lane:
        lane = self._lanes.get(group)
        if lane is None:
            with self._mutex:
                lane = self._lanes.setdefault(group, _Lane(self, rows_max))
        return lane

    def _leave_to_parent(self) -> None:
        """In a forked child: never speak on the parent's connections, not even to close them."""
        _inherited.append(self._lanes)
        self._lanes, self._mutex, self._pid = {}, threading.Lock(), os.getpid()

    def close(self) -> None:
        """Wait until what is queued is served, then give the connections back."""
        if os.getpid() != self._pid:
            self._leave_to_parent()
        for group, lane in list(self._lanes.items()):
            lane.close()
            self._lanes.pop(group, None)
