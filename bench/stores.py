"""The stores against the limits of their engines."""

from __future__ import annotations

from bench import atomic, dynamodb, mysql, postgres, redis, sqlite, tiered
from bench.rounds import Settings
from bench.subject import try_rows
from bench.table import Section

HOW = (
    "Verbs of the store contract, through the gatherer, and whole decisions of the engine, against "
    "the engine's own load generator or one round trip of its driver with the same one-row "
    "statement. PostgreSQL with `fsync` and `synchronous_commit` on, MariaDB with "
    "`innodb_flush_log_at_trx_commit=1`, Redis appending to its file "
    "and syncing it every second without rewriting it meanwhile, SQLite with `synchronous=FULL`. "
    "DynamoDB is an emulator, which says nothing of its speed: only the driver's own conditional "
    "writes to the same emulator are compared with. Tiered replays, of records that were asked for "
    "once before, are compared with replays of records that are in the same Redis."
)


def section(settings: Settings) -> Section:
    rows = [
        *try_rows("PostgreSQL", lambda: postgres.rows(settings)),
        *atomic.rows(settings),
        *try_rows(mysql.INSERTS, lambda: mysql.rows(settings), mysql.GOAL),
        *try_rows("Redis", lambda: redis.rows(settings)),
        *try_rows(tiered.TITLE, lambda: tiered.rows(settings), tiered.GOAL),
        *try_rows("SQLite", lambda: sqlite.rows(settings)),
        *try_rows(dynamodb.INSERTS, lambda: dynamodb.rows(settings), dynamodb.GOAL),
    ]
    return Section("Stores", HOW, tuple(rows))


def estimate_s(settings: Settings) -> float:
    subjects = (postgres, atomic, mysql, redis, tiered, sqlite, dynamodb)
    return sum(float(subject.estimate_s(settings)) for subject in subjects)
