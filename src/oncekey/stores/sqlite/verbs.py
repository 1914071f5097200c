"""The verbs, within one transaction of SQLite: read first, then write what is left.

Reading takes no lock; an insert is done if it finds its record. There is one writer at a time, so
what a write transaction reads still holds when it commits: a swap may read first and then write.
All verbs of a transaction happen at one moment, read after the transaction got the write lock;
`Single`, which never waits, reads it just before.

`Writer` defines the verbs, one by one. `Batch` carries out those of one kind by one statement.

Two clocks (P8). Leases are readings of the host's boot clock, which cannot be set; a lease of
another boot is over. Retention must survive a reboot and is measured by the wall clock; a record
whose lease is live is never expired, whatever that clock says.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import itertools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from oncekey._core.record import Claim, Glimpse, Record, State, Step, encode_headers
from oncekey._core.verbs import (
    AppendStep,
    Count,
    Done,
    Due,
    Find,
    Found,
    Insert,
    Inserted,
    Peek,
    Purge,
    Refused,
    Requested,
    Scan,
    Steps,
    Swap,
    Sweep,
    Tally,
    Verb,
    When,
)
from oncekey._system.clock import Clock
from oncekey.stores.sql import COLUMNS, encode_digests, record
from oncekey.stores.sqlite import statements
from oncekey.stores.sqlite.connection import Execute

ERASE_BYTES_MAX = 16_777_216
"""How much a sweep or a purge erases before it lets other writers in."""

BRIEF_BYTES_MAX = 65_536

_AGE, _LEFT, _EXPIRES = map(COLUMNS.index, statements.KEPT_AS)
_blob = bytearray
"""Bind bytes as this: for `bytes` the driver first looks for an adapter, which takes longer than
all the rest.
"""


class NotRead(enum.Enum):
    """Instead of an outcome: reading was not enough."""

    MUST_WRITE = "must write"


MUST_WRITE = NotRead.MUST_WRITE
WRITES = frozenset({Swap, AppendStep, Tally, Sweep, Purge})
"""Verbs that always need a write transaction."""


class NotAll(Exception):
    """A statement did not write all its rows, and does not say which."""


# ------------------------------------------------------------------------------------ reading


class Reader:
    """Verbs that write nothing. Each is one statement, and sees a snapshot of its own."""

    def __init__(self, clock: Clock, execute: Execute) -> None:
        self._execute = execute
        self._wall, self._now = clock.wall(), clock.boot()
        self._boot = boot_number(clock.boot_id())
        self._known: dict[bytes, Record] = {}

    def carry_out(self, verbs: Sequence[Verb]) -> list[Any]:
        """Return the outcomes in the same order; `MUST_WRITE` where reading is not enough."""
        self._known = self._find_all([verb.id for verb in verbs if type(verb) is Insert])
        return self._each(verbs)

    def _each(self, verbs: Sequence[Verb]) -> list[Any]:
        return [getattr(self, _METHODS[type(verb)])(verb) for verb in verbs]

    def _must_write(self, verb: Any) -> Any:
        return MUST_WRITE

    swap = append_step = tally = sweep = purge = _must_write

    def insert(self, verb: Insert) -> Any:
        known = self._known.get(verb.id)
        return MUST_WRITE if known is None else Found(known)

    def find(self, verb: Find) -> Record | None:
        return self._find(verb.id)

    def peek(self, verb: Peek) -> Glimpse | None:
        found = self._execute(statements.PEEK, (verb.id,)).fetchone()
        if found is None:
            return None
        state, fence, boot, lease_until = found
        return Glimpse(State(state), fence, self._lease_left_s(boot, lease_until))

    def steps(self, verb: Steps) -> list[Step]:
        return [Step(*row) for row in self._execute(statements.STEPS, (verb.id,)).fetchall()]

    def read_request(self, verb: Requested) -> bytes | None:
        row = self._execute(statements.REQUESTED, (verb.id,)).fetchone()
        return None if row is None else row[0]

    def due(self, verb: Due) -> list[bytes]:
        statement = statements.ABANDONED if verb.abandoned else statements.DUE
        moment = {"boot": self._boot, "now": self._now, "wall": self._wall}
        rows = self._execute(statement, {**moment, "limit": max(verb.limit, 0)}).fetchall()
        return [record_id for (record_id,) in rows]

    def scan(self, verb: Scan) -> list[Record]:
        state, tenant, limit = verb.state, verb.tenant, max(verb.limit, 0)
        parameters = (verb.after, state, state, tenant, tenant, limit)
        return [self._record(row) for row in self._execute(statements.SCAN, parameters).fetchall()]

    def count(self, verb: Count) -> dict[State, int]:
        rows = self._execute(statements.COUNT).fetchall()
        return dict.fromkeys(State, 0) | {State(state): count for state, count in rows}

    def _find(self, record_id: bytes) -> Record | None:
        row = self._execute(statements.find(1), (_blob(record_id),)).fetchone()
        return None if row is None else self._record(row)

    def _find_all(self, ids: list[bytes]) -> dict[bytes, Record]:
        found = {}
        for piece in statements.pieces([_blob(record_id) for record_id in ids]):
            for row in self._execute(statements.find(len(piece)), piece).fetchall():
                record = self._record(row)
                found[record.id] = record
        return found

    def _record(self, row: tuple[Any, ...]) -> Record:
        *kept, boot = row
        left = self._lease_left_s(boot, kept[_LEFT])
        kept[_AGE] = self._wall - kept[_AGE]
        kept[_LEFT] = left
        kept[_EXPIRES] -= self._wall
        if left > 0:
            kept[_EXPIRES] = max(kept[_EXPIRES], left)
        return record(kept)

    def _lease_left_s(self, boot: int, lease_until: float) -> float:
        return lease_until - self._now if boot == self._boot else 0.0


# ------------------------------------------------------------------------------------ writing


class Writer(Reader):
    """Verbs within a write transaction, one by one."""

    _floor: int | None = None

    def carry_out(self, verbs: Sequence[Verb]) -> list[Any]:
        """Return the outcomes in the same order."""
        return self._each(verbs)

    def insert(self, verb: Insert) -> Inserted | Found:
        inserted = self._execute(statements.INSERT, self._insert_row(verb.claim)).fetchall()
        if not inserted:
            [found] = self._find_all([verb.id]).values()
            return Found(found)
        self._keep_request(verb.claim)
        [(fence,)] = inserted
        return Inserted(fence)

    def swap(self, verb: Swap) -> Done | Refused:
        if verb.when is not When.ANY:
            found = self._find(verb.id)
            if found is None or not _HOLDS[verb.when](found):
                return Refused(found)
        if not self._swap_if_expected(verb):
            return Refused(self._find(verb.id))
        if verb.fresh:
            self._begin_anew(verb.id)
        if verb.state is State.UNKNOWN and verb.to is State.RELEASED:
            self._execute(statements.FORGET_BEGUN, (verb.id,))
        if verb.claim is not None:
            self._execute(statements.RECLAIM, (*_request(verb.claim), verb.id))
            self._keep_request(verb.claim)
        if verb.to is State.COMPLETED:
            self._execute(statements.keep_answers(1), _answer(verb))
        return Done(verb.fence + verb.raise_fence)

    def _swap_if_expected(self, verb: Swap) -> bool:
        """Change the claim if it is as expected."""
        token = _blob(verb.new_token or verb.token)
        owner = (verb.to._value_, int(verb.raise_fence), token, self._boot)
        counts = (verb.attempt, verb.lapses, int(verb.no_effect))
        parameters = owner + self._deadlines(verb) + counts + _owner(verb)
        return bool(self._execute(statements.SWAP, parameters).rowcount)

    def append_step(self, verb: AppendStep) -> Done | Refused:
        step = verb.step
        kept = (step.name, step.digest, step.result, verb.id, verb.fence, verb.token)
        if self._execute(statements.KEEP_STEP, kept).rowcount:
            return Done(verb.fence)
        return Refused(self._find(verb.id))

    def tally(self, verb: Tally) -> None:
        replays, conflicts = verb.replays, verb.conflicts
        rows = [
            (_blob(record_id), replays.get(record_id, 0), conflicts.get(record_id, 0))
            for record_id in {**replays, **conflicts}
        ]
        for piece in statements.pieces(rows):
            self._execute(statements.tally(len(piece)), _flat(piece))

    def sweep(self, verb: Sweep) -> int:
        wall, limit = self._wall, max(verb.limit, 0)
        expired = (wall, limit, wall, self._boot, self._now, limit)
        rows = _few_bytes(self._execute(statements.EXPIRED, expired).fetchall())
        for n, _, fence in rows:
            self._execute(statements.REMOVE_CLAIM, (n,))
            self._execute(statements.REMOVE_ANSWER, (n,))
            self._execute(statements.REMOVE_STEPS, (n,))
            if fence > self._fence_floor():
                self._execute("UPDATE oncekey_meta SET fence_floor = ?", (fence,))
                self._floor = fence
        return len(rows)

    def purge(self, verb: Purge) -> int:
        purgeable = (verb.tenant, max(verb.limit, 0))
        rows = _few_bytes(self._execute(statements.PURGEABLE, purgeable).fetchall())
        for n, _ in rows:
            self._execute(statements.BLANK_CLAIM, (n,))
            self._execute(statements.BLANK_ANSWER, (_NO_HEADERS, n))
            self._execute(statements.BLANK_STEPS, (n,))
        return len(rows)

    def _fence_floor(self) -> int:
        if self._floor is None:
            [self._floor] = self._execute(statements.FENCE_FLOOR).fetchone()
        return self._floor

    def _keep_request(self, claim: Claim) -> None:
        """Store the claim's request; that of an earlier claim is gone: see 0002_requests.sql."""
        if claim.request is not None:
            self._execute(statements.KEEP_REQUEST, (claim.request, claim.id))

    def _begin_anew(self, record_id: bytes) -> None:
        [n] = self._execute("SELECT n FROM oncekey_claims WHERE id = ?", (record_id,)).fetchone()
        self._execute(statements.BEGIN_ANEW, (self._wall, n))
        self._execute(statements.REMOVE_ANSWER, (n,))
        self._execute(statements.REMOVE_STEPS, (n,))

    def _insert_row(self, claim: Claim) -> tuple[Any, ...]:
        """Return all columns but the fence, as `statements` names them."""
        lease_until = self._now + claim.lease_s
        expires = self._wall + claim.lease_s + claim.retention_s
        owner = (_blob(claim.id), _blob(claim.token), self._boot)
        return (*owner, lease_until, expires, self._wall, *_request(claim))

    def _deadlines(self, verb: Swap) -> tuple[float, float]:
        """Return when its lease ends, and when it expires."""
        if verb.lease_s is None:
            return 0.0, self._wall + verb.retention_s
        return self._now + verb.lease_s, self._wall + verb.lease_s + verb.retention_s


class Single(Writer):
    """A verb that `is_single`, by its one statement. Raises `NotAll` if that writes nothing: a
    transaction then finds out why.
    """

    def insert(self, verb: Insert) -> Inserted:
        for (fence,) in self._execute(statements.INSERT, self._insert_row(verb.claim)).fetchall():
            return Inserted(fence)
        raise NotAll

    def swap(self, verb: Swap) -> Done:
        if not self._swap_if_expected(verb):
            raise NotAll
        return Done(verb.fence)


class Batch(Writer):
    """Verbs within a write transaction, those of one kind together.

    No two of them change the same id, so their order does not matter.
    """

    def carry_out(self, verbs: Sequence[Verb]) -> list[Any]:
        """Return the outcomes in the same order. Raises `NotAll` if they are not known: then commit
        nothing, and carry out the verbs one by one.
        """
        kinds = [_kind(verb) for verb in verbs]
        outcomes = {}
        for kind in dict.fromkeys(kinds):
            chosen = [verb for verb, its in zip(verbs, kinds, strict=True) if its is kind]
            outcomes[kind] = iter(getattr(self, kind)(chosen))
        return [next(outcomes[kind]) for kind in kinds]

    def _insert_all(self, verbs: list[Insert]) -> list[Inserted]:
        fence = self._fence_floor() + 1
        rows = [(fence, *self._insert_row(verb.claim)) for verb in verbs]
        for piece in statements.pieces(rows):
            self._all(piece, statements.insert, _flat(piece))
        for verb in verbs:
            self._keep_request(verb.claim)
        return [Inserted(fence)] * len(verbs)

    def _swap_all(self, verbs: list[Swap]) -> list[Done]:
        rows = [(*_owner(verb), verb.to._value_, *self._deadlines(verb)) for verb in verbs]
        for piece in statements.pieces(rows):
            self._all(piece, statements.plain_swaps, [self._boot, *_flat(piece)])
        answers = [_answer(verb) for verb in verbs if verb.to is State.COMPLETED]
        for kept in statements.pieces(answers):
            self._all(kept, statements.keep_answers, _flat(kept))
        return [Done(verb.fence) for verb in verbs]

    def _all(self, rows: list[Any], statement: Callable[[int], str], parameters: list[Any]) -> None:
        if self._execute(statement(len(rows)), parameters).rowcount != len(rows):
            raise NotAll


def _kind(verb: Verb) -> str:
    if type(verb) is Insert:
        return "_insert_all"
    return "_swap_all" if type(verb) is Swap and _is_plain(verb) else "_each"


def _is_plain(verb: Swap) -> bool:
    """Whether it changes only the state, the deadlines and the answer."""
    return (
        verb.when is When.ANY
        and (verb.new_token, verb.claim, verb.attempt, verb.lapses) == (None, None, None, None)
        and not (verb.raise_fence or verb.fresh or verb.no_effect)
    )


def is_single(verb: Verb) -> bool:
    """Whether one statement is enough, if it writes anything."""
    if type(verb) is Swap:
        return _is_plain(verb) and verb.state is verb.to is State.RUNNING
    return type(verb) is Insert and verb.claim.request is None


def is_brief(verb: Verb) -> bool:
    """Whether it concerns one record and at most `BRIEF_BYTES_MAX`."""
    if type(verb) is Swap:
        body = None if verb.answer is None else verb.answer.body
        return len(body or b"") <= BRIEF_BYTES_MAX and verb.claim is None
    if type(verb) is Insert:
        return len(verb.claim.request or b"") <= BRIEF_BYTES_MAX
    return type(verb) in (Find, Peek)


_METHODS = {
    Insert: "insert",
    Swap: "swap",
    Find: "find",
    Peek: "peek",
    AppendStep: "append_step",
    Steps: "steps",
    Requested: "read_request",
    Tally: "tally",
    Due: "due",
    Sweep: "sweep",
    Scan: "scan",
    Count: "count",
    Purge: "purge",
}
_HOLDS = {
    When.LAPSED: attrgetter("lapsed"),
    When.EXPIRED: attrgetter("expired"),
    When.OVERLONG: attrgetter("overlong"),
}
_NO_HEADERS = encode_headers(())


def _few_bytes(rows: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return as many as fit into `ERASE_BYTES_MAX`, at least one: erasing overwrites pages."""
    sizes = itertools.accumulate(row[1] for row in rows)
    few = [row for row, size in zip(rows, sizes, strict=True) if size <= ERASE_BYTES_MAX]
    return few or rows[:1]


def _request(claim: Claim) -> tuple[Any, ...]:
    """Return the columns that a new attempt brings, as `statements` names them."""
    return (
        claim.lease_s,
        claim.retention_s,
        claim.schema_version,
        claim.fingerprint_version,
        _blob(claim.fingerprint),
        claim.recovery,
        claim.tenant,
        claim.operation,
        claim.key,
        encode_digests(claim.field_digests) or "",
    )


def _owner(verb: Swap) -> tuple[Any, ...]:
    """Return what the record must match for the swap to take place."""
    return _blob(verb.id), verb.state._value_, verb.fence, _blob(verb.token)


def _answer(verb: Swap) -> tuple[Any, ...]:
    """Return the parameters of `statements.keep_answers`."""
    answer = verb.answer
    if answer is None:
        return _blob(verb.id), None, None, None, verb.resource_id
    body = None if answer.body is None else _blob(answer.body)
    headers = _blob(encode_headers(answer.headers))
    return _blob(verb.id), answer.status, headers, body, verb.resource_id


def _flat(rows: list[tuple[Any, ...]]) -> list[Any]:
    return [*itertools.chain.from_iterable(rows)]


@functools.cache
def boot_number(boot_id: str) -> int:
    """Return the boot id in six bytes. If two boots share one, a lease of the first is overlong."""
    return int.from_bytes(hashlib.sha256(boot_id.encode()).digest()[:6])
