"""How every verb is asked of MySQL and MariaDB, and what the answers mean. Pure: no driver.

Neither server has a statement that writes and returns what it wrote, so a question is several
statements in one round trip, under READ COMMITTED.

An insert
    reads the records, inserts the missing ones, and reads which token each id has. What the first
    read found is found; an id that now has the claim's token is inserted. A replay locks and writes
    nothing: the insert leaves out existing records.

A conditional write
    A lone verb is one UPDATE, which waits for the lock of its row, compares, writes, and counts the
    rows that it changed: `beat` always changes, so that it makes no difference whether a connection
    counts changed or matched rows.
    A batch is one transaction: `_lock_and_compare` locks the free rows and notes which of them are
    as expected, in variables of the session; the writes touch only those. The batch never waits,
    and what it skipped comes back alone.

A row that is locked for longer than the server waits, and a deadlock, undo the question. A lone
verb is asked again, `TRIES_MAX` times in all; a batch is split into its members.
"""

# ruff: noqa: S608  (every value in a statement is a `literal`)

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from oncekey._core.batched import batched
from oncekey._core.op import Op
from oncekey._core.record import Claim, Glimpse, Record, State, Step, encode_headers
from oncekey._core.verbs import (
    AppendStep,
    Count,
    Due,
    Find,
    Found,
    Insert,
    Inserted,
    Peek,
    Purge,
    Requested,
    Scan,
    Steps,
    Swap,
    Sweep,
    Tally,
    Verb,
)
from oncekey.errors import StoreUnavailable
from oncekey.stores import sql, sql_batch
from oncekey.stores.base import AGAIN, INSERT_ROUNDS_MAX, Again
from oncekey.stores.mysql import writes
from oncekey.stores.mysql.statements import (
    CLOCK,
    CLOCK_OF_ANY_SESSION,
    Question,
    Value,
    among,
    later,
    literal,
    names,
)
from oncekey.stores.mysql.statements import table as as_table
from oncekey.stores.mysql.writes import Limits, claim_row, records, retry_while_locked, together
from oncekey.stores.sql_batch import Handler, RowHeld

ALL = "LIMIT 18446744073709551615"
"""Needed because a caller's session may have another `sql_select_limit`."""
CHUNK_ROWS_MAX = 100
"""How many records housekeeping locks at once."""

# --------------------------------------------------------------------------------- insert and find

_GIVEN = (
    *("id", "token", "tenant", "operation", "key", "fingerprint", "fingerprint_version"),
    *("lease_s", "retention_s", "recovery", "schema_version", "field_digests", "request"),
)
_INSERT = f"""\
INSERT INTO oncekey_claims (
    {", ".join(f"`{name}`" for name in _GIVEN)},
    fence, generation, state, no_effect, created, lease_until, expires, attempt, lapses, beat
)
SELECT
    {", ".join(f"{{{name}}}" for name in _GIVEN)},
    f.removed + 1, f.removed + 1, 'running', 0,
    {CLOCK}, {later("{lease_us}")}, {later("{expires_us}")}, 1, 0, 0
FROM {{asked}} oncekey_fences f
WHERE NOT EXISTS (SELECT 1 FROM oncekey_claims c WHERE c.id = {{id}})
ON DUPLICATE KEY UPDATE id = oncekey_claims.id"""


def _insert(verbs: Sequence[Insert], limits: Limits) -> Op[list[Inserted | Found | Again]]:
    return (yield from together(verbs, lambda verb: _row(verb.claim), _insert_together))


def _insert_together(verbs: Sequence[Insert]) -> Op[list[Inserted | Found | Again]]:
    outcomes: dict[bytes, Inserted | Found] = {}
    missing = verbs
    for _ in range(INSERT_ROUNDS_MAX):
        question = _insertion([_row(verb.claim) for verb in missing])
        try:
            before, _, after = yield from retry_while_locked(question, alone=len(verbs) == 1)
        except RowHeld:
            if len(verbs) == 1:
                raise
            break
        outcomes |= {row[0]: Found(writes.record(row)) for row in before.rows}
        tokens = {verb.id: verb.claim.token for verb in missing}
        for record_id, token, fence in after.rows:
            if record_id not in outcomes and tokens[record_id] == token:
                outcomes[record_id] = Inserted(fence)
        missing = [verb for verb in missing if verb.id not in outcomes]
        if not missing:
            break
    else:
        raise StoreUnavailable(
            f"{len(missing)} records could be neither inserted nor found in "
            f"{INSERT_ROUNDS_MAX} rounds"
        )
    return [outcomes.get(verb.id, AGAIN) for verb in verbs]


def _row(claim: Claim) -> dict[str, Value]:
    return {"id": claim.id, "token": claim.token, **claim_row(claim)}


def _insertion(rows: Sequence[dict[str, Value]]) -> Question:
    ids = f"({', '.join(literal(row['id']) for row in rows)})"
    asked = f"{as_table(rows)} a JOIN" if len(rows) > 1 else ""
    return Question(
        (
            f"{writes.FIND} {ids}",
            _INSERT.format(asked=asked, **names(rows)),
            f"SELECT id, token, fence FROM oncekey_claims WHERE id IN {ids}",
        )
    )


def _find(verbs: Sequence[Find], limits: Limits) -> Op[list[Record | None]]:
    found = yield from records([verb.id for verb in verbs])
    return [found.get(verb.id) for verb in verbs]


def _rows(statement: str, *, chore: bool = False) -> Generator[Question, Any, Sequence[Any]]:
    [reply] = yield Question((statement,), chore=chore)
    rows: Sequence[Any] = reply.rows
    return rows


def _peek(verbs: Sequence[Peek], limits: Limits) -> Op[list[Glimpse | None]]:
    rows = yield from _rows(
        f"SELECT id, state, fence, {writes.LEASE_LEFT_S} FROM oncekey_claims c "
        f"WHERE id IN {among([verb.id for verb in verbs])}"
    )
    seen = {row[0]: Glimpse(sql.STATES[row[1]], row[2], row[3]) for row in rows}
    return [seen.get(verb.id) for verb in verbs]


def _steps(verbs: Sequence[Steps], limits: Limits) -> Op[list[list[Step]]]:
    rows = yield from _rows(
        "SELECT s.id, s.name, s.digest, s.result FROM oncekey_claims c "
        "JOIN oncekey_steps s ON s.id = c.id AND s.generation = c.generation "
        f"WHERE c.id IN {among([verb.id for verb in verbs])} ORDER BY s.position {ALL}"
    )
    return [
        [Step(name.decode(), digest, result) for i, name, digest, result in rows if i == verb.id]
        for verb in verbs
    ]


def _read_requests(verbs: Sequence[Requested], limits: Limits) -> Op[list[bytes | None]]:
    rows = yield from _rows(
        "SELECT id, request FROM oncekey_claims "
        f"WHERE id IN {among([verb.id for verb in verbs])} AND state = 'running'"
    )
    kept = dict(map(tuple, rows))
    return [kept.get(verb.id) for verb in verbs]


# ------------------------------------------------------------------------------------ housekeeping


def _tally(verbs: Sequence[Tally], limits: Limits) -> Op[list[None]]:
    for verb in verbs:
        ids = sorted(verb.replays.keys() | verb.conflicts.keys())
        for chunk in batched(ids, CHUNK_ROWS_MAX):
            asked: list[dict[str, Value]] = [
                {"id": i, "replays": verb.replays.get(i, 0), "conflicts": verb.conflicts.get(i, 0)}
                for i in chunk
            ]
            statement = (
                f"UPDATE {as_table(asked)} a "
                "STRAIGHT_JOIN oncekey_claims c FORCE INDEX (PRIMARY) ON c.id = a.id "
                "SET c.replays = c.replays + a.replays, c.conflicts = c.conflicts + a.conflicts"
            )
            yield from retry_while_locked(Question((statement,)), alone=True)
    return [None for _ in verbs]


_LAPSED = (
    "SELECT id, lease_until AS since FROM oncekey_claims "
    f"WHERE state = 'running' AND lease_until <= {CLOCK_OF_ANY_SESSION}"
)
_EXPIRED = (
    "SELECT id, expires AS since FROM oncekey_claims "
    f"WHERE {{also}} expires <= {CLOCK_OF_ANY_SESSION} ORDER BY expires LIMIT {{limit}}"
)


def _due(verbs: Sequence[Due], limits: Limits) -> Op[list[list[bytes]]]:
    outcomes = []
    for verb in verbs:
        if verb.abandoned:
            rerun = literal("rerun")
            due = f"{_LAPSED} AND recovery <> {rerun} ORDER BY since LIMIT {verb.limit}"
        else:
            lapsed = f"{_LAPSED} ORDER BY lease_until LIMIT {verb.limit}"
            expired = _EXPIRED.format(also="state <> 'running' AND", limit=verb.limit)
            due = f"({lapsed}) UNION ALL ({expired}) ORDER BY since, id LIMIT {verb.limit}"
        rows = yield from _rows(due, chore=True)
        outcomes.append([row[0] for row in rows])
    return outcomes


def _sweep(verbs: Sequence[Sweep], limits: Limits) -> Op[list[int]]:
    outcomes = []
    for verb in verbs:
        rows = yield from _rows(_EXPIRED.format(also="", limit=verb.limit), chore=True)
        removed = 0
        for ids in batched(sorted(row[0] for row in rows), CHUNK_ROWS_MAX):
            *_, claims = yield from retry_while_locked(_removal(ids), alone=True)
            removed += claims.affected
        outcomes.append(removed)
    return outcomes


def _removal(ids: Sequence[bytes]) -> Question:
    """Remove those that are expired and not locked, and store the highest of their fences. Checked
    again: one may have been taken over meanwhile.
    """
    return Question(
        (
            "SELECT GROUP_CONCAT(HEX(c.id)), MAX(c.fence) INTO @oncekey_fits, @oncekey_fence "
            f"FROM oncekey_claims c FORCE INDEX (PRIMARY) WHERE c.id IN {among(ids)} "
            f"AND c.expires <= {CLOCK} FOR UPDATE SKIP LOCKED",
            "UPDATE oncekey_fences SET removed = @oncekey_fence "
            "WHERE one = 1 AND removed < @oncekey_fence",
            *(writes.removal(rows, ids) for rows in ("oncekey_steps", "oncekey_claims")),
        ),
        atomic=True,
        chore=True,
    )


def _scan(verbs: Sequence[Scan], limits: Limits) -> Op[list[list[Record]]]:
    outcomes = []
    for verb in verbs:
        where = [f"c.id > {literal(verb.after)}"]
        if verb.state is not None:
            where.append(f"c.state = {literal(verb.state.value)}")
        if verb.tenant is not None:
            where.append(f"c.tenant = {literal(verb.tenant)}")
        rows = yield from _rows(
            f"SELECT {writes.OUTLINE} FROM oncekey_claims c "
            f"WHERE {' AND '.join(where)} ORDER BY c.id LIMIT {verb.limit}",
            chore=True,
        )
        outcomes.append([writes.record(row) for row in rows])
    return outcomes


def _count(verbs: Sequence[Count], limits: Limits) -> Op[list[dict[State, int]]]:
    rows = yield from _rows("SELECT state, COUNT(*) FROM oncekey_claims GROUP BY state", chore=True)
    counts = dict.fromkeys(State, 0) | {State(state): count for state, count in rows}
    return [dict(counts) for _ in verbs]


def _purge(verbs: Sequence[Purge], limits: Limits) -> Op[list[int]]:
    """Unlike a sweep it waits for locked rows: a purge must be complete when it returns."""
    outcomes = []
    for verb in verbs:
        of_tenant = f"c.tenant = {literal(verb.tenant)} AND c.state <> 'running' AND c.`key` <> x''"
        rows = yield from _rows(
            f"SELECT c.id FROM oncekey_claims c WHERE {of_tenant} ORDER BY c.id LIMIT {verb.limit}",
            chore=True,
        )
        blanked = 0
        for ids in batched((row[0] for row in rows), CHUNK_ROWS_MAX):
            claims, _ = yield from retry_while_locked(_blank_rows(ids, of_tenant), alone=True)
            blanked += claims.affected
        outcomes.append(blanked)
    return outcomes


def _blank_rows(ids: Sequence[bytes], of_tenant: str) -> Question:
    """Blank row by row, as a sweep does: locks on other records do not delay it."""
    no_headers = literal(encode_headers(()))
    asked = as_table([{"id": record_id} for record_id in ids])
    return Question(
        (
            "UPDATE oncekey_claims c FORCE INDEX (PRIMARY) SET c.`key` = x'', "
            "c.field_digests = NULL, c.resource_id = NULL, c.request = NULL, c.body = NULL, "
            f"c.headers = IF(c.status IS NULL, NULL, {no_headers}) "
            f"WHERE c.id IN {among(ids)} AND {of_tenant}",
            f"UPDATE {asked} a STRAIGHT_JOIN oncekey_claims c FORCE INDEX (PRIMARY) ON c.id = a.id "
            "STRAIGHT_JOIN oncekey_steps s FORCE INDEX (PRIMARY) ON s.id = c.id "
            "SET s.result = NULL WHERE c.state <> 'running' AND c.`key` = x''",
        ),
        atomic=True,
        chore=True,
    )


# ------------------------------------------------------------------------------------------ choice

_HANDLERS: dict[type, Handler[Limits]] = {
    Insert: _insert,
    Swap: writes.swap,
    Find: _find,
    Peek: _peek,
    AppendStep: writes.append_step,
    Steps: _steps,
    Requested: _read_requests,
    Tally: _tally,
    Due: _due,
    Sweep: _sweep,
    Scan: _scan,
    Count: _count,
    Purge: _purge,
}


def perform(verbs: Sequence[Verb], limits: Limits) -> Op[list[Any]]:
    """Carry out verbs of one group."""
    return sql_batch.perform(verbs, lambda verb: _HANDLERS[type(verb)], limits)
