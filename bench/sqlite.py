"""SQLite: the library against the standard library's sqlite3, both syncing every commit."""

from __future__ import annotations

import itertools
import sqlite3
import time
from pathlib import Path
from typing import Any

from bench.rounds import Contender, Settings, contest
from bench.table import Goal, Row
from bench.work import (
    ANSWER,
    COMPLETE,
    FOUND,
    NEW,
    PEEK,
    RENEW,
    Item,
    Library,
    alone_rows,
    claim,
    median_rate,
    migrate,
)
from oncekey._core.record import encode_headers
from oncekey.stores.sqlite.store import SqliteStore
from tests.servers import folders

BATCH_ROWS = 64
COMMITS = Goal(0.6)
INSERTS = Goal(0.4)

_INSERT = """
INSERT INTO oncekey_claims (
    id, token, fence, boot, lease_until, expires, created, lease_s, retention_s, schema_version,
    fingerprint_version, fingerprint, recovery, tenant, operation, key
) VALUES (?, ?, 1, 1, 1e9, 2e9, 1e9, 30, 86400, 0, 1, ?, 'rerun', ?, ?, ?)
ON CONFLICT (id) DO NOTHING
"""
_UPDATE = """
UPDATE oncekey_claims SET state = ?, lease_until = 1e9, expires = 2e9, beat = beat + 1
WHERE id = ? AND state = 'running' AND fence = ? AND token = ?
"""
_ANSWER = """
INSERT OR REPLACE INTO oncekey_answers (n, status, headers, body)
SELECT n, 201, ?, ? FROM oncekey_claims WHERE id = ?
"""
_FIND = "SELECT * FROM oncekey_claims LEFT JOIN oncekey_answers USING (n) WHERE id = ?"
_PEEK = "SELECT state, fence, lease_until FROM oncekey_claims WHERE id = ?"


def rows(settings: Settings) -> list[Row]:
    folder = folders.private("sqlite")
    return [*_insert_rows(folder, settings), *_alone_rows(folder, settings)]


def estimate_s(settings: Settings) -> float:
    return settings.estimate_s(3) + 5 * settings.estimate_s(2, 0.25)


def _insert_rows(folder: Path, settings: Settings) -> list[Row]:
    title = "SQLite, 32 at a time, inserts"
    files = (folder / f"crowd-{number}.db" for number in itertools.count())

    def in_batches(seconds: float) -> float:
        db, number, started = _open(next(files)), 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            new = [_insert_values(Item(claim())) for _ in range(BATCH_ROWS)]
            db.execute("BEGIN IMMEDIATE")
            for row in new:
                db.execute(_INSERT, row)
            db.execute("COMMIT")
            number += BATCH_ROWS
        rate = number / (time.perf_counter() - started)
        db.close()
        return rate

    def by_library(work: str) -> Contender:
        def run(seconds: float) -> float:
            with Library(SqliteStore(next(files))) as library:
                library.run(library.insert())
                return library.crowd(getattr(library, work), seconds)

        return run

    result = contest(
        title,
        {
            "batches of 64": in_batches,
            "store verbs": by_library("insert"),
            "Guard": by_library("begin"),
        },
        settings,
        before_round=lambda: _remove(folder),
    )
    return [
        result.row(f"{title}: {name}", name, "batches of 64", INSERTS)
        for name in ("store verbs", "Guard")
    ]


def _alone_rows(folder: Path, settings: Settings) -> list[Row]:
    """The driver gets the records that the library inserted, in the same file."""
    path = folder / "alone.db"
    with Library(SqliteStore(path)) as library:
        library.run(library.insert())
        db = _open(path)

        def bare(name: str, items: list[Item]) -> float:
            return median_rate(lambda item: _ask(db, name, item), items)

        try:
            return alone_rows("SQLite", library, bare, _goal, settings)
        finally:
            db.close()


def _goal(name: str) -> Goal | None:
    """Reads have none: for them the driver is a function call, and the library a turn of a loop."""
    return None if name in (FOUND, PEEK) else COMMITS


def _ask(db: sqlite3.Connection, name: str, item: Item) -> Any:
    """The verb's one-row statement, and its commit where it writes."""
    record_id, token = item.claim.id, item.claim.token
    if name == NEW:
        return db.execute(_INSERT, _insert_values(item))
    if name == FOUND:
        return db.execute(_FIND, (record_id,)).fetchone()
    if name == PEEK:
        return db.execute(_PEEK, (record_id,)).fetchone()
    if name == RENEW:
        return db.execute(_UPDATE, ("running", record_id, item.fence, token))
    assert name == COMPLETE
    db.execute("BEGIN IMMEDIATE")
    db.execute(_UPDATE, ("completed", record_id, item.fence, token))
    db.execute(_ANSWER, (encode_headers(ANSWER.headers), ANSWER.body, record_id))
    return db.execute("COMMIT")


def _insert_values(item: Item) -> tuple[Any, ...]:
    new = item.claim
    return (new.id, new.token, new.fingerprint, new.tenant, new.operation, new.key)


def _open(path: Path) -> sqlite3.Connection:
    """As the store opens it, with the store's tables."""
    migrate(SqliteStore(path))
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    return db


def _remove(folder: Path) -> None:
    for path in folder.glob("crowd-*"):
        path.unlink()
