"""Verbs that name no record, on Redis: a walk over the keys with SCAN. Pure.

There is no index. A claim and a completion are one script call on one key, which any cluster can
route; an index of deadlines or tenants would be a second key on some other node, or one key that
all writers share. So these verbs, which nobody waits for, walk: a bounded portion per question, on
a connection of their own. `Due` and `Sweep` look at a bounded number of keys per call and go on
where the last call ended: what vanishes by itself needs no sweep, and a lapsed record is met by its
own retry first. `Scan`, `Count` and `Purge` are right only after the whole walk, and make it.

What nobody retries must be found in time, so those few that may be abandoned are listed: `open`, in
record.lua. One portion of the walk beside it finds what an older release has not listed.

SCAN gives every key that is there throughout, and may give one twice while the server resizes its
table: `Count` can then be too high, the others do not mind.
"""

from __future__ import annotations

import enum
import heapq
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from oncekey._core.framing import as_bytes
from oncekey._core.op import Op
from oncekey._core.record import Record, State
from oncekey._core.verbs import Count, Due, Purge, Scan, Sweep, Tally
from oncekey.errors import StoreUnavailable
from oncekey.stores.checks import Sample
from oncekey.stores.redis.verbs import FIELDS, STATES, Command, call, record

PORTION_KEYS = 250
"""About how many keys one question looks at."""
PORTIONS_MAX = 20
"""How many portions one `Due` or `Sweep` looks at."""

SAMPLE_PORTIONS_MAX = 200

_SIGHTED = ("state", "tenant", "key", "lease_until", "expires", "recovery")
_DIGITS = re.compile(rb"[:/]((?:[0-9a-f]{2})+)\Z")


@dataclass(frozen=True, slots=True)
class _Sighting:
    """What a walk sees of a record in passing."""

    id: bytes
    state: State
    tenant: bytes
    blank: bool
    lease_until: int
    expires: int
    recovery: bytes

    def lapsed(self, now: int) -> bool:
        return self.state is State.RUNNING and self.lease_until <= now

    def due(self, now: int) -> bool:
        return self.expires <= now or self.lapsed(now)

    def abandoned(self, now: int) -> bool:
        return self.lapsed(now) and self.recovery != b"rerun"


class Ground(Protocol):
    """What a walk needs to know of its store."""

    @property
    def pattern(self) -> str: ...
    def key(self, record_id: bytes) -> str: ...
    def nodes(self) -> list[Any]: ...
    def lists(self, node: Any) -> list[str]: ...
    def ask_all(
        self, commands: list[Command], *, certain: bool = False, node: Any = None
    ) -> Op[list[Any]]: ...


Spot = tuple[int, int]
"""Where a walk is: on the how many-th node, and SCAN's cursor there."""
_START: Spot = (0, 0)


class Walk(enum.Enum):
    """The walks that go on where they ended."""

    DUE, SWEEP, ABANDONED = range(3)


class Walker:
    """The walks of one store, over all of its nodes, one after the other."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        # Where the last call ended. If two threads collide here, a portion is seen twice, or later.
        self._spots: dict[Walk, Spot] = dict.fromkeys(Walk, _START)

    def perform(self, verb: Any) -> Op[Any]:
        return _WALKS[type(verb)](self, verb)

    def _portion(self, spot: Spot) -> Op[tuple[Spot | None, int, list[_Sighting]]]:
        """The next spot (None at the end), the server's time, and the records of this portion."""
        nodes = self._ground.nodes()
        number, cursor = spot if spot[0] < len(nodes) else _START  # some may have gone
        scan = ("SCAN", cursor, "MATCH", self._ground.pattern, "COUNT", PORTION_KEYS)
        (following, keys), time = yield from self._ground.ask_all(
            [scan, ("TIME",)], node=nodes[number]
        )
        ids = [found for found in map(self._id, keys) if found is not None]
        rows = yield from self._rows(ids, _SIGHTED)
        sightings = [
            _Sighting(
                record_id,
                STATES[state],
                tenant,
                blanked == b"",
                int(lease_until),
                int(expires),
                recovery,
            )
            for record_id, (state, tenant, blanked, lease_until, expires, recovery) in zip(
                ids, rows, strict=True
            )
            if state is not None  # it vanished since
        ]
        after = (number, int(following)) if int(following) else self._beyond((number, 0))
        return after, _micros(time), sightings

    def _beyond(self, spot: Spot) -> Spot | None:
        """The beginning of the next node; None if there is none."""
        number = spot[0] + 1
        return (number, 0) if number < len(self._ground.nodes()) else None

    def _id(self, key: bytes) -> bytes | None:
        """The record that a key holds, if it holds one of this store's."""
        digits = _DIGITS.search(key)
        if digits is None:
            return None
        record_id = bytes.fromhex(digits[1].decode())
        return record_id if self._ground.key(record_id).encode() == key else None

    def _rows(self, ids: Sequence[bytes], fields: Sequence[str]) -> Op[list[Any]]:
        """These fields of each record."""
        return self._ground.ask_all([("HMGET", self._ground.key(i), *fields) for i in ids])

    def _change(self, calls: list[Command]) -> Op[list[Any]]:
        return self._ground.ask_all(calls, certain=True)

    def _due(self, verb: Due) -> Op[list[bytes]]:
        if verb.abandoned:
            return (yield from self._abandoned(verb.limit))
        due = yield from self._expected(Walk.DUE, verb.limit, _Sighting.due)
        age = [(s.lease_until if s.state is State.RUNNING else s.expires, s.id) for s in due]
        return [record_id for _, record_id in sorted(age)[: verb.limit]]

    def _abandoned(self, limit: int) -> Op[list[bytes]]:
        limit = max(limit, 0)
        seen = yield from self._expected(Walk.ABANDONED, limit, _Sighting.abandoned, 1)
        since = {record.id: record.lease_until for record in seen}
        nodes, failures = self._ground.nodes(), []
        for node in nodes:
            calls = [call("abandoned", key, limit) for key in self._ground.lists(node)]
            try:
                listed = yield from self._change(calls)
            except StoreUnavailable as failure:  # what the others hold need not wait for it
                failures.append(failure)
                continue
            for pairs in listed:
                for digits, lease_until in zip(pairs[::2], pairs[1::2], strict=True):
                    since[bytes.fromhex(digits.decode())] = int(lease_until)
        if len(failures) == len(nodes):
            raise failures[0]
        return sorted(since, key=lambda record_id: (since[record_id], record_id))[:limit]

    def _sweep(self, verb: Sweep) -> Op[int]:
        expired = yield from self._expected(
            Walk.SWEEP, verb.limit, lambda seen, now: seen.expires <= now
        )
        # Only a hint so far: the script judges again, at the removal.
        calls = [call("sweep", self._ground.key(seen.id)) for seen in expired[: verb.limit]]
        removed: int = sum((yield from self._change(calls)))
        return removed

    def _expected(
        self,
        walk: Walk,
        enough: int,
        wanted: Callable[[_Sighting, int], bool],
        portions_max: int = PORTIONS_MAX,
    ) -> Op[list[_Sighting]]:
        """What is wanted of the next portions, until there is enough of it."""
        found: dict[bytes, _Sighting] = {}
        spot, failures = self._spots[walk], 0
        for looked in range(1, portions_max + 1):
            try:
                after, now, sightings = yield from self._portion(spot)
            except StoreUnavailable:  # a hint at what the other nodes hold is better than none
                failures += 1
                if failures >= len(self._ground.nodes()):
                    raise
                after, now, sightings = self._beyond(spot), 0, []
            found.update({seen.id: seen for seen in sightings if wanted(seen, now)})
            spot = after or _START
            if after is None or (len(found) >= enough and looked >= len(self._ground.nodes())):
                break
        self._spots[walk] = spot
        return list(found.values())

    def _count(self, verb: Count) -> Op[dict[State, int]]:
        counts = dict.fromkeys(State, 0)
        spot: Spot | None = _START
        while spot is not None:
            spot, _, sightings = yield from self._portion(spot)
            for seen in sightings:
                counts[seen.state] += 1
        return counts

    def _scan(self, verb: Scan) -> Op[list[Record]]:
        records: list[Record] = []
        after, more = verb.after, True
        while more and len(records) < verb.limit:
            missing = verb.limit - len(records)
            ids = yield from self._smallest(missing, after, verb)
            (time,) = yield from self._ground.ask_all([("TIME",)], node=self._ground.nodes()[0])
            rows, now = (yield from self._rows(ids, FIELDS[:-1])), _micros(time)
            # Some may have vanished since they were sighted, which leaves room for the next.
            records += [record(i, row, now) for i, row in zip(ids, rows, strict=True) if row[0]]
            more = len(ids) == missing
            after = ids[-1] if ids else after
        return records

    def sample(self, limit: int) -> Op[Sample]:
        """The records of the first portions, until there are enough of them."""
        found: dict[bytes, Record] = {}
        spot: Spot | None = _START
        for _ in range(SAMPLE_PORTIONS_MAX):
            if spot is None or len(found) >= limit:
                break
            spot, now, sightings = yield from self._portion(spot)
            ids = [seen.id for seen in sightings]
            rows = yield from self._rows(ids, FIELDS[:-1])
            found |= {i: record(i, row, now) for i, row in zip(ids, rows, strict=True) if row[0]}
        return Sample(list(found.values()), whole=spot is None)

    def _smallest(self, count: int, after: bytes, verb: Scan) -> Op[list[bytes]]:
        """The lowest ids after `after` that the scan asks for: SCAN itself knows no order."""
        tenant = None if verb.tenant is None else as_bytes(verb.tenant)
        smallest: list[bytes] = []
        spot: Spot | None = _START
        while spot is not None:
            spot, _, sightings = yield from self._portion(spot)
            fitting = {
                seen.id
                for seen in sightings
                if seen.id > after
                and verb.state in (None, seen.state)
                and tenant in (None, seen.tenant)
            }
            smallest = heapq.nsmallest(count, fitting.union(smallest))
        return smallest

    def _purge(self, verb: Purge) -> Op[int]:
        tenant = as_bytes(verb.tenant)
        purged = 0
        spot: Spot | None = _START
        while spot is not None and purged < verb.limit:
            spot, _, sightings = yield from self._portion(spot)
            calls = [
                call("purge", self._ground.key(seen.id), tenant)
                for seen in sightings
                if seen.tenant == tenant and seen.state is not State.RUNNING and not seen.blank
            ]
            purged += sum((yield from self._change(calls[: verb.limit - purged])))
        return purged

    def _tally(self, verb: Tally) -> Op[None]:
        ids = verb.replays.keys() | verb.conflicts.keys()
        yield from self._change(
            [
                call("tally", self._ground.key(i), verb.replays.get(i, 0), verb.conflicts.get(i, 0))
                for i in sorted(ids)
            ]
        )


def _micros(time: Sequence[Any]) -> int:
    """What TIME says."""
    seconds, micros = time
    return int(seconds) * 1_000_000 + int(micros)


_WALKS: dict[type, Callable[[Walker, Any], Op[Any]]] = {
    Tally: Walker._tally,
    Due: Walker._due,
    Sweep: Walker._sweep,
    Scan: Walker._scan,
    Count: Walker._count,
    Purge: Walker._purge,
}
