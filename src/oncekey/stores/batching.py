"""Batching: verbs that arrive during a round trip queue up and share the next one.

There is no timer: a lone verb leaves at once, and under load verbs share round trips and commits.
`Queue` decides which verbs go together; it is pure, and the simulator drives it. `Gatherer` and
`AsyncGatherer` only move batches to connections and outcomes to their callers. Each group of verbs
has a *lane*, its own connection.
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
from dataclasses import dataclass
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
"""The lane of verbs that could not be served in a batch: only they wait for a locked row."""

W = TypeVar("W")


@dataclass(slots=True, eq=False)
class Ticket(Generic[W]):
    """A queued verb, and what waits for its outcome."""

    verb: Verb
    waiter: W

    @property
    def changes(self) -> bytes | None:
        """The id that the verb changes: at most one per batch, so that exactly one can win."""
        verb = self.verb
        if isinstance(verb, Insert):
            return verb.claim.id
        return verb.id if isinstance(verb, Swap | AppendStep) else None

    @property
    def size(self) -> int:
        """About how many bytes the verb takes."""
        verb, size = self.verb, 512
        if isinstance(verb, Insert | Swap) and verb.claim is not None:
            size += len(verb.claim.request or b"")
        if isinstance(verb, Swap) and verb.answer is not None and verb.answer.body is not None:
            size += len(verb.answer.body)
        if isinstance(verb, AppendStep):
            size += len(verb.step.result or b"")
        return size


class Queue(Generic[W]):
    """Which waiting verbs go together in the next round trip. Pure: no I/O, clock or threads."""

    def __init__(self, *, rows_max: int = BATCH_ROWS_MAX, bytes_max: int = BATCH_BYTES_MAX) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self.waiting: deque[Ticket[W]] = deque()
        """Oldest first."""

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, ticket: Ticket[W]) -> None:
        """Queue a verb, or raise `StoreUnavailable` rather than grow without bound."""
        if len(self.waiting) >= QUEUE_ROWS_MAX:
            raise StoreUnavailable(
                f"{QUEUE_ROWS_MAX} verbs already wait for the store; it is too slow for this load",
                sent=False,
            )
        self.waiting.append(ticket)

    def discard(self, ticket: Ticket[W]) -> None:
        """Drop a verb whose caller gave up, if it has not been sent."""
        with contextlib.suppress(ValueError):
            self.waiting.remove(ticket)

    def oldest(self) -> Ticket[W] | None:
        """Return the ticket that has waited longest."""
        return self.waiting[0] if self.waiting else None

    def take(self) -> list[Ticket[W]]:
        """Take the next batch, oldest first; empty if nothing waits.

        A second verb that changes the same id stays behind for the next batch, where it meets the
        first one's outcome. The batch is ordered by id, so that two processes that touch the same
        rows take them in the same order and cannot deadlock.
        """
        waiting = self.waiting
        if len(waiting) == 1:
            return [waiting.popleft()]
        batch: list[Ticket[W]] = []
        left_behind: deque[Ticket[W]] = deque()
        ids: set[bytes] = set()
        size = 0
        for ticket in waiting:
            if len(batch) >= self._rows_max or (batch and size + ticket.size > self._bytes_max):
                break
            changes = ticket.changes
            if changes is not None:
                if changes in ids:
                    left_behind.append(ticket)
                    continue
                ids.add(changes)
            batch.append(ticket)
            size += ticket.size
        left_behind.extend(itertools.islice(waiting, len(batch) + len(left_behind), None))
        if len(batch) > 1:
            batch.sort(key=_order)
        self.waiting = left_behind  # in one step: a signal must not lose a ticket
        return batch


def _order(ticket: Ticket[Any]) -> bytes:
    return ticket.changes or b""


def _copy(error: StoreUnavailable | StoreUnfit) -> StoreUnavailable | StoreUnfit:
    """Copy an exception: one instance raised in several places would collect all tracebacks."""
    copy = (
        StoreUnavailable(str(error), sent=error.sent)
        if isinstance(error, StoreUnavailable)
        else StoreUnfit(str(error))
    )
    copy.__cause__ = error.__cause__
    return copy


def _interruption(*, sent: bool) -> StoreUnavailable:
    return StoreUnavailable("interrupted while waiting for the store", sent=sent)


# --------------------------------------------------------------------------------------- async


class _AsyncLane:
    """One connection and the verbs that wait for it."""

    def __init__(self, gatherer: AsyncGatherer, rows_max: int) -> None:
        self._gatherer = gatherer
        self._connection = AsyncStoreConnection(gatherer.store)
        self._outage = Outage()
        self._queue: Queue[asyncio.Future[Any]] = Queue(rows_max=rows_max)
        self._worker: asyncio.Task[None] | None = None
        self._works = False
        """Set by the worker itself: an eager task may end before `create_task` returns it."""
        self._context = contextvars.Context()
        """Empty: the worker serves all callers, so it must not keep the context of the first."""

    def ask(self, verb: Verb, waiter: asyncio.Future[Any]) -> None:
        self._queue.add(Ticket(verb, waiter))
        if not self._works:
            self._works = True
            self._worker = waiter.get_loop().create_task(self._work(), context=self._context)

    async def _work(self) -> None:
        batch: list[Ticket[asyncio.Future[Any]]] = []
        try:
            while self._queue.waiting:
                batch = self._queue.take()
                # Do not claim for a caller that has gone.
                wanted = [t for t in batch if not (t.waiter.cancelled() and type(t.verb) is Insert)]
                if wanted:
                    await self._serve(wanted)
                if self._queue.waiting:  # a reply may come without a wait: let other tasks run
                    await asyncio.sleep(0)
        except BaseException:  # cancelled: no caller may wait for a worker that is gone
            self._connection.abandon()
            _fail(batch, _interruption(sent=True))
            while batch := self._queue.take():
                _fail(batch, _interruption(sent=False))
            raise
        finally:
            self._works = False

    async def _serve(self, batch: list[Ticket[asyncio.Future[Any]]]) -> None:
        try:
            outcomes = await self._connection.perform([ticket.verb for ticket in batch])
            served = list(zip(batch, outcomes, strict=True))
        except StoreUnavailable as error:
            self._outage.record_failure(error)
            _fail(batch, error)
        except Exception as error:
            if isinstance(error, StoreUnfit) and not self._connection.is_connected:
                _fail(batch, error)  # the connection failed, not a verb
            elif len(batch) > 1:  # one bad member fails alone
                for ticket in batch:
                    await self._serve([ticket])
            elif not batch[0].waiter.done():
                batch[0].waiter.set_exception(error)
        else:
            if self._outage.failed_at is not None:
                self._outage.record_success()
            for ticket, outcome in served:
                if outcome is AGAIN:
                    self._gatherer.ask_alone(ticket)
                elif not ticket.waiter.done():
                    ticket.waiter.set_result(outcome)

    async def close(self) -> None:
        if self._works and self._worker is not None:
            await self._worker
        await self._connection.close()


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
        """Return a verb's outcome, the result of an `Offload`, or None after a `Pause`."""
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
        group = self.store.group(question)
        (self._lanes.get(group) or self._lane(group)).ask(question, waiter)
        return waiter

    def ask_alone(self, ticket: Ticket[asyncio.Future[Any]]) -> None:
        self._lane(ALONE, rows_max=1).ask(ticket.verb, ticket.waiter)

    def _lane(self, group: Hashable, rows_max: int = BATCH_ROWS_MAX) -> _AsyncLane:
        lane = self._lanes.get(group)
        if lane is None:
            lane = self._lanes[group] = _AsyncLane(self, rows_max)
        return lane

    async def close(self) -> None:
        """Serve the queued verbs, then close the connections."""
        while self._lanes:  # serving one lane may open another, for verbs asked again alone
            group, lane = next(iter(self._lanes.items()))
            await lane.close()
            self._lanes.pop(group, None)


# ---------------------------------------------------------------------------------------- sync


class _Waiter:
    """A thread that waits for its verb's outcome, or to become the leader."""

    __slots__ = ("error", "event", "outcome", "settled")

    def __init__(self) -> None:
        self.event: threading.Event | None = None
        """Only followers have one: creating it is most of the cost, and a leader never waits."""
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

    There is no separate thread: the first caller leads and sends the batches of the others. When
    its own verb is served, it makes the caller that has waited longest the leader.
    """

    def __init__(self, gatherer: Gatherer, rows_max: int) -> None:
        self._gatherer = gatherer
        self._connection = StoreConnection(gatherer.store)
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
                    waiter.event = threading.Event()  # before queueing, or nothing could wake it
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
        except BaseException:  # raised by a signal: do not take a lead along
            with self._mutex:
                self._queue.discard(ticket)
                if event.is_set() and not ticket.waiter.settled:
                    self._hand_over()
            raise

    def _leave(self, ticket: Ticket[_Waiter]) -> None:
        """Pass on the lead: a signal may interrupt a leader between any two steps."""
        with self._mutex:
            if not ticket.waiter.settled:
                self._queue.discard(ticket)
            if self._leader is ticket:
                self._hand_over()
            elif self._leader is not None:  # it may not have been woken yet
                self._leader.waiter.wake()

    def _lead(self, own: Ticket[_Waiter]) -> None:
        batch: list[Ticket[_Waiter]] = []
        try:
            while not own.waiter.settled:
                with self._mutex:
                    batch = self._queue.take()
                self._serve(batch)
        except BaseException:
            self._connection.abandon()
            for ticket in batch:
                if not ticket.waiter.settled:
                    ticket.waiter.settle(None, _interruption(sent=True))
            raise
        finally:
            with self._mutex:
                if not own.waiter.settled:  # interrupted before it was sent
                    self._queue.discard(own)
                self._hand_over()

    def _hand_over(self) -> None:
        """Make the thread that has waited longest the leader. The caller holds the mutex."""
        heir = self._leader = self._queue.oldest()
        if heir is not None:
            heir.waiter.wake()
        else:
            self._idle.notify_all()

    def _serve(self, batch: list[Ticket[_Waiter]]) -> None:
        try:
            outcomes = self._connection.perform([ticket.verb for ticket in batch])
            served = list(zip(batch, outcomes, strict=True))
        except StoreUnavailable as error:
            self._outage.record_failure(error)
            for ticket in batch:
                ticket.waiter.settle(None, _copy(error))
        except Exception as error:
            if isinstance(error, StoreUnfit) and not self._connection.is_connected:
                for ticket in batch:  # the connection failed, not a verb
                    ticket.waiter.settle(None, _copy(error))
            elif len(batch) > 1:  # one bad member fails alone
                for ticket in batch:
                    self._serve([ticket])
            else:
                batch[0].waiter.settle(None, error)
        else:
            if self._outage.failed_at is not None:
                self._outage.record_success()
            for ticket, outcome in served:
                ticket.waiter.settle(outcome)

    def close(self) -> None:
        with self._idle:
            self._idle.wait_for(lambda: self._leader is None)
            self._connection.close()


_inherited: list[dict[Hashable, _Lane]] = []
"""Lanes that a forked child inherited: kept, because collecting a connection closes it."""


class Gatherer:
    """A store for threads: `gatherer.ask(verb)` blocks."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lanes: dict[Hashable, _Lane] = {}
        self._mutex = threading.Lock()
        self._pid = os.getpid()

    def ask(self, question: Any) -> Any:
        """Return a verb's outcome, the result of an `Offload`, or None after a `Pause`."""
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
        """In a forked child, never use the parent's connections, not even to close them."""
        _inherited.append(self._lanes)
        self._lanes, self._mutex, self._pid = {}, threading.Lock(), os.getpid()

    def close(self) -> None:
        """Wait until the queued verbs are served, then close the connections."""
        if os.getpid() != self._pid:
            self._leave_to_parent()
        for group, lane in list(self._lanes.items()):
            lane.close()
            self._lanes.pop(group, None)
