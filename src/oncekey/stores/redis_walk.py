"""Verbs that name no record, on Redis: a walk over the keys with SCAN. Pure: `redis.py` asks.

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
from typing import Any

from oncekey.core.framing import as_bytes
from oncekey.core.op import Op
from oncekey.core.record import Record, State
from oncekey.core.verbs import Count, Due, Purge, Scan, Sweep, Tally
from oncekey.stores.redis_calls import FIELDS, STATES, Command, call, record

PORTION_KEYS = 250
"""About how many keys one question looks at."""
PORTIONS_MAX = 20
"""How many portions one `Due` or `Sweep` looks at."""

_SIGHTED = ("state", "tenant", "key", "lease_until", "expires", "recovery")
_HEX = re.compile(rb"(?:[0-9a-f]{2})+")


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


Ask = Callable[[list[Command]], Op[list[Any]]]


class Walk(enum.Enum):
    """The walks that go on where they ended: how many portions one call looks at."""

    DUE = 0, PORTIONS_MAX
    SWEEP = 1, PORTIONS_MAX
    ABANDONED = 2, 1


class Walker:
    """The walks of one store.

    `ask` answers commands and raises if one of them failed; `change` does so for those that write.
    """

    def __init__(self, prefix: str, ask: Ask, change: Ask) -> None:
        self._prefix = f"{prefix}:"
        self._ask = ask
        self._change = change
        # Where the last call ended. If two threads collide here, a portion is seen twice, or later.
        self._cursors: dict[Walk, int] = dict.fromkeys(Walk, 0)

    def perform(self, verb: Any) -> Op[Any]:
        return _WALKS[type(verb)](self, verb)

    def _portion(self, cursor: int) -> Op[tuple[int, int, list[_Sighting]]]:
        """The next cursor (0 at the end), the server's time, and the records of this portion."""
        scan = ("SCAN", cursor, "MATCH", f"{self._prefix}*", "COUNT", PORTION_KEYS)
        ((following, keys),) = yield from self._ask([scan])
        start = len(self._prefix)
        keys = [key for key in keys if _HEX.fullmatch(key, start)]
        now, rows = yield from self._read(keys, _SIGHTED)
        sightings = [
            _Sighting(
                bytes.fromhex(key[start:].decode()),
                STATES[state],
                tenant,
                blanked == b"",
                int(lease_until),
                int(expires),
                recovery,
            )
            for key, (state, tenant, blanked, lease_until, expires, recovery) in zip(
                keys, rows, strict=True
            )
            if state is not None  # it vanished since
        ]
        return int(following), now, sightings

    def _read(self, keys: Sequence[Any], fields: Sequence[str]) -> Op[tuple[int, list[Any]]]:
        """The server's time, and these fields of each key."""
        commands: list[Command] = [("TIME",), *(("HMGET", key, *fields) for key in keys)]
        (seconds, micros), *rows = yield from self._ask(commands)
        return int(seconds) * 1_000_000 + int(micros), rows

    def _key(self, record_id: bytes) -> str:
        return self._prefix + record_id.hex()

    def _due(self, verb: Due) -> Op[list[bytes]]:
        if verb.abandoned:
            return (yield from self._abandoned(verb.limit))
        due = yield from self._expected(Walk.DUE, verb.limit, _Sighting.due)
        age = [(s.lease_until if s.state is State.RUNNING else s.expires, s.id) for s in due]
        return [record_id for _, record_id in sorted(age)[: verb.limit]]

    def _abandoned(self, limit: int) -> Op[list[bytes]]:
        limit = max(limit, 0)
        (listed,) = yield from self._change([call("abandoned", f"{self._prefix}open", limit)])
        seen = yield from self._expected(Walk.ABANDONED, limit, _Sighting.abandoned)
        since = {record.id: record.lease_until for record in seen}
        for digits, lease_until in zip(listed[::2], listed[1::2], strict=True):
            since[bytes.fromhex(digits.decode())] = int(lease_until)
        return sorted(since, key=lambda record_id: (since[record_id], record_id))[:limit]

    def _sweep(self, verb: Sweep) -> Op[int]:
        expired = yield from self._expected(
            Walk.SWEEP, verb.limit, lambda seen, now: seen.expires <= now
        )
        # Only a hint so far: the script judges again, at the removal.
        calls = [call("sweep", self._key(seen.id)) for seen in expired[: verb.limit]]
        removed: int = sum((yield from self._change(calls)))
        return removed

    def _expected(
        self, walk: Walk, enough: int, wanted: Callable[[_Sighting, int], bool]
    ) -> Op[list[_Sighting]]:
        """What is wanted of the next portions, until there is enough of it."""
        found: dict[bytes, _Sighting] = {}
        cursor = self._cursors[walk]
        _, portions = walk.value
        for _ in range(portions):
            cursor, now, sightings = yield from self._portion(cursor)
            found.update({seen.id: seen for seen in sightings if wanted(seen, now)})
            if len(found) >= enough or not cursor:
                break
        self._cursors[walk] = cursor
        return list(found.values())

    def _count(self, verb: Count) -> Op[dict[State, int]]:
        counts = dict.fromkeys(State, 0)
        cursor, walking = 0, True
        while walking:
            cursor, _, sightings = yield from self._portion(cursor)
            for seen in sightings:
                counts[seen.state] += 1
            walking = cursor != 0
        return counts

    def _scan(self, verb: Scan) -> Op[list[Record]]:
        records: list[Record] = []
        after, more = verb.after, True
        while more and len(records) < verb.limit:
            missing = verb.limit - len(records)
            ids = yield from self._smallest(missing, after, verb)
            now, rows = yield from self._read([self._key(i) for i in ids], FIELDS[:-1])
            # Some may have vanished since they were sighted, which leaves room for the next.
            records += [record(i, row, now) for i, row in zip(ids, rows, strict=True) if row[0]]
            more = len(ids) == missing
            after = ids[-1] if ids else after
        return records

    def _smallest(self, count: int, after: bytes, verb: Scan) -> Op[list[bytes]]:
        """The lowest ids after `after` that the scan asks for: SCAN itself knows no order."""
        tenant = None if verb.tenant is None else as_bytes(verb.tenant)
        smallest: list[bytes] = []
        cursor, walking = 0, True
        while walking:
            cursor, _, sightings = yield from self._portion(cursor)
            fitting = {
                seen.id
                for seen in sightings
                if seen.id > after
                and verb.state in (None, seen.state)
                and tenant in (None, seen.tenant)
            }
            smallest = heapq.nsmallest(count, fitting.union(smallest))
            walking = cursor != 0
        return smallest

    def _purge(self, verb: Purge) -> Op[int]:
        tenant = as_bytes(verb.tenant)
        purged, cursor, walking = 0, 0, True
        while walking and purged < verb.limit:
            cursor, _, sightings = yield from self._portion(cursor)
            calls = [
                call("purge", self._key(seen.id), tenant)
                for seen in sightings
                if seen.tenant == tenant and seen.state is not State.RUNNING and not seen.blank
            ]
            purged += sum((yield from self._change(calls[: verb.limit - purged])))
            walking = cursor != 0
        return purged

    def _tally(self, verb: Tally) -> Op[None]:
        ids = verb.replays.keys() | verb.conflicts.keys()
        yield from self._change(
            [
                call("tally", self._key(i), verb.replays.get(i, 0), verb.conflicts.get(i, 0))
                for i in sorted(ids)
            ]
        )


_WALKS: dict[type, Callable[[Walker, Any], Op[Any]]] = {
    Tally: Walker._tally,
    Due: Walker._due,
    Sweep: Walker._sweep,
    Scan: Walker._scan,
    Count: Walker._count,
    Purge: Walker._purge,
}
