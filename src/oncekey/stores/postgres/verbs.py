"""How every verb is asked of PostgreSQL, and what its answer means. Pure: no driver, no connection.

`statements` has the SQL. Here verbs become columns of values, and rows become outcomes. One
conditional statement serves a whole batch; if it skipped a locked row, the outcome is `AGAIN`, and
the verb comes back alone to wait for it. A second statement reads what refused a verb: the first
one's snapshot may not show it yet.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Sequence
from operator import attrgetter
from typing import Any

from oncekey._core.op import Op
from oncekey._core.record import Claim, Glimpse, Record, State, Step, encode_headers
from oncekey._core.values import value
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
from oncekey.errors import StoreUnavailable
from oncekey.stores import sql, sql_batch
from oncekey.stores.base import AGAIN, INSERT_ROUNDS_MAX, Again
from oncekey.stores.postgres.statements import ALONE, BATCH, CLAIMED_MOST, STATEMENTS, is_uuid
from oncekey.stores.sql_batch import (
    CHORE_TIMEOUT_S,
    FunctionGone,
    Handler,
    RowHeld,
    is_plain,
    is_renewal,
)


@value
class Question:
    """One statement, answered with its rows; or a script of several, without arguments and rows."""

    sql: str
    args: tuple[Any, ...] = ()
    chore: bool = False
    """Housekeeping: `CHORE_TIMEOUT_S` applies instead of `timeout_s`."""
    script: bool = False


def _ms(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))  # to PostgreSQL 0 would be "for ever"


class Limits:
    """How long to wait. The server stops waiting for a row first, so that it can still say so."""

    def __init__(self, timeout_s: float = 5.0) -> None:
        self.timeout_s = timeout_s
        self.alone_wait_ms = _ms(timeout_s * 0.75)
        self.batch_wait_ms = _ms(timeout_s * 0.05)
        """One locked row must not delay a batch: its verbs are then asked alone."""

    def of(self, question: Question) -> float:
        return CHORE_TIMEOUT_S if question.chore else self.timeout_s


# --------------------------------------------------------------------------------- insert and find


def _question(name: str, rows: Sequence[tuple[Any, ...]], *before: Any) -> Question:
    """Build the question for these rows; `before` are the arguments before their columns."""
    if len(rows) == 1:
        return Question(ALONE[name], (*before, *rows[0]))
    return Question(BATCH[name], (*before, *map(column, zip(*rows, strict=True))))


_NULLS, _NUMBERS = {type(None)}, {int, float}


def column(values: tuple[Any, ...]) -> list[Any] | None:
    """Prepare values for `unnest`, which fills shorter columns with nulls; and for psycopg, which
    takes whole seconds for another type than others, and nulls alone for text.
    """
    kinds = set(map(type, values))
    if kinds == _NULLS:
        return None
    if kinds >= _NUMBERS:
        return [each if each is None else float(each) for each in values]
    return list(values)


_STATE, _FENCE = sql.COLUMNS.index("state"), sql.COLUMNS.index("fence")
_CLAIM = attrgetter(
    *("tenant", "operation", "key", "fingerprint", "fingerprint_version", "lease_s"),
    *("retention_s", "recovery", "schema_version"),
)


def claim_row(claim: Claim) -> tuple[Any, ...]:
    return *_CLAIM(claim), sql.encode_digests(claim.field_digests), claim.request


def _insert_row(claim: Claim) -> tuple[Any, ...]:
    """Return a claim's columns, with None for values that most claims share."""
    return (
        *(claim.id, claim.token, claim.tenant, claim.operation, claim.key, claim.fingerprint),
        *_without_usual(*_USUAL(claim)),
        *(sql.encode_digests(claim.field_digests), claim.request),
        None if is_uuid(claim.key) else False,
    )


_USUAL = attrgetter(*CLAIMED_MOST)


@functools.lru_cache(maxsize=64)  # one for each policy, but a client may ask for a retention
def _without_usual(*values: Any) -> tuple[Any, ...]:
    most = CLAIMED_MOST.values()
    return tuple(None if each == usual else each for each, usual in zip(values, most, strict=True))


def _insert(verbs: Sequence[Insert], limits: Limits) -> Op[list[Inserted | Found | Again]]:
    """Insert or find. A row with a state is a record that was found. An id without a row was
    committed by another transaction while the statement ran, which then neither inserts nor sees
    it: ask again.
    """
    outcomes: dict[bytes, Inserted | Found] = {}
    missing = verbs
    batch = len(verbs) > 1
    has_request = any(verb.claim.request is not None for verb in verbs)
    name = "insert_requests" if has_request else "insert"
    for _ in range(INSERT_ROUNDS_MAX):
        wait_ms = limits.batch_wait_ms if batch else limits.alone_wait_ms
        rows = [_insert_row(verb.claim) for verb in missing]
        try:
            answer = yield _question(name, rows, wait_ms)
        except RowHeld:
            if not batch:
                raise
            return [outcomes.get(verb.id, AGAIN) for verb in verbs]
        for row in answer:
            new = row[_STATE] is None
            outcomes[row[0]] = Inserted(row[_FENCE]) if new else Found(sql.record(row))
        if len(outcomes) == len(verbs):
            return [outcomes[verb.claim.id] for verb in verbs]
        missing = [verb for verb in missing if verb.id not in outcomes]
    raise StoreUnavailable(
        f"{len(missing)} records could be neither inserted nor found in {INSERT_ROUNDS_MAX} rounds"
    )


def _records(ids: Sequence[bytes]) -> Generator[Question, Any, dict[bytes, Record]]:
    rows = yield _question("find", [(record_id,) for record_id in ids])
    return {row[0]: sql.record(row) for row in rows}


def _find(verbs: Sequence[Find], limits: Limits) -> Op[list[Record | None]]:
    found = yield from _records([verb.id for verb in verbs])
    return [found.get(verb.id) for verb in verbs]


def _peek(verbs: Sequence[Peek], limits: Limits) -> Op[list[Glimpse | None]]:
    rows = yield _question("peek", [(verb.id,) for verb in verbs])
    seen = {row[0]: Glimpse(sql.STATES[row[1]], row[2], row[3]) for row in rows}
    return [seen.get(verb.id) for verb in verbs]


def _steps(verbs: Sequence[Steps], limits: Limits) -> Op[list[list[Step]]]:
    rows = yield _question("steps", [(verb.id,) for verb in verbs])
    return [[Step(*row[1:]) for row in rows if row[0] == verb.id] for verb in verbs]


def _read_requests(verbs: Sequence[Requested], limits: Limits) -> Op[list[bytes | None]]:
    rows = yield _question("requested", [(verb.id,) for verb in verbs])
    kept = dict(map(tuple, rows))
    return [kept.get(verb.id) for verb in verbs]


# ------------------------------------------------------------------------------ conditional writes


def _write(
    name: str,
    verbs: Sequence[Swap] | Sequence[AppendStep],
    rows: Sequence[tuple[Any, ...]],
    limits: Limits,
) -> Op[list[Done | Refused | Again]]:
    """Ask a conditional statement. It returns the id of each row that it could lock, with the fence
    if the verb was carried out, and with null if the record was not as expected.
    """
    answer = yield _question(name, rows, limits.alone_wait_ms)
    outcomes: dict[bytes, Done | Refused] = {
        record_id: Done(fence) for record_id, fence in answer if fence is not None
    }
    if len(outcomes) < len(verbs):
        refused = [record_id for record_id, fence in answer if fence is None]
        if len(verbs) == 1:
            refused = [verbs[0].id]  # alone it waits for its row
        found = (yield from _records(refused)) if refused else {}
        outcomes |= {record_id: Refused(found.get(record_id)) for record_id in refused}
    return [outcomes.get(verb.id, AGAIN) for verb in verbs]


def answer_row(verb: Swap) -> tuple[int | None, bytes | None, bytes | None]:
    answer = verb.answer
    if answer is None or verb.to is not State.COMPLETED:
        return None, None, None
    return answer.status, encode_headers(answer.headers), answer.body


def _complete(verbs: Sequence[Swap], limits: Limits) -> Op[list[Done | Refused | Again]]:
    rows = [(v.id, v.fence, v.token, v.retention_s, v.resource_id, *answer_row(v)) for v in verbs]
    return (yield from _write("complete", verbs, rows, limits))


def _renew(verbs: Sequence[Swap], limits: Limits) -> Op[list[Done | Refused | Again]]:
    rows = [
        (v.id, v.fence, v.token, v.when is When.OVERLONG, v.lease_s, v.retention_s) for v in verbs
    ]
    return (yield from _write("renew", verbs, rows, limits))


_NO_CLAIM = (None,) * 11


def _change_row(verb: Swap) -> tuple[Any, ...]:
    return (
        *(verb.id, verb.state.value, verb.fence, verb.token, verb.when.value),
        *(verb.to.value, verb.raise_fence, verb.retention_s, verb.lease_s, verb.new_token),
        *(verb.fresh, verb.attempt, verb.lapses, verb.no_effect, verb.resource_id),
        *answer_row(verb),
        *(_NO_CLAIM if verb.claim is None else claim_row(verb.claim)),
    )


def _change(verbs: Sequence[Swap], limits: Limits) -> Op[list[Done | Refused | Again]]:
    rows = [_change_row(verb) for verb in verbs]
    return (yield from _write("change", verbs, rows, limits))


def _append_step(verbs: Sequence[AppendStep], limits: Limits) -> Op[list[Done | Refused | Again]]:
    rows = [(v.id, v.fence, v.token, v.step.name, v.step.digest, v.step.result) for v in verbs]
    return (yield from _write("append_step", verbs, rows, limits))


# ------------------------------------------------------------------------------------ housekeeping


def _tally(verbs: Sequence[Tally], limits: Limits) -> Op[list[None]]:
    for verb in verbs:
        ids = sorted(verb.replays.keys() | verb.conflicts.keys())
        if ids:
            rows = [(i, verb.replays.get(i, 0), verb.conflicts.get(i, 0)) for i in ids]
            yield _question("tally", rows, limits.batch_wait_ms)
    return [None for _ in verbs]


def _due(verbs: Sequence[Due], limits: Limits) -> Op[list[list[bytes]]]:
    outcomes = []
    for verb in verbs:
        statement = STATEMENTS["abandoned" if verb.abandoned else "due"]
        rows = yield Question(statement, (verb.limit,), chore=True)
        outcomes.append([row[0] for row in rows])
    return outcomes


KEPT_BY_DAY = ("answers", "steps_by_day", "requests_by_day")
"""The tables that may have partitions, each in its own transaction: none waits for two."""


def _sweep(verbs: Sequence[Sweep], limits: Limits) -> Op[list[int]]:
    outcomes = []
    for verb in verbs:
        [(count, has_parts, by_day)] = yield Question(
            STATEMENTS["sweep"], (verb.limit,), chore=True
        )
        if has_parts and count < verb.limit:
            yield from _turn_days(by_day)
        outcomes.append(count)
    return outcomes


def _turn_days(by_day: bool) -> Op[None]:
    """Drop past partitions and add new ones, unless a move to another layout came in between."""
    each = [("turn_days", (kept,)) for kept in KEPT_BY_DAY]
    with contextlib.suppress(FunctionGone):
        for name, args in each if by_day else [("turn_days_of_answers", ())]:
            yield Question(STATEMENTS[name], args, chore=True)


def _scan(verbs: Sequence[Scan], limits: Limits) -> Op[list[list[Record]]]:
    outcomes = []
    for verb in verbs:
        state = None if verb.state is None else verb.state.value
        args = (verb.after, state, verb.tenant, verb.limit)
        rows = yield Question(STATEMENTS["scan"], args, chore=True)
        outcomes.append([sql.record(row) for row in rows])
    return outcomes


def _count(verbs: Sequence[Count], limits: Limits) -> Op[list[dict[State, int]]]:
    rows = yield Question(STATEMENTS["count"], chore=True)
    counts = dict.fromkeys(State, 0) | {State(state): count for state, count in rows}
    return [dict(counts) for _ in verbs]


def _purge(verbs: Sequence[Purge], limits: Limits) -> Op[list[int]]:
    outcomes = []
    for verb in verbs:
        outcomes.append((yield from _purge_one(verb, limits)))
    return outcomes


def _purge_one(verb: Purge, limits: Limits) -> Op[int]:
    blanked: int = 0
    for _ in range(INSERT_ROUNDS_MAX):
        left = verb.limit - blanked
        args = (limits.alone_wait_ms, verb.tenant, left, encode_headers(()))
        [(count, seen)] = yield Question(STATEMENTS["purge"], args, chore=True)
        blanked += count
        if count == seen:
            return blanked
    raise StoreUnavailable("records changed while they were purged, again and again: purge again")


# ------------------------------------------------------------------------------------------ choice

_HANDLERS: dict[type, Handler[Limits]] = {
    Insert: _insert,
    Find: _find,
    Peek: _peek,
    AppendStep: _append_step,
    Steps: _steps,
    Requested: _read_requests,
    Tally: _tally,
    Due: _due,
    Sweep: _sweep,
    Scan: _scan,
    Count: _count,
    Purge: _purge,
}


def _handler(verb: Verb) -> Handler[Limits]:
    if type(verb) is not Swap:
        return _HANDLERS[type(verb)]
    if is_renewal(verb):
        return _renew
    if verb.to is State.COMPLETED and verb.when is When.ANY and is_plain(verb):
        return _complete
    return _change


def perform(verbs: Sequence[Verb], limits: Limits) -> Op[list[Any]]:
    """Carry out verbs of one group: one statement for each kind among them."""
    return sql_batch.perform(verbs, _handler, limits)
