"""The outbox's table in MySQL or MariaDB. Each question is one packet, and where it has several
statements one transaction.
"""

# ruff: noqa: S608  (every value in a statement is a `literal`)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncekey._core.message import Message, Parked, decode_headers, encode_headers, lane
from oncekey._core.op import Op
from oncekey._system.clock import Clock
from oncekey.stores.mysql.statements import CLOCK, Question, Value, later, literal, micros
from oncekey.stores.outbox import DIED, DUE_S_MAX, ClaimedRow, LaneHead, ReturnedRow

MESSAGE = "id, topic, `key`, headers, payload, attempts"
PUT = (
    "INSERT INTO oncekey_outbox (id, lane, topic, `key`, headers, payload, payload_bytes, created) "
    f"VALUES ({{}}, {CLOCK})"
)
ROWS = "oncekey_outbox o FORCE INDEX (PRIMARY)"
IS_DUE = f"(o.due <= {CLOCK} OR o.due > {later(str(micros(DUE_S_MAX)))})"
# By the index, and no further than asked: neither server can go from lane to lane by itself.
LOOK = (
    f"SELECT n, lane, {IS_DUE}, payload_bytes, token IS NOT NULL, topic FROM oncekey_outbox o "
    "FORCE INDEX (oncekey_outbox_lanes) WHERE parked = 0 AND lane > {after} "
    "ORDER BY lane, n LIMIT {rows_max}"
)
# A row is judged in its newest version; one that somebody holds is being claimed.
PICK = (
    f"SELECT GROUP_CONCAT(o.n) INTO @oncekey_fits FROM {ROWS} "
    f"WHERE o.n IN {{ns}} AND o.parked = 0 AND {IS_DUE} FOR UPDATE SKIP LOCKED"
)
# Assignments count from left to right: `parked` is judged by the attempts before this one. What was
# not picked is not even looked at: somebody holds it, and would be waited for.
CLAIM = (
    f"UPDATE {ROWS} SET o.token = {{token}}, "
    "o.parked = o.attempts >= {attempts_max}, o.attempts = o.attempts + 1, "
    f"o.due = {later('{lease_us}')} "
    "WHERE o.n IN {picked}"
)
TAKEN = (
    f"SELECT n, parked, {MESSAGE} FROM {ROWS} WHERE n IN {{ns}} AND token = {{token}} ORDER BY n"
)
REMOVE = f"DELETE o FROM {ROWS} WHERE o.n IN {{ns}} AND o.token = {{token}}"
GIVE_BACK = (
    f"UPDATE {ROWS} SET o.token = NULL, o.attempts = {{attempts}}, "
    f"o.error = COALESCE({{error}}, o.error), o.parked = {{parked}}, o.due = {later('{delay_us}')} "
    "WHERE o.n = {n} AND o.token = {token}"
)
PARKED = (
    f"SELECT error, TIMESTAMPDIFF(MICROSECOND, created, {CLOCK}) / 1e6, {MESSAGE} "
    "FROM oncekey_outbox WHERE parked = 1 ORDER BY n LIMIT {limit}"
)
RETRY = (
    "UPDATE oncekey_outbox SET parked = 0, attempts = 0, due = DEFAULT(due), token = NULL "
    "WHERE parked = 1 AND id IN {ids}"
)


class MySQLOutboxTable:
    """An `OutboxTable` in MySQL or MariaDB."""

    def with_clock(self, clock: Clock) -> MySQLOutboxTable:
        return self  # the time is the server's

    def put(self, message: Message) -> Op[None]:
        where = (message.id, lane(message), message.topic, message.key)
        what = (encode_headers(message.headers), message.payload, len(message.payload))
        yield Question((PUT.format(", ".join(map(literal, (*where, *what)))),))

    def look(self, after: bytes, heads_max: int) -> Op[list[LaneHead]]:
        """A lane that is longer than what is left to look at costs one question, and is passed."""
        heads: dict[bytes, LaneHead] = {}
        while (room := heads_max - len(heads)) > 0:
            [reply] = yield Question((LOOK.format(after=literal(after), rows_max=room),))
            seen = [_head(*row) for row in reply.rows]
            for head in seen:
                heads.setdefault(head.lane, head)
            if len(seen) < room:
                break
            after = seen[-1].lane
        return list(heads.values())

    def claim(
        self, ns: Sequence[int], token: bytes, *, lease_s: float, attempts_max: int
    ) -> Op[list[ClaimedRow]]:
        chosen, mine = _among(sorted(ns)), literal(token)
        picked = ", ".join(f"IF(FIND_IN_SET({n}, @oncekey_fits), {n}, NULL)" for n in sorted(ns))
        claims = CLAIM.format(
            picked=f"({picked})", token=mine, attempts_max=attempts_max, lease_us=micros(lease_s)
        )
        taken = TAKEN.format(ns=chosen, token=mine)
        replies = yield Question((PICK.format(ns=chosen), claims), atomic=True, after=(taken,))
        return [
            ClaimedRow(n, _message(*told), bool(parked)) for n, parked, *told in replies[-1].rows
        ]

    def remove(self, ns: Sequence[int], token: bytes) -> Op[int]:
        [reply] = yield Question((REMOVE.format(ns=_among(sorted(ns)), token=literal(token)),))
        return int(reply.affected)

    def give_back(self, returns: Sequence[ReturnedRow], token: bytes) -> Op[int]:
        each = [_given_back(row, token) for row in sorted(returns, key=lambda row: row.n)]
        replies = yield Question(tuple(each), atomic=True)
        return sum(reply.affected for reply in replies)

    def list_parked(self, limit: int) -> Op[list[Parked]]:
        [reply] = yield Question((PARKED.format(limit=limit),))
        return [
            Parked(_message(*told), DIED if error is None else error.decode(), float(age_s))
            for error, age_s, *told in reply.rows
        ]

    def retry(self, ids: Sequence[str]) -> Op[int]:
        if not ids:
            return 0
        [reply] = yield Question((RETRY.format(ids=_among(ids)),))
        return int(reply.affected)


def _among(given: Sequence[Value]) -> str:
    return f"({', '.join(map(literal, given))})"


def _head(n: int, of: bytes, due: int, size: int, left: int, topic: bytes) -> LaneHead:
    return LaneHead(n, of, bool(due), size, bool(left), topic.decode())


def _given_back(row: ReturnedRow, token: bytes) -> str:
    return GIVE_BACK.format(
        n=row.n,
        token=literal(token),
        attempts=row.attempts,
        error=literal(row.error),
        parked=literal(row.parked),
        delay_us=micros(row.delay_s),
    )


def _message(
    id: bytes, topic: bytes, key: bytes | None, headers: bytes, payload: bytes, attempts: Any
) -> Message:
    named = None if key is None else key.decode()
    return Message(
        id.decode(), topic.decode(), named, decode_headers(headers.decode()), payload, int(attempts)
    )
