"""What atomic mode asks of PostgreSQL, within the transaction that holds the business rows too.

Two statements. The first takes the id, for as long as the transaction lasts, and looks whether it
has a record; the last writes a record that is completed from the start. In between nothing of ours
is locked but the id: whoever else wants it is told so at once, and no other record waits.

The look's snapshot is older than the lock that it takes, so it may miss what was committed in
between. It decides nothing: the unique id of the table does, when the record is written.

Nothing needs a session, so a pooler in transaction mode will do. The mark, a setting that ends with
the transaction, tells whether the handler ended it by itself.
"""

from __future__ import annotations

from typing import Any

from oncekey._core.op import Op
from oncekey._core.record import Claim
from oncekey._core.verbs import Swap
from oncekey.stores import sql
from oncekey.stores.postgres.statements import AS_UUID, CLAIMED, INLINE, RECORD, SHORTER, given
from oncekey.stores.postgres.verbs import Question, answer_row, claim_row
from oncekey.stores.way import Held, Way

# Most requests are new: what a record would say is asked for only where there is one.
_CLAIM = """
SELECT
    set_config('oncekey.attempt', $3::text, true),
    CASE
        WHEN EXISTS (SELECT FROM oncekey_claims WHERE id = $1::bytea) THEN NULL
        ELSE pg_try_advisory_xact_lock($2::bigint)
    END
"""
_HOLD = f"""
SELECT
    CASE
        WHEN c.state IN ('completed', 'unknown') AND c.expires > clock_timestamp() THEN false
        ELSE pg_try_advisory_xact_lock($2::bigint)
    END,
    {RECORD}
FROM (SELECT $1::bytea AS id) AS a
LEFT JOIN oncekey_claims c ON c.id = a.id
LEFT JOIN oncekey_answers r ON r.day = c.answer_day AND r.id = c.id
"""  # noqa: S608
_MARK = Question("SELECT current_setting('oncekey.attempt', true)")
_SETTLE = f"""
WITH fresh AS MATERIALIZED (
    SELECT
        (clock_timestamp() + make_interval(secs => $2::float8 + 0.05))::timestamptz(1) AS expires,
        CASE WHEN NOT {INLINE} THEN 0 END AS zero,
        short,
        CASE WHEN short THEN {AS_UUID.format("$11::text")} END AS key_uuid
    FROM (SELECT {SHORTER} AS short) AS s
),
inserted AS (
    INSERT INTO oncekey_claims (
        id, token, resource_id,
        tenant, operation, fingerprint,
        {CLAIMED},
        field_digests, state, fence, generation, attempt, lapses, beat,
        no_effect, replays, conflicts, created, expires,
        answer_day,
        status, headers, body
    )
    SELECT
        $3::bytea, $4::bytea, $5::text,
        $9::text, $10::text, $12::bytea,
        {given("$11::text", "$13::int", "$14::float8", "$15::float8", "$16::text", "$17::int")},
        $18::text, 'completed', nextval('oncekey_fences'), currval('oncekey_fences') + zero,
        1 + zero, zero, 0, zero::bool, zero, zero, now(), expires,
        CASE WHEN zero = 0 THEN (expires AT TIME ZONE 'UTC')::date END,
        CASE WHEN zero IS NULL THEN $6::int END,
        CASE WHEN zero IS NULL THEN $7::bytea END,
        CASE WHEN zero IS NULL THEN $8::bytea END
    FROM fresh
    WHERE current_setting('oncekey.attempt', true) = $1::text
    ON CONFLICT (id) DO NOTHING
    RETURNING id, answer_day
),
kept AS (
    INSERT INTO oncekey_answers (day, id, status, headers, body)
    SELECT answer_day, id, $6::int, $7::bytea, $8::bytea FROM inserted WHERE answer_day IS NOT NULL
    -- That of a record that was swept, whose day is not over.
    ON CONFLICT (day, id) DO UPDATE
        SET status = excluded.status, headers = excluded.headers, body = excluded.body
)
SELECT true FROM inserted
"""  # noqa: S608


def hold(claim: Claim) -> Op[Held]:
    """Take the id if nobody has it, and look for its record."""
    number = int.from_bytes(claim.id[:8], signed=True)
    [(_, ours)] = yield Question(_CLAIM, (claim.id, number, claim.token.hex()))
    if ours is not None:
        return Held(ours, None)
    [(ours, *columns)] = yield Question(_HOLD, (claim.id, number))
    return Held(ours, None if columns[0] is None else sql.record(columns))


def is_ours(claim: Claim) -> Op[bool]:
    """Whether the transaction is still the one that took the id."""
    [(mark,)] = yield _MARK
    return bool(mark == claim.token.hex())


def settle(claim: Claim, complete: Swap) -> Op[bool]:
    """Write a record that did not exist, completed. False if there is one after all, or if the
    transaction is not the one that took the id.
    """
    *claimed, _request = claim_row(claim)  # which is kept only while something runs
    given: tuple[Any, ...] = (
        *(claim.token.hex(), complete.retention_s, claim.id, claim.token, complete.resource_id),
        *(*answer_row(complete), *claimed),
    )
    written = yield Question(_SETTLE, given)
    return bool(written)


WAY = Way(hold, is_ours, settle)
