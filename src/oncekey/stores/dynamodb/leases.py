"""Observed leases: for stores whose conditions cannot read a clock (P8).

A lease is over when the record has not changed for one lease on the monotonic clock of the process
that reads it. So each process remembers when it first saw a running record as it is, identified by
its fence and its beat, which rises with every renewal. A process that reads a record for the first
time waits a whole lease; that is why a record may be stuck for two.

One process can share what it found: it writes into the record that the lease has lapsed, at the
beat that it saw, and others then need not wait a lease of their own. The next renewal makes that
void.

Dates would be no substitute: a wrong clock, the writer's or the server's, would take a healthy
lease away. So they measure retention alone, where a second does not matter.

Observations decide nothing by themselves. A take-over presents the beat that was seen, and the
store carries it out only if that is still the beat: a renewal that this process never saw makes the
take-over fail.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import weakref
from dataclasses import dataclass

from oncekey._system.clock import Clock, SystemClock

OBSERVATIONS_MAX = 20_000
"""How many records are remembered. A forgotten record is observed from the start again: its
take-over comes later, never too early.
"""


@dataclass(frozen=True, slots=True)
class Observation:
    """A running record as this process first saw it."""

    fence: int
    beat: int
    token: bytes
    lease_s: float
    since: float
    """When it was read, taken after the read: the renewal was earlier."""
    announced: bool = False
    """Other processes can see that it lapsed."""

    def left_s(self, now: float) -> float:
        return self.since + self.lease_s - now


class LeaseObserver:
    """What one process has seen of running records. Thread-safe."""

    def __init__(self, clock: Clock, *, observations_max: int = OBSERVATIONS_MAX) -> None:
        self._clock = clock
        self._max = observations_max
        self._mutex = threading.Lock()
        self._observations: dict[bytes, Observation] = {}  # in the order of the last read

    def __len__(self) -> int:
        return len(self._observations)

    def observe(
        self,
        record_id: bytes,
        fence: int,
        beat: int,
        token: bytes,
        lease_s: float,
        *,
        lapsed: bool = False,
    ) -> float:
        """Note that a running record was just read; return what is left of its lease, 0 or less if
        it lapsed.

        With `lapsed` another process has announced that it did. A read through an index may be
        older than what is known already, and then changes nothing.
        """
        now = self._clock.monotonic()
        with self._mutex:
            observation = self._observations.pop(record_id, None)
            if observation is None or (observation.fence, observation.beat) < (fence, beat):
                observation = Observation(fence, beat, token, lease_s, now)
            if (
                lapsed
                and not observation.announced
                and (observation.fence, observation.beat) == (fence, beat)
            ):
                since = min(observation.since, now - lease_s)
                observation = dataclasses.replace(observation, since=since, announced=True)
            self._observations[record_id] = observation
            if len(self._observations) > self._max:
                del self._observations[next(iter(self._observations))]
        return observation.left_s(now)

    def lapses_to_announce(self, limit: int) -> list[tuple[bytes, Observation]]:
        """Return at most so many records that lapsed here without other processes knowing."""
        now = self._clock.monotonic()
        with self._mutex:
            over = (pair for pair in self._observations.items() if not pair[1].announced)
            return list(itertools.islice((p for p in over if p[1].left_s(now) <= 0), limit))

    def mark_announced(self, record_id: bytes, observation: Observation) -> None:
        """Note that other processes can see the lapse now."""
        with self._mutex:
            if self._observations.get(record_id) is observation:
                self._observations[record_id] = dataclasses.replace(observation, announced=True)

    def lapsed_beat(self, record_id: bytes, fence: int, token: bytes) -> int | None:
        """Return the beat that this owner's record had for a whole lease; None if it did not
        lapse.
        """
        beat, left_s = self._beat_and_left_s(record_id, fence, token)
        return beat if left_s <= 0 else None

    def overlong_beat(
        self, record_id: bytes, fence: int, token: bytes, lease_s: float
    ) -> int | None:
        """Return the beat at which more than one lease is left: the record was renewed for
        longer.
        """
        beat, left_s = self._beat_and_left_s(record_id, fence, token)
        return beat if left_s > lease_s * 1.001 else None

    def _beat_and_left_s(
        self, record_id: bytes, fence: int, token: bytes
    ) -> tuple[int | None, float]:
        observation = self._observations.get(record_id)
        if observation is None or (observation.fence, observation.token) != (fence, token):
            return None, 0.0
        return observation.beat, observation.left_s(self._clock.monotonic())

    def forget(self, record_id: bytes) -> None:
        """Forget a record that is no longer running."""
        if record_id in self._observations:
            with self._mutex:
                self._observations.pop(record_id, None)


_observers: weakref.WeakValueDictionary[str, LeaseObserver] = weakref.WeakValueDictionary()
_observers_mutex = threading.Lock()


def observer_of(address: str) -> LeaseObserver:
    """Return the observer that all stores of this process share for an address: recovery and the
    application that it works for have one store each.
    """
    with _observers_mutex:
        found = _observers.get(address)
        if found is None:
            found = _observers[address] = LeaseObserver(SystemClock())
        return found
