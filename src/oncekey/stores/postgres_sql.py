"""How every verb is asked of PostgreSQL, and what its answer means. Pure: no driver, no connection.

The statements stand in `schema/postgres/queries.sql`, with the reasons for their shape. Here verbs
become columns of values, and rows become outcomes. One conditional statement serves a whole batch;
where it skipped a row that somebody holds, the outcome is `AGAIN`, and the verb comes back alone to
wait for it. What refused a verb is looked up by a second statement: in the first one's snapshot it
may not be visible yet.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Sequence
from importlib import resources
from operator import attrgetter
from typing import Any

from oncekey.core.op import Op
from oncekey.core.record import Claim, Glimpse, Record, State, Step, encode_headers
from oncekey.core.value import value
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
from oncekey.stores.sql_batch import FunctionGone, Handler, RowHeld, is_plain, is_renewal


@value
class Question:
    """One statement, answered with its rows; or a script of several, which has no arguments and is
    answered with nothing.
    """

    sql: str
    args: tuple[Any, ...] = ()
    chore: bool = False
    """May take as long as housekeeping takes: `chore_timeout_s` instead of `timeout_s`."""
    script: bool = False


def _ms(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))  # to PostgreSQL 0 would be "for ever"


class Limits:
    """How long to wait. The server gives up on a row first, so that it can still say so."""

    def __init__(self, timeout_s: float = 5.0, chore_timeout_s: float = 60.0) -> None:
        self.timeout_s = timeout_s
        self.chore_timeout_s = chore_timeout_s
        self.alone_wait_ms = _ms(timeout_s * 0.75)
        self.batch_wait_ms = _ms(timeout_s * 0.05)
        """One held row must not delay a batch for long: its members are then asked alone."""

    def of(self, question: Question) -> float:
        return self.chore_timeout_s if question.chore else self.timeout_s


# -------------------------------------------------------------------------------------- statements

_AT_THE_START = {
    **dict.fromkeys(("schema_version", "lapses", "replays", "conflicts"), "0"),
    "fingerprint_version": "1",
    "lease_s": "30",
    "retention_s": "86400",
    "recovery": "'rerun'",
    "attempt": "1",
    "beat": "CASE c.state WHEN 'running' THEN 0 ELSE 1 END",
    "no_effect": "false",
}
"""What null stands for in the layout "inline": what is so in most records, and takes no room. These
are values of the table, whatever a policy's defaults become.
"""
_IS_UUID = (
    "({0} LIKE '________-____-____-____-____________' "
    "AND translate({0}, '0123456789abcdef', '') = '----')"
)
_is_uuid = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch
"""The same. The server takes a tenth of an insert's time for it, so inserts come with it."""
AS_UUID = f"CASE WHEN {_IS_UUID} THEN {{0}}::uuid END"
"""Inline, a key of this form is a number, and so `key` is null: 21 bytes less."""
_CLAIMED = ("fingerprint_version", "lease_s", "retention_s", "recovery", "schema_version")
_LEFT_OUT_BEFORE = ("recovery", "schema_version")
"""Of these, what releases before migration 6 leave out, and so can read."""
CLAIMED = ", ".join(("key", "key_uuid", *_CLAIMED))


def given(key: str, *others: str) -> str:
    """What a claim brings, as it is kept: expressions for `CLAIMED`. `zero` is null if inline, and
    `short` true if that was said to migration 6 too. `key_uuid` is null if it was not, or the key
    is not of that form.
    """
    kept = [f"CASE WHEN key_uuid IS NULL THEN {key} END", "key_uuid"]
    for name, each in zip(_CLAIMED, others, strict=True):
        said = "zero = 0" if name in _LEFT_OUT_BEFORE else "NOT short"
        kept.append(f"CASE WHEN {said} OR {each} <> {_AT_THE_START[name]} THEN {each} END")
    return ", ".join(kept)


_LAYOUT = "coalesce((SELECT layout = '{}' FROM oncekey_schema WHERE number = {}), false)"
INLINE = _LAYOUT.format("inline", 4)
SHORTER = (
    "coalesce((SELECT bool_and(layout = 'inline') FROM oncekey_schema "
    "WHERE number IN (4, 6)), false)"
)
RECORD = ", ".join(
    {
        **{name: f"coalesce(c.{name}, {was})" for name, was in _AT_THE_START.items()},
        "key": "coalesce(c.key, c.key_uuid::text)",
        **{name: f"coalesce(c.{name}, r.{name})" for name in ("status", "headers", "body")},
        "age_s": "date_part('epoch', clock_timestamp() - c.created)",
        "lease_left_s": "coalesce(date_part('epoch', c.lease_until - clock_timestamp()), 0)",
        "expires_in_s": "date_part('epoch', c.expires - clock_timestamp())",
    }.get(column, f"c.{column}")
    for column in sql.COLUMNS
)
_PARTS = {
    "record": RECORD,
    "outline": RECORD.replace("coalesce(c.body, r.body)", "NULL::bytea"),
    "inline": INLINE,
    "shorter": SHORTER,
    "partitioned": _LAYOUT.format("partitioned", 4),
    "by_day": _LAYOUT.format("partitioned", 5),
    "claimed": CLAIMED,
    "given": given("key", *_CLAIMED),
    "beat": f"coalesce(c.beat, {_AT_THE_START['beat']})",
    "lease_s": f"coalesce(c.lease_s, {_AT_THE_START['lease_s']})",
    "say": ", ".join(
        (
            *(f"{name} = coalesce(c.{name}, {was})" for name, was in _AT_THE_START.items()),
            "key = coalesce(c.key, c.key_uuid::text), key_uuid = NULL",
        )
    ),
    "unsay": ", ".join(
        (
            *(f"{name} = nullif(c.{name}, {was})" for name, was in _AT_THE_START.items()),
            f"key = CASE WHEN NOT {_IS_UUID.format('c.key')} THEN c.key END",
            f"key_uuid = coalesce({AS_UUID.format('c.key')}, c.key_uuid)",
        )
    ),
    "unsaid": " OR ".join(f"c.{name} IS NULL" for name in (*_AT_THE_START, "key")),
}
"""What stands for the names in braces, of which `{skip}` is left."""
_STATE, _FENCE = sql.COLUMNS.index("state"), sql.COLUMNS.index("fence")


def _statements() -> dict[str, str]:
    """The statements by name, without comments: a pooler is sent the whole text each time."""
    text = (resources.files("oncekey.stores") / "schema/postgres/queries.sql").read_text("utf-8")
    text = re.sub(r"^--(?! name:).*\n", "", text, flags=re.MULTILINE)
    for name, meaning in _PARTS.items():
        text = text.replace(f"{{{name}}}", meaning)
    _, *parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _for_one(text: str) -> str:
    """With values in place of arrays: a fifth faster, where there is only one verb."""
    text = text.replace("[]", "")
    text = re.sub(r"= ANY \((\$[^)]*)\)", r"= \1", text)
    return re.sub(r"unnest\(([^)]*)\) AS a", r"(SELECT \1) AS a", text)


STATEMENTS = _statements()
STATEMENTS["insert_requests"] = STATEMENTS["insert"].replace(
    "{requests}", STATEMENTS.pop("requests")
)
STATEMENTS["insert"] = STATEMENTS["insert"].replace("{requests}", "")
_TAKES_ROWS = [name for name, text in STATEMENTS.items() if "[]" in text]
BATCH = {name: STATEMENTS[name].replace("{skip}", "SKIP LOCKED") for name in _TAKES_ROWS}
ALONE = {name: _for_one(STATEMENTS[name].replace("{skip}", "")) for name in _TAKES_ROWS}


def _question(name: str, rows: Sequence[tuple[Any, ...]], *before: Any) -> Question:
    """A statement about these rows; `before` are the arguments that stand before their columns."""
    if len(rows) == 1:
        return Question(ALONE[name], (*before, *rows[0]))
    return Question(BATCH[name], (*before, *map(list, zip(*rows, strict=True))))


# --------------------------------------------------------------------------------- insert and find

_CLAIM = attrgetter(
    *("tenant", "operation", "key", "fingerprint", "fingerprint_version", "lease_s"),
    *("retention_s", "recovery", "schema_version"),
)


def claim_row(claim: Claim) -> tuple[Any, ...]:
    return *_CLAIM(claim), sql.encode_digests(claim.field_digests), claim.request


def _insert_row(claim: Claim) -> tuple[Any, ...]:
    return claim.id, claim.token, *claim_row(claim), _is_uuid(claim.key) is not None


def _insert(verbs: Sequence[Insert], limits: Limits) -> Op[list[Inserted | Found | Again]]:
    outcomes: dict[bytes, Inserted | Found] = {}
    missing = verbs
    batch = len(verbs) > 1
    requested = any(verb.claim.request is not None for verb in verbs)
    name = "insert_requests" if requested else "insert"
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


def _requested(verbs: Sequence[Requested], limits: Limits) -> Op[list[bytes | None]]:
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
    where the verb was carried out, and with null where the record was not as expected.
    """
    answer = yield _question(name, rows, limits.alone_wait_ms)
    outcomes: dict[bytes, Done | Refused] = {
        record_id: Done(fence) for record_id, fence in answer if fence is not None
    }
    if len(outcomes) < len(verbs):
        refused = [record_id for record_id, fence in answer if fence is None]
        if len(verbs) == 1:
            refused = [verbs[0].id]  # alone it waits for its row, and skips none
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
"""The tables that may have parts, each in a transaction of its own: none waits for two of them."""


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
    """A move to another layout may have come in between: there are no days to turn then."""
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
    Requested: _requested,
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
