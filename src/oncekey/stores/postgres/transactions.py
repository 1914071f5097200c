"""Transactions of PostgreSQL: records that commit together with the rows of a handler or caller.

Atomic mode asks two statements. The first locks the id for as long as the transaction lasts, and
looks for its record; the last writes a record that is completed from the start. In between only the
id is locked: another request for it is refused at once, and no other record waits.

The first statement's snapshot is older than the lock that it takes, so it may miss a commit in
between. It decides nothing: the unique id of the table does, when the record is written.

Nothing depends on the session, so a pooler in transaction mode will do. A mark, a setting that ends
with the transaction, shows whether the handler ended it.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from oncekey._core.op import Op
from oncekey._core.record import Claim
from oncekey._core.verbs import Swap
from oncekey.errors import Misuse
from oncekey.stores import sql
from oncekey.stores.postgres.statements import (
    AS_UUID,
    CLAIMED,
    INLINE,
    RECORD,
    SHORTER,
    claimed_values,
)
from oncekey.stores.postgres.verbs import Question, answer_row, claim_row
from oncekey.stores.transactions import (
    Ask,
    AsyncAsk,
    Hold,
    SqlTransactions,
    TransactionVerbs,
    is_of,
    not_begun,
)

# Most requests are new: read the record only if there is one.
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
_VALUES = claimed_values(
    *("$11::text", "$13::int", "$14::float8", "$15::float8", "$16::text", "$17::int")
)
_INSERT_COMPLETED = f"""
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
        {_VALUES},
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


def hold(claim: Claim) -> Op[Hold]:
    """Take the id if it is free, and look for its record."""
    number = int.from_bytes(claim.id[:8], signed=True)
    [(_, ours)] = yield Question(_CLAIM, (claim.id, number, claim.token.hex()))
    if ours is not None:
        return Hold(ours, None)
    [(ours, *columns)] = yield Question(_HOLD, (claim.id, number))
    return Hold(ours, None if columns[0] is None else sql.record(columns))


def is_ours(claim: Claim) -> Op[bool]:
    """Whether the transaction is still the one that took the id."""
    [(mark,)] = yield _MARK
    return bool(mark == claim.token.hex())


def insert_completed(claim: Claim, complete: Swap) -> Op[bool]:
    """Write a record that did not exist, completed. False if there is one after all, or if the
    transaction is not the one that took the id.
    """
    *claimed, _request = claim_row(claim)  # which is kept only while something runs
    given: tuple[Any, ...] = (
        *(claim.token.hex(), complete.retention_s, claim.id, claim.token, complete.resource_id),
        *(*answer_row(complete), *claimed),
    )
    written = yield Question(_INSERT_COMPLETED, given)
    return bool(written)


# ------------------------------------------------------------------- on a caller's connection


def join(store: Any, connection: Any) -> Ask | None:
    """How to ask on a connection of psycopg."""
    return _join_psycopg(connection) if is_of(connection, "psycopg", "Connection") else None


def ajoin(store: Any, connection: Any) -> AsyncAsk | None:
    """How to ask on a connection of asyncpg, or an async one of psycopg."""
    if is_of(connection, "asyncpg", "Connection") or is_of(
        connection, "asyncpg.pool", "PoolConnectionProxy"
    ):
        return join_asyncpg(connection)
    return _ajoin_psycopg(connection) if is_of(connection, "psycopg", "AsyncConnection") else None


@functools.lru_cache(maxsize=64)
def _with_callers_timeout(statement: str) -> str:
    """Leave the lock timeout of the caller's transaction as it is."""
    return statement.replace("set_config('lock_timeout', $1, true)", "$1::text")


def join_asyncpg(connection: Any) -> AsyncAsk:
    """How to ask on a connection of asyncpg."""
    if not connection.is_in_transaction():
        raise not_begun("async with connection.transaction():")

    async def ask(question: Question) -> Any:
        try:
            return await connection.fetch(_with_callers_timeout(question.sql), *question.args)
        except sys.modules["asyncpg"].PostgresError as error:
            raise _translate(error) from error

    return ask


def _join_psycopg(connection: Any) -> Ask:
    psycopg = _must_have_begun(connection)

    def ask(question: Question) -> Any:
        with psycopg.RawCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
            try:
                statement = _with_callers_timeout(question.sql)
                cursor.execute(statement, question.args, binary=True)
            except psycopg.Error as error:
                raise _translate(error) from error
            return cursor.fetchall() if cursor.description else ()

    return ask


def _ajoin_psycopg(connection: Any) -> AsyncAsk:
    psycopg = _must_have_begun(connection)

    async def ask(question: Question) -> Any:
        async with psycopg.AsyncRawCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
            try:
                statement = _with_callers_timeout(question.sql)
                await cursor.execute(statement, question.args, binary=True)
            except psycopg.Error as error:
                raise _translate(error) from error
            return await cursor.fetchall() if cursor.description else ()

    return ask


def _must_have_begun(connection: Any) -> Any:
    """psycopg begins by itself before the next statement, unless it is in autocommit."""
    psycopg = sys.modules["psycopg"]
    idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    if idle and connection.autocommit:
        raise not_begun("with connection.transaction():")
    if connection.info.encoding == "ascii":  # then psycopg gives texts as bytes
        raise Misuse(
            "the client_encoding of this connection is SQL_ASCII, and texts of records cannot be "
            "read on it: connect with client_encoding=utf8"
        )
    return psycopg


def _translate(error: Any) -> Exception:
    if error.sqlstate == "42P01":
        return Misuse(
            f"{error}: this connection's database (or search_path) has no oncekey tables. Records "
            "commit with your rows only where they are in the same database: name that one as "
            "store=…, and run `oncekey migrate URL` with its URL"
        )
    other: Exception = error
    return other


_IDENTITY = Question(
    "SELECT current_database(), 'oncekey_claims'::regclass::oid::int8, "
    "(SELECT (extract(epoch FROM min(applied)) * 1000000)::int8 FROM oncekey_schema)"
)


def identity() -> Op[Any]:
    """What tells the store's database from any other."""
    [row] = yield _IDENTITY
    return tuple(row)


VERBS = TransactionVerbs(hold, is_ours, insert_completed)
TRANSACTIONS = SqlTransactions(
    "postgres",
    "Asyncpg(pool), Psycopg(pool), AsyncPsycopg(pool), SQLAlchemy(engine), AsyncSQLAlchemy(engine) "
    "or Django()",
    join,
    ajoin,
    identity=identity,
    verbs=VERBS,
    callers_verbs=VERBS,
)
