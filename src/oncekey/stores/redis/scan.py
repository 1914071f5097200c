"""Verbs that name no record, on Redis: walk over the keys with SCAN. Pure.

There is no index. A claim and a completion are one script call on one key, which any cluster can
route; an index of deadlines or tenants would be a second key on another node, or one key that all
writers share. So these verbs, which no request waits for, scan: a bounded portion per question, on
a connection of their own. `Due` and `Sweep` read a bounded number of keys per call and continue
where the last call ended: records with a TTL vanish without a sweep, and a lapsed record is found
first by its own retry. `Scan`, `Count` and `Purge` are correct only after a full scan, so they do
one.

Work that no client retries must be found in time, so the few records that may be abandoned are
listed: `open`, in record.lua. One portion of a scan beside it finds those that an older release has
not listed.

SCAN returns every key that exists throughout, and may return one twice while the server resizes its
table: `Count` can then be too high, the other verbs are not affected.
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
"""About how many keys one question reads."""
PORTIONS_MAX = 20
"""How many portions one `Due` or `Sweep` reads."""

SAMPLE_PORTIONS_MAX = 200

_SUMMARY_FIELDS = ("state", "tenant", "key", "lease_until", "expires", "recovery")
_DIGITS = re.compile(rb"[:/]((?:[0-9a-f]{2})+)\Z")


@dataclass(frozen=True, slots=True)
class _Summary:
    """The fields of a record that a scan reads."""

    id: bytes
    state: State
    tenant: bytes
    is_blank: bool
    lease_until: int
    expires: int
    recovery: bytes

    def is_lapsed(self, now: int) -> bool:
        return self.state is State.RUNNING and self.lease_until <= now

    def is_due(self, now: int) -> bool:
        return self.expires <= now or self.is_lapsed(now)

    def is_abandoned(self, now: int) -> bool:
        return self.is_lapsed(now) and self.recovery != b"rerun"


class Keyspace(Protocol):
    """What the scans need to know of their store."""

    @property
    def pattern(self) -> str: ...
    def key(self, record_id: bytes) -> str: ...
    def nodes(self) -> list[Any]: ...
    def open_lists(self, node: Any) -> list[str]: ...
    def ask_all(
        self, commands: list[Command], *, replicated: bool = False, node: Any = None
    ) -> Op[list[Any]]: ...


Position = tuple[int, int]
"""A place in a scan: the index of the node, and SCAN's cursor there."""
_START: Position = (0, 0)


class Search(enum.Enum):
    """Scans that continue where the last call ended."""

    DUE, SWEEP, ABANDONED = range(3)


class Scanner:
    """Scans for one store, over all of its nodes, one after the other."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace
        # Where the last call ended. If two threads collide here, a portion is read twice, or later.
        self._positions: dict[Search, Position] = dict.fromkeys(Search, _START)

    def perform(self, verb: Any) -> Op[Any]:
        return _METHODS[type(verb)](self, verb)

    def _read_portion(self, position: Position) -> Op[tuple[Position | None, int, list[_Summary]]]:
        """Return the next position (None at the end), the server's time, and this portion's
        records.
        """
        nodes = self._keyspace.nodes()
        number, cursor = position if position[0] < len(nodes) else _START  # nodes may have left
        scan = ("SCAN", cursor, "MATCH", self._keyspace.pattern, "COUNT", PORTION_KEYS)
        (next_cursor, keys), time = yield from self._keyspace.ask_all(
            [scan, ("TIME",)], node=nodes[number]
        )
        ids = [found for found in map(self._record_id, keys) if found is not None]
        rows = yield from self._read_fields(ids, _SUMMARY_FIELDS)
        summaries = [
            _Summary(
                record_id,
                STATES[state],
                tenant,
                key == b"",
                int(lease_until),
                int(expires),
                recovery,
            )
            for record_id, (state, tenant, key, lease_until, expires, recovery) in zip(
                ids, rows, strict=True
            )
            if state is not None  # else it has vanished since
        ]
        after = (number, int(next_cursor)) if int(next_cursor) else self._next_node((number, 0))
        return after, _server_time_us(time), summaries

    def _next_node(self, position: Position) -> Position | None:
        """Return the start of the next node; None if there is none."""
        number = position[0] + 1
        return (number, 0) if number < len(self._keyspace.nodes()) else None

    def _record_id(self, key: bytes) -> bytes | None:
        """Return the id of the record in this key; None if it is not a record of this store."""
        digits = _DIGITS.search(key)
        if digits is None:
            return None
        record_id = bytes.fromhex(digits[1].decode())
        return record_id if self._keyspace.key(record_id).encode() == key else None

    def _read_fields(self, ids: Sequence[bytes], fields: Sequence[str]) -> Op[list[Any]]:
        """Read these fields of each record."""
        return self._keyspace.ask_all([("HMGET", self._keyspace.key(i), *fields) for i in ids])

    def _write(self, calls: list[Command]) -> Op[list[Any]]:
        return self._keyspace.ask_all(calls, replicated=True)

    def _due(self, verb: Due) -> Op[list[bytes]]:
        if verb.abandoned:
            return (yield from self._due_abandoned(verb.limit))
        due = yield from self._collect(Search.DUE, verb.limit, _Summary.is_due)
        age = [(s.lease_until if s.state is State.RUNNING else s.expires, s.id) for s in due]
        return [record_id for _, record_id in sorted(age)[: verb.limit]]

    def _due_abandoned(self, limit: int) -> Op[list[bytes]]:
        limit = max(limit, 0)
        summaries = yield from self._collect(Search.ABANDONED, limit, _Summary.is_abandoned, 1)
        since = {record.id: record.lease_until for record in summaries}
        nodes, failures = self._keyspace.nodes(), []
        for node in nodes:
            calls = [call("abandoned", key, limit) for key in self._keyspace.open_lists(node)]
            try:
                listed = yield from self._write(calls)
            except StoreUnavailable as failure:  # report what the other nodes hold
                failures.append(failure)
                continue
            for pairs in listed:
                for digits, lease_until in zip(pairs[::2], pairs[1::2], strict=True):
                    since[bytes.fromhex(digits.decode())] = int(lease_until)
        if len(failures) == len(nodes):
            raise failures[0]
        return sorted(since, key=lambda record_id: (since[record_id], record_id))[:limit]

    def _sweep(self, verb: Sweep) -> Op[int]:
        expired = yield from self._collect(
            Search.SWEEP, verb.limit, lambda summary, now: summary.expires <= now
        )
        # Only a hint: the script checks the expiry again when it removes the record.
        calls = [call("sweep", self._keyspace.key(summary.id)) for summary in expired[: verb.limit]]
        removed: int = sum((yield from self._write(calls)))
        return removed

    def _collect(
        self,
        search: Search,
        enough: int,
        matches: Callable[[_Summary, int], bool],
        portions_max: int = PORTIONS_MAX,
    ) -> Op[list[_Summary]]:
        """Return the matching records of the next portions, until there are enough."""
        found: dict[bytes, _Summary] = {}
        position, failures = self._positions[search], 0
        for portions in range(1, portions_max + 1):
            try:
                after, now, summaries = yield from self._read_portion(position)
            except StoreUnavailable:  # a hint from the other nodes is better than none
                failures += 1
                if failures >= len(self._keyspace.nodes()):
                    raise
                after, now, summaries = self._next_node(position), 0, []
            found.update({summary.id: summary for summary in summaries if matches(summary, now)})
            position = after or _START
            if after is None or (len(found) >= enough and portions >= len(self._keyspace.nodes())):
                break
        self._positions[search] = position
        return list(found.values())

    def _count(self, verb: Count) -> Op[dict[State, int]]:
        counts = dict.fromkeys(State, 0)
        position: Position | None = _START
        while position is not None:
            position, _, summaries = yield from self._read_portion(position)
            for summary in summaries:
                counts[summary.state] += 1
        return counts

    def _scan(self, verb: Scan) -> Op[list[Record]]:
        records: list[Record] = []
        after, more = verb.after, True
        while more and len(records) < verb.limit:
            missing = verb.limit - len(records)
            ids = yield from self._lowest_ids(missing, after, verb)
            (time,) = yield from self._keyspace.ask_all([("TIME",)], node=self._keyspace.nodes()[0])
            rows, now = (yield from self._read_fields(ids, FIELDS[:-1])), _server_time_us(time)
            # Some may have vanished since the scan, which leaves room for more.
            records += [record(i, row, now) for i, row in zip(ids, rows, strict=True) if row[0]]
            more = len(ids) == missing
            after = ids[-1] if ids else after
        return records

    def sample(self, limit: int) -> Op[Sample]:
        """Return the records of the first portions, until there are enough."""
        found: dict[bytes, Record] = {}
        position: Position | None = _START
        for _ in range(SAMPLE_PORTIONS_MAX):
            if position is None or len(found) >= limit:
                break
            position, now, summaries = yield from self._read_portion(position)
            ids = [summary.id for summary in summaries]
            rows = yield from self._read_fields(ids, FIELDS[:-1])
            found |= {i: record(i, row, now) for i, row in zip(ids, rows, strict=True) if row[0]}
        return Sample(list(found.values()), whole=position is None)

    def _lowest_ids(self, count: int, after: bytes, verb: Scan) -> Op[list[bytes]]:
        """Return the lowest matching ids after `after`; SCAN itself returns keys in no order."""
        tenant = None if verb.tenant is None else as_bytes(verb.tenant)
        smallest: list[bytes] = []
        position: Position | None = _START
        while position is not None:
            position, _, summaries = yield from self._read_portion(position)
            fitting = {
                summary.id
                for summary in summaries
                if summary.id > after
                and verb.state in (None, summary.state)
                and tenant in (None, summary.tenant)
            }
            smallest = heapq.nsmallest(count, fitting.union(smallest))
        return smallest

    def _purge(self, verb: Purge) -> Op[int]:
        tenant = as_bytes(verb.tenant)
        purged = 0
        position: Position | None = _START
        while position is not None and purged < verb.limit:
            position, _, summaries = yield from self._read_portion(position)
            calls = [
                call("purge", self._keyspace.key(summary.id), tenant)
                for summary in summaries
                if summary.tenant == tenant
                and summary.state is not State.RUNNING
                and not summary.is_blank
            ]
            purged += sum((yield from self._write(calls[: verb.limit - purged])))
        return purged

    def _tally(self, verb: Tally) -> Op[None]:
        ids = verb.replays.keys() | verb.conflicts.keys()
        yield from self._write(
            [
                call(
                    "tally", self._keyspace.key(i), verb.replays.get(i, 0), verb.conflicts.get(i, 0)
                )
                for i in sorted(ids)
            ]
        )


def _server_time_us(time: Sequence[Any]) -> int:
    """Convert the reply of TIME to microseconds."""
    seconds, micros = time
    return int(seconds) * 1_000_000 + int(micros)


_METHODS: dict[type, Callable[[Scanner, Any], Op[Any]]] = {
    Tally: Scanner._tally,
    Due: Scanner._due,
    Sweep: Scanner._sweep,
    Scan: Scanner._scan,
    Count: Scanner._count,
    Purge: Scanner._purge,
}
