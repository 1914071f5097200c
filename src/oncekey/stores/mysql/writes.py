"""The conditional writes on MySQL and MariaDB. Pure: no driver."""

# ruff: noqa: S608  (every value in a statement is a `literal`)

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

from oncekey._core.op import Op
from oncekey._core.record import Claim, Record, State, encode_headers
from oncekey._core.values import value
from oncekey._core.verbs import AppendStep, Done, Insert, Refused, Swap, When
from oncekey.errors import TooLong
from oncekey.stores import sql
from oncekey.stores.base import AGAIN, Again
from oncekey.stores.mysql.statements import (
    CLOCK,
    Question,
    Reply,
    Value,
    among,
    is_long,
    later,
    literal,
    micros,
    names,
    table,
)
from oncekey.stores.sql_batch import CHORE_TIMEOUT_S, RowHeld

TRIES_MAX = 3
"""How often a lone verb is asked if its row is locked, or after a deadlock."""


class Limits:
    """How long to wait. The server stops waiting for a row first, so that it can still say so."""

    def __init__(self, timeout_s: float = 5.0) -> None:
        self.timeout_s = timeout_s
        self.row_wait_s = max(1, int(timeout_s * 0.25))
        """Whole seconds: the servers count no others, and to MySQL 0 is 1."""

    def of(self, question: Question) -> float:
        return CHORE_TIMEOUT_S if question.chore else self.timeout_s


def retry_while_locked(question: Question, *, alone: bool) -> Generator[Question, Any, list[Reply]]:
    """Ask; for a lone verb, ask again if a row was locked: nothing was written."""
    for _ in range(TRIES_MAX - 1 if alone else 0):
        try:
            replies: list[Reply] = yield question
        except RowHeld:
            continue
        return replies
    replies = yield question
    return replies


# ----------------------------------------------------------------------------------------- records

LEASE_LEFT_S = f"COALESCE(TIMESTAMPDIFF(MICROSECOND, {CLOCK}, c.lease_until) / 1e6, 0e0)"
_COMPUTED = {
    "age_s": f"TIMESTAMPDIFF(MICROSECOND, c.created, {CLOCK}) / 1e6",
    "lease_left_s": LEASE_LEFT_S,
    "expires_in_s": f"TIMESTAMPDIFF(MICROSECOND, {CLOCK}, c.expires) / 1e6",
}
RECORD = ", ".join(_COMPUTED.get(column, f"c.`{column}`") for column in sql.COLUMNS)
OUTLINE = RECORD.replace("c.`body`", "NULL")
FIND = f"SELECT {RECORD} FROM oncekey_claims c WHERE c.id IN"
_TEXTS = [
    sql.COLUMNS.index(column)
    for column in ("tenant", "operation", "key", "recovery", "field_digests", "resource_id")
]


def record(row: Sequence[Any]) -> Record:
    """Convert a row, in the order of `COLUMNS`, with texts as bytes, to a record."""
    read = list(row)
    for place in _TEXTS:
        if read[place] is not None:
            read[place] = read[place].decode()
    return sql.record(read)


def records(
    ids: Sequence[bytes], *, newest: bool = False
) -> Generator[Question, Any, dict[bytes, Record]]:
    """Read the records of these ids. `newest`: also in a caller's transaction, whose snapshot may
    be older than the record that refused the verb.
    """
    share = " LOCK IN SHARE MODE" if newest else ""
    [reply] = yield Question((f"{FIND} {among(ids)}{share}",))
    return {row[0]: record(row) for row in reply.rows}


# -------------------------------------------------------------------------------------- comparing

_MOMENTS = {
    When.ANY: "TRUE",
    When.LAPSED: f"c.lease_until <= {CLOCK}",
    When.EXPIRED: f"c.expires <= {CLOCK}",
    When.OVERLONG: f"c.lease_until > {later('ROUND(1001000 * c.lease_s)')}",
}
_MOMENT = " ".join(
    ["CASE a.moment", *(f"WHEN '{when.value}' THEN {holds}" for when, holds in _MOMENTS.items())]
)
_AS_EXPECTED = "c.state = {state} AND c.fence = {fence} AND c.token = {token} AND {moment}"
_IN_BATCH = _AS_EXPECTED.format_map(
    {"state": "a.state", "fence": "a.fence", "token": "a.token", "moment": f"{_MOMENT} END"}
)
_COMPARED = "SELECT @oncekey_held, @oncekey_fits"


def _expectation(
    record_id: bytes, state: State, fence: int, token: bytes, when: When
) -> dict[str, Value]:
    return {
        "id": record_id,
        "state": state.value,
        "fence": fence,
        "token": token,
        "moment": when.value,
    }


def _lock_and_compare(expected: Sequence[dict[str, Value]]) -> str:
    """Lock the rows; note which were locked and which of these are as expected. The session limits
    the length of such a list; for one row, which may be in a caller's session, there is no list.
    """
    listed = "GROUP_CONCAT" if len(expected) > 1 else "MAX"
    return (
        f"SELECT {listed}(HEX(c.id)), {listed}(IF({_IN_BATCH}, HEX(c.id), NULL)) "
        f"INTO @oncekey_held, @oncekey_fits FROM {table(expected)} a "
        "STRAIGHT_JOIN oncekey_claims c FORCE INDEX (PRIMARY) ON c.id = a.id "
        f"FOR UPDATE{' SKIP LOCKED' if len(expected) > 1 else ''}"
    )


def removal(rows: str, ids: Sequence[bytes]) -> str:
    """Remove the rows `r` of those ids that fit; more conditions may follow. Rows are read one by
    one: both servers would scan a short table, and wait for every locked row in it.
    """
    asked = table([{"id": record_id} for record_id in ids])
    return (
        f"DELETE r FROM {asked} a STRAIGHT_JOIN {rows} r FORCE INDEX (PRIMARY) "
        "ON r.id = IF(FIND_IN_SET(HEX(a.id), @oncekey_fits), a.id, NULL)"
    )


V = TypeVar("V", bound=Insert | Swap | AppendStep)


def together(
    verbs: Sequence[V],
    values_of: Callable[[V], Mapping[str, Value]],
    carry_out: Callable[[Sequence[V]], Op[list[Any]]],
) -> Op[list[Any]]:
    """Carry out a batch without verbs that have long values: these go alone."""
    if len(verbs) == 1:
        return (yield from carry_out(verbs))
    short = [verb for verb in verbs if not is_long(values_of(verb))]
    outcomes = (yield from _in_halves(short, carry_out)) if short else []
    by_id = {verb.id: outcome for verb, outcome in zip(short, outcomes, strict=True)}
    return [by_id.get(verb.id, AGAIN) for verb in verbs]


def _in_halves(
    verbs: Sequence[V], carry_out: Callable[[Sequence[V]], Op[list[Any]]]
) -> Op[list[Any]]:
    """Carry out a batch; halve it, repeatedly, if it exceeds the server's packet size: then nothing
    was sent. A half of one verb goes alone: it may wait for its row, or be too long by itself.
    """
    try:
        return (yield from carry_out(verbs))
    except TooLong:
        middle = len(verbs) // 2
    outcomes: list[Any] = []
    for half in (verbs[:middle], verbs[middle:]):
        few = len(half) < 2
        outcomes += [AGAIN for _ in half] if few else (yield from _in_halves(half, carry_out))
    return outcomes


def _ids(ids: object) -> set[bytes]:
    return {bytes.fromhex(digits) for digits in str(ids or "").split(",") if digits}


def _write(
    verbs: Sequence[Swap | AppendStep],
    expected: Sequence[dict[str, Value]],
    writes: Sequence[str],
    fences: Sequence[int],
    *,
    flushed: bool = False,
) -> Op[list[Done | Refused | Again]]:
    """Lock and compare, then write what fits, as one transaction."""
    statements = (_lock_and_compare(expected), *writes)
    question = Question(statements, atomic=True, after=(_COMPARED,), flushed=flushed)
    alone = len(verbs) == 1
    try:
        replies = yield from retry_while_locked(question, alone=alone)
    except RowHeld:
        if alone:
            raise
        return [AGAIN for _ in verbs]
    [(held, fits)] = replies[-1].rows
    done, locked = _ids(fits), _ids(held)
    refused = [v.id for v in verbs if v.id not in done and (alone or v.id in locked)]
    found = (yield from records(refused, newest=alone)) if refused else {}

    def outcome(record_id: bytes, fence: int) -> Done | Refused | Again:
        if record_id in done:
            return Done(fence)
        return Refused(found.get(record_id)) if record_id in refused else AGAIN

    return [outcome(verb.id, fence) for verb, fence in zip(verbs, fences, strict=True)]


# ------------------------------------------------------------------------------------------- swaps


def claim_row(claim: Claim) -> dict[str, Value]:
    """Return a claim's columns, and its deadlines as microseconds from now."""
    return {
        "tenant": claim.tenant,
        "operation": claim.operation,
        "key": claim.key,
        "fingerprint": claim.fingerprint,
        "fingerprint_version": claim.fingerprint_version,
        "lease_s": claim.lease_s,
        "retention_s": claim.retention_s,
        "recovery": claim.recovery,
        "schema_version": claim.schema_version,
        "field_digests": sql.encode_digests(claim.field_digests),
        "request": claim.request,
        "lease_us": micros(claim.lease_s),
        "expires_us": micros(claim.lease_s + claim.retention_s),
    }


@value
class _Change:
    """What a swap assigns: columns to expressions, with values as `{name}`."""

    columns: dict[str, str]
    values: dict[str, Value]


def next_fence(verb: Swap) -> int:
    """Return the fence after a swap: while a record exists, its fence only has to rise."""
    return verb.fence + 1 if verb.raise_fence else verb.fence


def _change(verb: Swap) -> _Change:
    change = _Change(
        {
            "state": "{next_state}",
            "no_effect": "{no_effect}",
            "beat": "c.beat + 1",
            "lease_until": later("{lease_us}") if verb.lease_s is not None else "NULL",
            "expires": later("{expires_us}"),
        },
        {
            "next_state": verb.to.value,
            "no_effect": verb.no_effect,
            "lease_us": micros(verb.lease_s),
            "expires_us": micros((verb.lease_s or 0) + verb.retention_s),
        },
    )
    _assign(change, _owner(verb))
    if verb.fresh:
        change.columns.update({"created": CLOCK, "replays": "0", "conflicts": "0"})
        _assign(change, {"generation": next_fence(verb)})
    if verb.to is State.COMPLETED or verb.fresh:
        _assign(change, answer_row(verb))
    if verb.claim is not None:
        deadlines = ("lease_us", "expires_us")
        row = claim_row(verb.claim)
        _assign(change, {name: given for name, given in row.items() if name not in deadlines})
    elif verb.to is not State.RUNNING:
        change.columns["request"] = "NULL"
    return change


def _assign(change: _Change, given: dict[str, Value]) -> None:
    change.columns.update((column, f"{{{column}}}") for column in given)
    change.values.update(given)


def _owner(verb: Swap) -> dict[str, Value]:
    changed: dict[str, Value] = {
        "fence": next_fence(verb) if verb.raise_fence else None,
        "token": verb.new_token,
        "attempt": verb.attempt,
        "lapses": verb.lapses,
    }
    return {column: given for column, given in changed.items() if given is not None}


def answer_row(verb: Swap) -> dict[str, Value]:
    """Return the columns of the answer, which only a completion brings; else they are null."""
    completed = verb.to is State.COMPLETED
    answer = verb.answer if completed else None
    return {
        "status": None if answer is None else answer.status,
        "headers": None if answer is None else encode_headers(answer.headers),
        "body": None if answer is None else answer.body,
        "resource_id": verb.resource_id if completed else None,
    }


def swap(verbs: Sequence[Swap], limits: Limits) -> Op[list[Done | Refused | Again]]:
    return (yield from together(verbs, lambda verb: _change(verb).values, _swap))


def _swap(verbs: Sequence[Swap]) -> Op[list[Done | Refused | Again]]:
    if len(verbs) == 1 and not _forgets_steps(verbs[0]):
        return (yield from _swap_alone(verbs[0]))
    alike: dict[tuple[tuple[str, str], ...], list[dict[str, Value]]] = {}
    for verb in verbs:
        change = _change(verb)
        shape = tuple(change.columns.items())
        alike.setdefault(shape, []).append({"id": verb.id, **change.values})
    writes = [_update(dict(shape), rows) for shape, rows in alike.items()]
    if forgetful := [verb.id for verb in verbs if _forgets_steps(verb)]:
        # An operator found out that steps that were only begun had not happened.
        writes.append(f"{removal('oncekey_steps', forgetful)} AND r.result IS NULL")
    expected = [_expectation(v.id, v.state, v.fence, v.token, v.when) for v in verbs]
    return (yield from _write(verbs, expected, writes, [next_fence(verb) for verb in verbs]))


def _update(columns: dict[str, str], rows: Sequence[dict[str, Value]]) -> str:
    """Update the same columns of all these rows that are as expected."""
    values = names(rows)
    claims = "oncekey_claims c FORCE INDEX (PRIMARY)"
    if len(rows) > 1:
        claims = f"{table(rows)} a STRAIGHT_JOIN {claims} ON c.id = a.id"
    return (
        f"UPDATE {claims} SET {_assignments(columns, values)} "
        f"WHERE c.id = {values['id']} AND FIND_IN_SET(HEX({values['id']}), @oncekey_fits)"
    )


def _assignments(columns: dict[str, str], values: dict[str, str]) -> str:
    return ", ".join(f"c.`{name}` = {text.format_map(values)}" for name, text in columns.items())


def _forgets_steps(verb: Swap) -> bool:
    return verb.state is State.UNKNOWN and verb.to is State.RELEASED


def _swap_alone(verb: Swap) -> Op[list[Done | Refused | Again]]:
    as_expected = _AS_EXPECTED.format(
        state=literal(verb.state.value),
        fence=literal(verb.fence),
        token=literal(verb.token),
        moment=_MOMENTS[verb.when],
    )
    change = _change(verb)
    assignments = _assignments(change.columns, names([change.values]))
    statement = (
        f"UPDATE oncekey_claims c FORCE INDEX (PRIMARY) SET {assignments} "
        f"WHERE c.id = {literal(verb.id)} AND {as_expected}"
    )
    [reply] = yield from retry_while_locked(Question((statement,)), alone=True)
    if reply.affected:
        return [Done(next_fence(verb))]
    found = yield from records([verb.id], newest=True)
    return [Refused(found.get(verb.id))]


# ------------------------------------------------------------------------------------------- steps

_APPEND = """\
INSERT INTO oncekey_steps (id, generation, name, position, digest, result)
SELECT c.id, c.generation, {name}, {position}, {digest}, {result}
FROM {asked} oncekey_claims c FORCE INDEX (PRIMARY)
WHERE c.id = {id} AND FIND_IN_SET(HEX({id}), @oncekey_fits)
ON DUPLICATE KEY UPDATE
    digest = {digest}, result = COALESCE({result}, oncekey_steps.result)"""


_POSITION = "COALESCE(MAX(s.position), 0) + 1"


def append_step(verbs: Sequence[AppendStep], limits: Limits) -> Op[list[Done | Refused | Again]]:
    return (yield from together(verbs, _step_row, _append_step))


def _step_row(verb: AppendStep) -> dict[str, Value]:
    step = verb.step
    return {"id": verb.id, "name": step.name, "digest": step.digest, "result": step.result}


def _append_step(verbs: Sequence[AppendStep]) -> Op[list[Done | Refused | Again]]:
    """Append steps. A lone one may be in a caller's transaction, under REPEATABLE READ. There a
    statement that writes would lock what it reads, also the gap in which others insert steps. So
    read its position before; a step that the snapshot does not show yet may be listed after it.
    """
    rows = [_step_row(verb) for verb in verbs]
    expected = [_expectation(v.id, State.RUNNING, v.fence, v.token, When.ANY) for v in verbs]
    steps = "FROM oncekey_steps s FORCE INDEX (PRIMARY) WHERE s.id ="
    if len(rows) == 1:
        lookup = [f"SELECT {_POSITION} INTO @oncekey_position {steps} {literal(verbs[0].id)}"]
        asked, position = "", "@oncekey_position"
    else:
        lookup = []
        asked, position = f"{table(rows)} a STRAIGHT_JOIN", f"(SELECT {_POSITION} {steps} c.id)"
    writes = [*lookup, _APPEND.format(asked=asked, position=position, **names(rows))]
    fences = [verb.fence for verb in verbs]
    return (yield from _write(verbs, expected, writes, fences, flushed=True))
