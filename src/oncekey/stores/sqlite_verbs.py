"""The verbs as SQL, within one transaction of SQLite.

There is one writer at a time, so whatever a write transaction reads is still so when it commits: a
swap may look first and write then. All verbs of a transaction happen at one moment, which is read
after it got hold of the file.

Two clocks (P8). Leases are readings of the host's boot clock, which nobody sets; a lease of another
boot is over. Retention must survive a reboot and is measured by the wall clock; a record whose
lease is live is never expired, wherever that clock went.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from oncekey.clock import Clock
from oncekey.core.record import Answer, Claim, Glimpse, Record, State, Step, encode_headers
from oncekey.core.verbs import (
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
    Scan,
    Steps,
    Swap,
    Sweep,
    Tally,
    Verb,
    When,
)
from oncekey.stores.sql import COLUMNS, encode_digests, record
from oncekey.stores.sqlite_connection import Execute

ERASE_BYTES_MAX = 16_777_216
"""How much a sweep or a purge erases before it lets others write."""

# -------------------------------------------------------------------------------- statements

_KEPT_AS = {"age_s": "created", "lease_left_s": "lease_until", "expires_in_s": "expires"}
_AGE, _LEFT, _EXPIRES = map(COLUMNS.index, _KEPT_AS)
_WHOLE = ", ".join([*(_KEPT_AS.get(name, name) for name in COLUMNS), "boot"])
_BODILESS = _WHOLE.replace(", body,", ", NULL,")
_FROM = "FROM oncekey_claims LEFT JOIN oncekey_answers USING (n)"

_FIND = f"SELECT {_WHOLE} {_FROM} WHERE id = ?"
_SCAN = f"""
    SELECT {_BODILESS} {_FROM}
    WHERE id > ? AND (? IS NULL OR state = ?) AND (? IS NULL OR tenant = ?) ORDER BY id LIMIT ?
"""
_PEEK = "SELECT state, fence, boot, lease_until FROM oncekey_claims WHERE id = ?"
_INSERT = """
    INSERT INTO oncekey_claims (
        id, token, fence, boot, lease_until, expires, created, lease_s, retention_s, schema_version,
        fingerprint_version, fingerprint, recovery, tenant, operation, key, field_digests
    ) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO NOTHING
"""
_SWAP = """
    UPDATE oncekey_claims SET
        state = ?, fence = fence + ?, token = ?, boot = ?, lease_until = ?, expires = ?,
        beat = beat + 1, attempt = coalesce(?, attempt), lapses = coalesce(?, lapses), no_effect = ?
    WHERE id = ? AND state = ? AND fence = ? AND token = ?
"""
_RECLAIM = """
    UPDATE oncekey_claims SET
        lease_s = ?, retention_s = ?, schema_version = ?, fingerprint_version = ?, fingerprint = ?,
        recovery = ?, tenant = ?, operation = ?, key = ?, field_digests = ?
    WHERE id = ?
"""
_KEEP_ANSWER = """
    INSERT OR REPLACE INTO oncekey_answers (n, status, headers, body, resource_id)
    SELECT n, ?, ?, ?, ? FROM oncekey_claims WHERE id = ?
"""
_KEEP_STEP = """
    INSERT INTO oncekey_steps (n, name, digest, result)
    SELECT n, ?, ?, ? FROM oncekey_claims
    WHERE id = ? AND state = 'running' AND fence = ? AND token = ?
    ON CONFLICT (n, name) DO UPDATE SET digest = excluded.digest, result = excluded.result
"""
_STEPS = """
    SELECT name, digest, result FROM oncekey_steps
    WHERE n = (SELECT n FROM oncekey_claims WHERE id = ?) ORDER BY at
"""
_TALLY = """
    UPDATE oncekey_claims SET replays = replays + ?, conflicts = conflicts + ? WHERE id = ?
"""
# Ranges of two indices, each cut to the limit; then the longest overdue first. What ran when the
# machine went down is the oldest of all.
_DUE = """
    SELECT id FROM (
        SELECT * FROM (SELECT id, 1e18 AS overdue_s FROM oncekey_claims
            WHERE state = 'running' AND boot < ? LIMIT ?)
        UNION ALL SELECT * FROM (SELECT id, 1e18 FROM oncekey_claims
            WHERE state = 'running' AND boot > ? LIMIT ?)
        UNION ALL SELECT * FROM (SELECT id, ? - lease_until FROM oncekey_claims
            WHERE state = 'running' AND boot = ? AND lease_until <= ? ORDER BY lease_until LIMIT ?)
        UNION ALL SELECT * FROM (SELECT id, ? - expires FROM oncekey_claims
            WHERE state <> 'running' AND expires <= ? ORDER BY expires LIMIT ?)
    ) ORDER BY overdue_s DESC LIMIT ?
"""
_EXPIRED = """
    SELECT n, coalesce(length(body), 0), fence FROM (
        SELECT * FROM (SELECT n, fence FROM oncekey_claims
            WHERE state <> 'running' AND expires <= ? ORDER BY expires LIMIT ?)
        UNION ALL SELECT n, fence FROM oncekey_claims
            WHERE state = 'running' AND expires <= ? AND (boot <> ? OR lease_until <= ?)
        LIMIT ?
    ) LEFT JOIN oncekey_answers USING (n)
"""
_PURGEABLE = """
    SELECT n, coalesce(length(body), 0) FROM oncekey_claims LEFT JOIN oncekey_answers USING (n)
    WHERE tenant = ? AND state <> 'running' AND key <> '' LIMIT ?
"""
_BLANK_CLAIM = "UPDATE oncekey_claims SET key = '', field_digests = NULL WHERE n = ?"
_BLANK_ANSWER = """
    UPDATE oncekey_answers SET headers = ?, body = NULL, resource_id = NULL WHERE n = ?
"""
_BEGIN_ANEW = "UPDATE oncekey_claims SET created = ?, replays = 0, conflicts = 0 WHERE n = ?"
_REMOVE_CLAIM = "DELETE FROM oncekey_claims WHERE n = ?"
_REMOVE_ANSWER = "DELETE FROM oncekey_answers WHERE n = ?"
_REMOVE_STEPS = "DELETE FROM oncekey_steps WHERE n = ?"


@functools.cache
def _count_of(ids: int) -> str:
    return f"SELECT count(*) FROM oncekey_claims WHERE id IN ({', '.join('?' * ids)})"  # noqa: S608


# -------------------------------------------------------------------------------------- verbs


class Looking:
    """Verbs within a transaction that only reads."""

    def __init__(self, clock: Clock, execute: Execute) -> None:
        self._execute = execute
        self._wall, self._now = clock.wall(), clock.boot()
        self._boot = _boot_number(clock.boot_id())

    def carry_out(self, verbs: Sequence[Verb]) -> list[Any] | None:
        """The outcomes in the same order; None, at once, where something must be written."""
        ids = [verb.claim.id for verb in verbs if type(verb) is Insert]
        return self._each(verbs) if self._are_there(ids) else None

    def _are_there(self, ids: list[bytes]) -> bool:
        if not ids:
            return True
        # Filled up to a power of two, so that a few statements serve batches of every size.
        padding = (1 << (len(ids) - 1).bit_length()) - len(ids)
        statement = _count_of(len(ids) + padding)
        [count] = self._execute(statement, ids + ids[-1:] * padding).fetchone()
        return bool(count == len(set(ids)))

    def _each(self, verbs: Sequence[Verb]) -> list[Any]:
        return [getattr(self, _METHODS[type(verb)])(verb) for verb in verbs]

    def insert(self, verb: Insert) -> Inserted | Found:
        return self._found(verb.claim.id)

    def find(self, verb: Find) -> Record | None:
        return self._find(verb.id)

    def peek(self, verb: Peek) -> Glimpse | None:
        found = self._execute(_PEEK, (verb.id,)).fetchone()
        if found is None:
            return None
        state, fence, boot, lease_until = found
        return Glimpse(State(state), fence, self._lease_left_s(boot, lease_until))

    def steps(self, verb: Steps) -> list[Step]:
        return [Step(*row) for row in self._execute(_STEPS, (verb.id,))]

    def due(self, verb: Due) -> list[bytes]:
        boot, now, wall, limit = self._boot, self._now, self._wall, max(verb.limit, 0)
        ranges = (boot, limit, boot, limit, now, boot, now, limit, wall, wall, limit)
        return [record_id for (record_id,) in self._execute(_DUE, (*ranges, limit))]

    def scan(self, verb: Scan) -> list[Record]:
        state, tenant, limit = verb.state, verb.tenant, max(verb.limit, 0)
        rows = self._execute(_SCAN, (verb.after, state, state, tenant, tenant, limit))
        return [self._record(row) for row in rows]

    def count(self, verb: Count) -> dict[State, int]:
        rows = self._execute("SELECT state, count(*) FROM oncekey_claims GROUP BY state")
        return dict.fromkeys(State, 0) | {State(state): count for state, count in rows}

    def _find(self, record_id: bytes) -> Record | None:
        row = self._execute(_FIND, (record_id,)).fetchone()
        return None if row is None else self._record(row)

    def _found(self, record_id: bytes) -> Found:
        return Found(self._record(self._execute(_FIND, (record_id,)).fetchone()))

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


class Writing(Looking):
    """Verbs within a write transaction."""

    _floor: int | None = None

    def carry_out(self, verbs: Sequence[Verb]) -> list[Any]:
        """The outcomes in the same order."""
        return self._each(verbs)

    def insert(self, verb: Insert) -> Inserted | Found:
        claim, fence = verb.claim, self._fence_floor() + 1
        lease_until = self._now + claim.lease_s
        expires = self._wall + claim.lease_s + claim.retention_s
        owned = (claim.id, claim.token, fence, self._boot, lease_until, expires, self._wall)
        if self._execute(_INSERT, owned + _request(claim)).rowcount:
            return Inserted(fence)
        return self._found(claim.id)

    def swap(self, verb: Swap) -> Done | Refused:
        if verb.when is not When.ANY:
            found = self._find(verb.id)
            if found is None or not _HOLDS[verb.when](found):
                return Refused(found)
        lease_until = 0.0 if verb.lease_s is None else self._now + verb.lease_s
        expires = self._wall + (verb.lease_s or 0.0) + verb.retention_s
        token = verb.new_token or verb.token
        owned = (verb.to, verb.raise_fence, token, self._boot, lease_until, expires)
        counted = (verb.attempt, verb.lapses, verb.no_effect)
        expected = (verb.id, verb.state, verb.fence, verb.token)
        if not self._execute(_SWAP, owned + counted + expected).rowcount:
            return Refused(self._find(verb.id))
        if verb.fresh:
            self._begin_anew(verb.id)
        if verb.claim is not None:
            self._execute(_RECLAIM, (*_request(verb.claim), verb.id))
        if verb.to is State.COMPLETED:
            self._execute(_KEEP_ANSWER, (*_answer(verb.answer), verb.resource_id, verb.id))
        return Done(verb.fence + verb.raise_fence)

    def append_step(self, verb: AppendStep) -> Done | Refused:
        step = verb.step
        kept = (step.name, step.digest, step.result, verb.id, verb.fence, verb.token)
        if self._execute(_KEEP_STEP, kept).rowcount:
            return Done(verb.fence)
        return Refused(self._find(verb.id))

    def tally(self, verb: Tally) -> None:
        replays, conflicts = verb.replays, verb.conflicts
        for record_id in {**replays, **conflicts}:
            counts = (replays.get(record_id, 0), conflicts.get(record_id, 0), record_id)
            self._execute(_TALLY, counts)

    def sweep(self, verb: Sweep) -> int:
        wall, limit = self._wall, max(verb.limit, 0)
        expired = (wall, limit, wall, self._boot, self._now, limit)
        rows = _few_bytes(self._execute(_EXPIRED, expired).fetchall())
        for n, _, fence in rows:
            self._execute(_REMOVE_CLAIM, (n,))
            self._execute(_REMOVE_ANSWER, (n,))
            self._execute(_REMOVE_STEPS, (n,))
            if fence > self._fence_floor():
                self._execute("UPDATE oncekey_meta SET fence_floor = ?", (fence,))
                self._floor = fence
        return len(rows)

    def purge(self, verb: Purge) -> int:
        purgeable = (verb.tenant, max(verb.limit, 0))
        rows = _few_bytes(self._execute(_PURGEABLE, purgeable).fetchall())
        for n, _ in rows:
            self._execute(_BLANK_CLAIM, (n,))
            self._execute(_BLANK_ANSWER, (_NO_HEADERS, n))
            self._execute(_REMOVE_STEPS, (n,))
        return len(rows)

    def _fence_floor(self) -> int:
        if self._floor is None:
            [self._floor] = self._execute("SELECT fence_floor FROM oncekey_meta").fetchone()
        return self._floor

    def _begin_anew(self, record_id: bytes) -> None:
        [n] = self._execute("SELECT n FROM oncekey_claims WHERE id = ?", (record_id,)).fetchone()
        self._execute(_BEGIN_ANEW, (self._wall, n))
        self._execute(_REMOVE_ANSWER, (n,))
        self._execute(_REMOVE_STEPS, (n,))


WRITERS = {Swap, AppendStep, Tally, Sweep, Purge}
"""What cannot be done by looking alone. An insert can: where it finds its record."""

_METHODS = {
    Insert: "insert",
    Swap: "swap",
    Find: "find",
    Peek: "peek",
    AppendStep: "append_step",
    Steps: "steps",
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
    """As many as fit into `ERASE_BYTES_MAX`, at least one: what is erased is written over."""
    sizes = itertools.accumulate(row[1] for row in rows)
    few = [row for row, size in zip(rows, sizes, strict=True) if size <= ERASE_BYTES_MAX]
    return few or rows[:1]


def _request(claim: Claim) -> tuple[Any, ...]:
    """The columns that a new attempt brings with it, as `_INSERT` and `_RECLAIM` name them."""
    return (
        claim.lease_s,
        claim.retention_s,
        claim.schema_version,
        claim.fingerprint_version,
        claim.fingerprint,
        claim.recovery,
        claim.tenant,
        claim.operation,
        claim.key,
        encode_digests(claim.field_digests),
    )


def _answer(answer: Answer | None) -> tuple[int | None, bytes | None, bytes | None]:
    if answer is None:
        return None, None, None
    return answer.status, encode_headers(answer.headers), answer.body


@functools.cache
def _boot_number(boot_id: str) -> int:
    """The boot id in six bytes. Should two boots share one, a lease of the first is overlong."""
    return int.from_bytes(hashlib.sha256(boot_id.encode()).digest()[:6])
