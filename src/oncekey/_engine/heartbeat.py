"""The heartbeat: renews the leases of attempts that still run.

It is a thread with a connection of its own, for sync and async applications alike: a handler that
blocks the event loop, or a crowd that keeps every other connection busy, must not cost a healthy
attempt its lease. Most handlers end before their first renewal is due; for them the heartbeat is
one `append`.

Where a handler has ended and a thread of it still runs, the heartbeat goes on, looks now and then
whether that has ended too, and then gives the record back.

It is stopped and joined, never cancelled, and a renewal that crosses with the attempt's own
completion is harmless: it needs a running record and changes neither fence nor token.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable

from oncekey._core.reasons import LossKind
from oncekey._core.verbs import Done, Refused, Swap
from oncekey._engine.attempt import Attempt
from oncekey._engine.lease import RENEWED, Phase
from oncekey._engine.ownership import Ownership
from oncekey._engine.store_calls import LEASE_MARGIN
from oncekey._system.clock import Clock, SystemClock
from oncekey._system.probes import probe
from oncekey.errors import StoreUnavailable
from oncekey.stores.base import Store
from oncekey.stores.batching import BATCH_ROWS_MAX
from oncekey.stores.connection import Outage, StoreConnection

_log = logging.getLogger("oncekey")

BEATS_PER_LEASE = 3
RETRY_S = 0.2
LINGER_S = 0.05
"""How often it is looked whether the threads have ended that a handler left running."""


class RenewalSchedule:
    """Who is due for renewal, and when. Pure.

    One lane per delay: within a lane, who was added first is due first, so that adding, finding
    the next and dropping whoever has ended cost the same however many there are.
    """

    def __init__(self) -> None:
        self._lanes: dict[float, dict[Attempt, float]] = {}

    def add(self, attempt: Attempt, now: float, delay_s: float) -> float:
        """When it will be due."""
        lane = self._lanes.get(delay_s)
        if lane is None:
            lane = self._lanes[delay_s] = {}
        at = lane[attempt] = now + delay_s
        return at

    def drop(self, attempt: Attempt) -> None:
        for lane in self._lanes.values():
            lane.pop(attempt, None)

    def next_at(self) -> float | None:
        """When somebody is due next."""
        return min(
            (next(iter(lane.values())) for lane in self._lanes.values() if lane), default=None
        )

    def take(self, now: float, limit: int = BATCH_ROWS_MAX) -> list[Attempt]:
        """At most `limit` attempts that are due; they are not scheduled any more."""
        due: list[Attempt] = []
        for lane in self._lanes.values():
            for attempt, at in lane.items():
                if at > now or len(due) == limit:
                    break
                due.append(attempt)
        for attempt in due:
            self.drop(attempt)
        return due


class _Stop:
    """That one thread is to stop, and what it makes of that."""

    def __init__(self) -> None:
        self.asked = False
        self.heard = threading.Event()
        """The renewal that was under way is over."""
        self.goes_on = False
        """Attempts still run: it ends when they have."""


class Heartbeat:
    """Renews attempts from `add` until they are finished, or ran for `run_s_max`: a handler that
    hangs must not hold its key for ever.
    """

    def __init__(self, store: Store, ownership: Ownership, clock: Clock | None = None) -> None:
        self._ownership = ownership
        self._clock = clock or SystemClock()
        self._store = store
        self._condition = threading.Condition()
        self._schedule = RenewalSchedule()
        self._lingering: set[Attempt] = set()
        self._outage = Outage(
            "leases",
            self._clock,
            fails="cannot be renewed",
            works="are renewed again",
            level=logging.WARNING,
        )
        self._gives_back_at = 0.0
        """Not before, what could not be given back."""
        self._wakes_at = 0.0
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._stop = _Stop()

    def add(self, attempt: Attempt) -> None:
        """Keep this attempt's lease alive, until `drop`."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        with self._condition:
            if self._thread is None:
                self._start()
            delay_s = attempt.claim.lease_s / BEATS_PER_LEASE
            if self._schedule.add(attempt, attempt.claimed_at, delay_s) < self._wakes_at:
                self._condition.notify()

    def drop(self, attempt: Attempt) -> None:
        """The attempt has ended. A renewal that is under way is harmless, and the last."""
        lease = attempt.lease
        if lease.phase is Phase.LINGERING:  # it is kept alive for the threads that it left running
            return
        with self._condition:
            if lease.phase is not Phase.ENDED:
                lease.phase = Phase.DROPPED
            self._schedule.drop(attempt)

    def linger(self, attempt: Attempt) -> None:
        """Its handler has ended, and a thread of it still runs: keep its lease alive until that
        ends too, then give the record back.
        """
        self.add(attempt)
        with self._condition:
            self._lingering.add(attempt)
            self._condition.notify()

    def _leave_to_parent(self) -> None:
        """In a forked child: threads do not survive a fork, the parent's attempts are not ours, and
        its condition may have been held by a thread that is not here to let it go.
        """
        self._condition, self._schedule = threading.Condition(), RenewalSchedule()
        self._lingering = set()
        self._thread, self._pid = None, os.getpid()

    def _start(self) -> None:
        # Each thread has its own: starting anew must not call back one that was told to stop.
        self._stop = _Stop()
        self._wakes_at = float("inf")
        self._thread = threading.Thread(
            target=self._run, args=(self._stop,), name="oncekey-heartbeat", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop, after the renewal that is under way. For what still runs it goes on beside whoever
        ends this process: another one must not take it over meanwhile.
        """
        if self._pid != os.getpid():
            self._leave_to_parent()
        with self._condition:
            stop, thread = self._stop, self._thread
            self._thread = None
            stop.asked = True
            self._condition.notify_all()
        if thread is not None:
            stop.heard.wait()
            if not stop.goes_on:
                thread.join()

    def _run(self, stop: _Stop) -> None:
        line = StoreConnection(self._store)
        try:
            while (due := self._await_due(stop)) is not None:
                self._beat(line, due)
                self._end_lingering(line)
        finally:
            stop.heard.set()
            line.close()

    def _await_due(self, stop: _Stop) -> list[Attempt] | None:
        """Sleep until somebody is due, or may have ended; None when it is time to stop."""
        with self._condition:
            while not stop.asked or self._must_go_on(stop):
                now = self._clock.monotonic()
                if due := self._schedule.take(now):
                    return due
                at = self._schedule.next_at()
                self._wakes_at = float("inf") if at is None else at
                wait_s = None if at is None else max(at - now, 0.001)
                if self._lingering:
                    self._condition.wait(LINGER_S if wait_s is None else min(wait_s, LINGER_S))
                    return []
                self._condition.wait(wait_s)
            return None

    def _must_go_on(self, stop: _Stop) -> bool:
        """Whether a thread that was told to stop has attempts to renew, and no other does."""
        stop.goes_on = self._thread is None and self._schedule.next_at() is not None
        stop.heard.set()
        return stop.goes_on

    def _beat(self, line: StoreConnection, due: list[Attempt]) -> None:
        alive = self._renewable(due, self._clock.monotonic())
        if not alive:
            return
        probe("before_renew")
        self._renew(line, alive)
        probe("after_renew")

    def _renew(self, line: StoreConnection, alive: list[Attempt]) -> None:
        now = self._clock.monotonic()
        try:
            outcomes = line.perform([self._ownership.renewal(attempt) for attempt in alive])
        except Exception as error:  # whatever it is, the next beat must come
            if len(alive) > 1 and not isinstance(error, StoreUnavailable):
                for attempt in alive:  # one bad member fails alone
                    self._renew(line, [attempt])
                return
            self._outage.record_failure(error)
            for attempt in alive:
                self._again([attempt], self._pause_s(attempt))
        else:
            self._outage.record_success()
            self._settle(zip(alive, outcomes, strict=True), asked_at=now)

    def _pause_s(self, attempt: Attempt) -> float:
        """Longer each time, but half of what is left of its lease at most: a store that is back is
        noticed while that counts, and a loss is signalled in time.
        """
        ends_at = attempt.lease.until - attempt.lease_s * LEASE_MARGIN
        left_s, pause_s = ends_at - self._clock.monotonic(), self._outage.pause_s(RETRY_S)
        while 0.0 < left_s < 2 * pause_s and pause_s > RETRY_S:
            pause_s /= 2  # so that there are few different ones, each of which has a lane
        return pause_s

    def _renewable(self, due: list[Attempt], now: float) -> list[Attempt]:
        """Those to renew in one round trip, in the order of their ids.

        One per record: where an attempt was taken over by another in this process, both are due,
        and no store is asked to change one record twice in a batch.
        """
        by_id: dict[bytes, Attempt] = {}
        for attempt in due:
            if _has_ended(attempt) or self._hangs(attempt, now):
                continue
            if by_id.setdefault(attempt.held.id, attempt) is not attempt:
                self._again([attempt], 0.0)
        return [by_id[record_id] for record_id in sorted(by_id)]

    def _settle(self, outcomes: Iterable[tuple[Attempt, object]], asked_at: float) -> None:
        for attempt, outcome in outcomes:
            if isinstance(outcome, Done | Refused):
                if self._ownership.record_renewal(attempt, outcome, asked_at):
                    self._again([attempt], attempt.lease_s / BEATS_PER_LEASE)
            else:  # its row is held by somebody else, most likely its own completion
                self._again([attempt], RETRY_S)

    def _again(self, attempts: list[Attempt], delay_s: float) -> None:
        now = self._clock.monotonic()
        for attempt in attempts:
            # Signalled before the deadline, so that a handler can stop while it still owns its
            # record.
            if now >= attempt.lease.until - attempt.lease_s * LEASE_MARGIN:
                self._ownership.lose(attempt, LossKind.NOT_RENEWED)
        with self._condition:
            for attempt in attempts:
                if not _has_ended(attempt):
                    delay = min(delay_s, attempt.lease_s / BEATS_PER_LEASE)
                    self._schedule.add(attempt, now, delay)

    def _end_lingering(self, line: StoreConnection) -> None:
        """Give back what no thread runs for any more. What cannot be told now is told later, or
        lapses.
        """
        for attempt, swap in self._left_alone():
            outcome = None
            if swap is not None:
                try:
                    [outcome] = line.perform([swap])
                except Exception as error:
                    self._outage.record_failure(error)
                    now, pause_s = self._clock.monotonic(), self._outage.pause_s(RETRY_S)
                    self._gives_back_at = now + pause_s
                    continue
                self._outage.record_success()
            self._give_back(attempt, outcome)

    def _left_alone(self) -> list[tuple[Attempt, Swap | None]]:
        """Attempts whose last thread has ended, and what the store is to be told of each."""
        if self._clock.monotonic() < self._gives_back_at:
            return []
        with self._condition:  # more are added meanwhile
            waiting = list(self._lingering)
        return [
            (attempt, _swap_of(attempt)) for attempt in waiting if not self._still_running(attempt)
        ]

    def _still_running(self, attempt: Attempt) -> bool:
        return attempt.still_running()

    def _give_back(self, attempt: Attempt, outcome: object) -> None:
        self._let_go(attempt)
        self._ownership.let_go(attempt, outcome)

    def _let_go(self, attempt: Attempt) -> None:
        with self._condition:
            self._lingering.discard(attempt)
            self._schedule.drop(attempt)

    def _hangs(self, attempt: Attempt, now: float) -> bool:
        if now - attempt.claimed_at < attempt.policy.run_s_max:
            return False
        self._ownership.lose(attempt, LossKind.RAN_TOO_LONG)
        self._let_go(attempt)
        return True


def _has_ended(attempt: Attempt) -> bool:
    return attempt.lease.phase not in RENEWED


def _swap_of(attempt: Attempt) -> Swap | None:
    """What the store is to be told when its last thread has ended."""
    leftover = attempt.lease.leftover
    return None if leftover is None or attempt.lost else leftover.swap
