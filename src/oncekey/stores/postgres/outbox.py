"""The outbox's table in PostgreSQL. Each question is one statement and one transaction, so that all
of it works through a pooler in transaction mode.
"""

# ruff: noqa: S608  (what is put into a statement is one of ours)

from __future__ import annotations

from collections.abc import Sequence

from oncekey._core.message import Message, Parked, decode_headers, encode_headers, lane
from oncekey._core.op import Op
from oncekey._system.clock import Clock
from oncekey.stores.outbox import DIED, DUE_S_MAX, ClaimedRow, LaneHead, ReturnedRow
from oncekey.stores.postgres.verbs import Question, column

PUT = """
INSERT INTO oncekey_outbox (id, lane, topic, key, headers, payload)
VALUES ($1::uuid, $2::bytea, $3::text, $4::text, $5::text, $6::bytea)
"""
IS_DUE = (
    "(o.due <= clock_timestamp() "
    f"OR o.due > clock_timestamp() + make_interval(secs => {DUE_S_MAX:g}))"
)
# From lane to lane by the index: however long a lane is, it costs one look at its first row.
LOOK = f"""
WITH RECURSIVE heads AS (
    (
        SELECT lane, n FROM oncekey_outbox
        WHERE lane > $1::bytea AND NOT parked ORDER BY lane, n LIMIT 1
    )
    UNION ALL
    SELECT next.lane, next.n
    FROM heads CROSS JOIN LATERAL (
        SELECT o.lane, o.n FROM oncekey_outbox o
        WHERE o.lane > heads.lane AND NOT o.parked ORDER BY o.lane, o.n LIMIT 1
    ) AS next
)
SELECT h.n, h.lane, {IS_DUE}, octet_length(o.payload), o.token IS NOT NULL, o.topic
FROM (SELECT * FROM heads LIMIT $2::int) AS h JOIN oncekey_outbox o ON o.n = h.n
ORDER BY h.lane
"""
# A row that changed since the snapshot is checked in its newest version; a locked one is being
# claimed.
CLAIM = f"""
WITH picked AS MATERIALIZED (
    SELECT o.n FROM oncekey_outbox o
    WHERE o.n = ANY($1::bigint[]) AND NOT o.parked AND {IS_DUE}
    ORDER BY o.n FOR UPDATE SKIP LOCKED
)
UPDATE oncekey_outbox AS o
SET token = $2::bytea, attempts = o.attempts + 1, parked = o.attempts >= $4::int,
    due = clock_timestamp() + make_interval(secs => $3::float8)
FROM picked WHERE o.n = picked.n
RETURNING o.n, o.id::text, o.topic, o.key, o.headers, o.payload, o.attempts, o.parked
"""
REMOVE = "DELETE FROM oncekey_outbox WHERE n = ANY($1::bigint[]) AND token = $2::bytea RETURNING n"
GIVE_BACK = """
UPDATE oncekey_outbox AS o
SET token = NULL, attempts = r.attempts, error = coalesce(r.error, o.error), parked = r.parked,
    due = clock_timestamp() + make_interval(secs => r.delay_s)
FROM unnest($1::bigint[], $2::float8[], $3::int[], $4::text[], $5::bool[])
    AS r (n, delay_s, attempts, error, parked)
WHERE o.n = r.n AND o.token = $6::bytea
RETURNING o.n
"""
PARKED = """
SELECT id::text, topic, key, headers, payload, attempts, error,
    date_part('epoch', clock_timestamp() - created)
FROM oncekey_outbox WHERE parked ORDER BY n LIMIT $1::int
"""
RETRY = """
UPDATE oncekey_outbox SET parked = false, attempts = 0, due = '-infinity', token = NULL
WHERE parked AND id = ANY($1::uuid[]) RETURNING n
"""


class PostgresOutboxTable:
    """An `OutboxTable` in PostgreSQL."""

    def with_clock(self, clock: Clock) -> PostgresOutboxTable:
        return self  # the time is the server's

    def put(self, message: Message) -> Op[None]:
        headers = encode_headers(message.headers)
        where = (message.id, lane(message), message.topic, message.key)
        yield Question(PUT, (*where, headers, message.payload))

    def look(self, after: bytes, heads_max: int) -> Op[list[LaneHead]]:
        rows = yield Question(LOOK, (after, heads_max))
        return [LaneHead(n, bytes(lane), *seen) for n, lane, *seen in rows]

    def claim(
        self, ns: Sequence[int], token: bytes, *, lease_s: float, attempts_max: int
    ) -> Op[list[ClaimedRow]]:
        rows = yield Question(CLAIM, (list(ns), token, lease_s, attempts_max))
        claimed = [_claimed_row(*row) for row in rows]
        return sorted(claimed, key=lambda row: row.n)

    def remove(self, ns: Sequence[int], token: bytes) -> Op[int]:
        rows = yield Question(REMOVE, (list(ns), token))
        return len(rows)

    def give_back(self, returns: Sequence[ReturnedRow], token: bytes) -> Op[int]:
        given = [(each.n, each.delay_s, each.attempts, each.error, each.parked) for each in returns]
        columns = map(column, zip(*given, strict=True))
        rows = yield Question(GIVE_BACK, (*columns, token))
        return len(rows)

    def list_parked(self, limit: int) -> Op[list[Parked]]:
        rows = yield Question(PARKED, (limit,))
        return [Parked(_message(*row[:6]), row[6] or DIED, row[7]) for row in rows]

    def retry(self, ids: Sequence[str]) -> Op[int]:
        rows = yield Question(RETRY, (list(ids),))
        return len(rows)


def _claimed_row(
    n: int,
    id: str,
    topic: str,
    key: str | None,
    headers: str,
    payload: bytes,
    attempts: int,
    parked: bool,
) -> ClaimedRow:
    return ClaimedRow(n, _message(id, topic, key, headers, payload, attempts), parked)


def _message(
    id: str, topic: str, key: str | None, headers: str, payload: bytes, attempts: int
) -> Message:
    return Message(id, topic, key, decode_headers(headers), bytes(payload), attempts)
