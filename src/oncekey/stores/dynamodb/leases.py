"""Observed leases: for stores that have no clock in their conditions (P8).

A lease is over when the record has not changed for one lease on the monotonic clock of whoever
looks at it. So a look is remembered: when this process first saw the record as it is, told by its
fence and its beat, which rises with every renewal. Whoever looks for the first time sees a whole
lease; that is why a record may be stuck for two.

One observer's finding is everybody's: whoever has seen a lease end may say so in the record, at the
beat that it saw, and others then need no lease of their own. The next renewal makes it void.

What is remembered decides nothing by itself. A take-over presents the beat that was seen, and the
store carries it out only if that is still the beat: a renewal that this process never saw is in
nobody's way.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import weakref
from dataclasses import dataclass

from oncekey._system.clock import Clock, SystemClock

SIGHTINGS_MAX = 20_000
"""How many records are remembered. What is forgotten is seen for the first time again: its
take-over comes later, never too early.
"""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A running record as this process first saw it."""

    fence: int
    beat: int
    token: bytes
    lease_s: float
    since: float
    """After it was read: whoever renewed it did so before."""
    told: bool = False
    """Others know that it lapsed."""

    def left_s(self, now: float) -> float:
        return self.since + self.lease_s - now


class Sightings:
    """What one process saw of running records. Safe for threads."""

    def __init__(self, clock: Clock, *, sightings_max: int = SIGHTINGS_MAX) -> None:
        self._clock = clock
        self._max = sightings_max
        self._mutex = threading.Lock()
        self._seen: dict[bytes, Sighting] = {}  # whoever was looked at last stands last

    def __len__(self) -> int:
        return len(self._seen)

    def look(
        self,
        record_id: bytes,
        fence: int,
        beat: int,
        token: bytes,
        lease_s: float,
        *,
        lapsed: bool = False,
    ) -> float:
        """A running record was read just now: what is left of its lease, 0 or less if it lapsed.

        With `lapsed` another observer has found that it did. A look through an index may be older
        than what is known already, and changes nothing then.
        """
        now = self._clock.monotonic()
        with self._mutex:
            seen = self._seen.pop(record_id, None)
            if seen is None or (seen.fence, seen.beat) < (fence, beat):
                seen = Sighting(fence, beat, token, lease_s, now)
            if lapsed and not seen.told and (seen.fence, seen.beat) == (fence, beat):
                since = min(seen.since, now - lease_s)
                seen = dataclasses.replace(seen, since=since, told=True)
            self._seen[record_id] = seen
            if len(self._seen) > self._max:
                del self._seen[next(iter(self._seen))]
        return seen.left_s(now)

    def untold(self, limit: int) -> list[tuple[bytes, Sighting]]:
        """At most so many that were seen to lapse here, and that others may not know of."""
        now = self._clock.monotonic()
        with self._mutex:
            over = (pair for pair in self._seen.items() if not pair[1].told)
            return list(itertools.islice((p for p in over if p[1].left_s(now) <= 0), limit))

    def tell(self, record_id: bytes, seen: Sighting) -> None:
        """Others know of it now."""
        with self._mutex:
            if self._seen.get(record_id) is seen:
                self._seen[record_id] = dataclasses.replace(seen, told=True)

    def lapsed(self, record_id: bytes, fence: int, token: bytes) -> int | None:
        """The beat at which this owner's record was seen for a whole lease; None if it was not."""
        beat, left_s = self._known(record_id, fence, token)
        return beat if left_s <= 0 else None

    def overlong(self, record_id: bytes, fence: int, token: bytes, lease_s: float) -> int | None:
        """The beat at which more than one lease is left of it: it was renewed for longer."""
        beat, left_s = self._known(record_id, fence, token)
        return beat if left_s > lease_s * 1.001 else None

    def _known(self, record_id: bytes, fence: int, token: bytes) -> tuple[int | None, float]:
        seen = self._seen.get(record_id)
        if seen is None or (seen.fence, seen.token) != (fence, token):
            return None, 0.0
        return seen.beat, seen.left_s(self._clock.monotonic())

    def forget(self, record_id: bytes) -> None:
        """It does not run any more."""
        if record_id in self._seen:
            with self._mutex:
                self._seen.pop(record_id, None)


_of_places: weakref.WeakValueDictionary[str, Sightings] = weakref.WeakValueDictionary()
_places = threading.Lock()


def sightings_of(place: str) -> Sightings:
    """What this process saw at a place, whichever of its stores looked: a recoverer and the
    application that it recovers for have one each.
    """
    with _places:
        found = _of_places.get(place)
        if found is None:
            found = _of_places[place] = Sightings(SystemClock())
        return found
