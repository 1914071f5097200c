"""The outbox's table in a SQLite file. `look` takes no write lock: an idle worker blocks nobody."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from oncekey._core.message import Message, Parked, decode_headers, encode_headers, lane
from oncekey._core.op import Op
from oncekey._system.clock import Clock
from oncekey.errors import StoreUnfit
from oncekey.stores.outbox import DIED, ClaimedRow, LaneHead, ReturnedRow
from oncekey.stores.sqlite.connection import Execute, File
from oncekey.stores.sqlite.verbs import boot_number

PUT = """
INSERT INTO oncekey_outbox (id, lane, topic, key, headers, payload, created)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
# From lane to lane by the index: however long a lane is, it costs one look at its first row.
LOOK = """
WITH RECURSIVE heads (n) AS (
    SELECT * FROM (
        SELECT n FROM oncekey_outbox WHERE lane > ? AND parked = 0 ORDER BY lane, n LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT o.n FROM oncekey_outbox o
        WHERE o.lane > (SELECT lane FROM oncekey_outbox WHERE n = heads.n) AND o.parked = 0
        ORDER BY o.lane, o.n LIMIT 1
    )
    FROM heads WHERE heads.n IS NOT NULL
    LIMIT ?
)
SELECT o.n, o.lane, o.boot <> ? OR o.due <= ?, length(o.payload), o.token IS NOT NULL, o.topic
FROM heads JOIN oncekey_outbox o ON o.n = heads.n ORDER BY o.lane
"""
CLAIM = """
UPDATE oncekey_outbox
SET token = ?, attempts = attempts + 1, parked = attempts >= ?, boot = ?, due = ?
WHERE n = ? AND parked = 0 AND (boot <> ? OR due <= ?)
RETURNING n, parked, id, topic, key, headers, payload, attempts
"""
REMOVE = "DELETE FROM oncekey_outbox WHERE n = ? AND token = ?"
GIVE_BACK = """
UPDATE oncekey_outbox
SET token = NULL, attempts = ?, error = coalesce(?, error), parked = ?, boot = ?, due = ?
WHERE n = ? AND token = ?
"""
PARKED = """
SELECT id, topic, key, headers, payload, attempts, error, created
FROM oncekey_outbox WHERE parked = 1 ORDER BY n LIMIT ?
"""
RETRY = """
UPDATE oncekey_outbox SET parked = 0, attempts = 0, boot = 0, due = 0, token = NULL
WHERE parked = 1 AND id = ?
"""


class SqliteOutboxTable:
    """An `OutboxTable` in SQLite."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    def with_clock(self, clock: Clock) -> SqliteOutboxTable:
        return SqliteOutboxTable(self._path, clock)

    def put(self, message: Message) -> Op[None]:
        where = (message.id, lane(message), message.topic, message.key)
        what = (encode_headers(message.headers), message.payload, self._clock.wall())
        try:
            yield partial(_change, PUT, [(*where, *what)])
        except sqlite3.OperationalError as error:  # raised by the caller's connection
            if "no such table: oncekey_outbox" not in str(error):
                raise
            raise StoreUnfit(
                f"SqliteStore({self._path!r}) has no outbox yet: call Outbox.migrate() when your "
                "service starts, or run `oncekey migrate` on it"
            ) from error

    def look(self, after: bytes, heads_max: int) -> Op[list[LaneHead]]:
        rows = yield partial(_rows, LOOK, (after, heads_max, *self._now()))
        return [_head(*row) for row in rows]

    def claim(
        self, ns: Sequence[int], token: bytes, *, lease_s: float, attempts_max: int
    ) -> Op[list[ClaimedRow]]:
        rows = yield partial(self._claim, ns, token, lease_s, attempts_max)
        return [ClaimedRow(n, _message(*told), bool(parked)) for n, parked, *told in rows]

    def _claim(
        self, ns: Sequence[int], token: bytes, lease_s: float, attempts_max: int, file: File
    ) -> list[Any]:
        def work(execute: Execute) -> list[Any]:
            boot, now = self._now()  # once the write lock is held, not before waiting for it
            taken = []
            for n in sorted(ns):
                asked = (token, attempts_max, boot, now + lease_s, n, boot, now)
                taken += execute(CLAIM, asked).fetchall()
            return taken

        return file.write(work)

    def remove(self, ns: Sequence[int], token: bytes) -> Op[int]:
        changed: int = yield partial(_change, REMOVE, [(n, token) for n in ns])
        return changed

    def give_back(self, returns: Sequence[ReturnedRow], token: bytes) -> Op[int]:
        boot, now = self._now()
        rows = [
            (each.attempts, each.error, each.parked, boot, now + each.delay_s, each.n, token)
            for each in returns
        ]
        changed: int = yield partial(_change, GIVE_BACK, rows)
        return changed

    def list_parked(self, limit: int) -> Op[list[Parked]]:
        rows = yield partial(_rows, PARKED, (limit,))
        wall = self._clock.wall()
        return [Parked(_message(*row[:6]), row[6] or DIED, max(0.0, wall - row[7])) for row in rows]

    def retry(self, ids: Sequence[str]) -> Op[int]:
        changed: int = yield partial(_change, RETRY, [(each,) for each in ids])
        return changed

    def _now(self) -> tuple[int, float]:
        return boot_number(self._clock.boot_id()), self._clock.boot()


def _rows(sql: str, args: tuple[Any, ...], file: File) -> list[Any]:
    def work(execute: Execute) -> list[Any]:
        return execute(sql, args).fetchall()

    return file.read(work)


def _change(sql: str, rows: Iterable[tuple[Any, ...]], file: File) -> int:
    """Execute a statement once for each row of arguments; return how many rows it changed."""

    def work(execute: Execute) -> int:
        return sum(execute(sql, row).rowcount for row in rows)

    return file.write(work)


def _head(n: int, of: bytes, due: int, size: int, left: int, topic: str) -> LaneHead:
    return LaneHead(n, of, bool(due), size, bool(left), topic)


def _message(
    id: str, topic: str, key: str | None, headers: str, payload: bytes, attempts: int
) -> Message:
    return Message(id, topic, key, decode_headers(headers), payload, attempts)
