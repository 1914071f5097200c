"""The journal: intents and their keys in a file, so that keys survive a crash.

A key is on disk before `key` returns it, hence before the first byte of its request is sent. A
process that dies after that finds the intent again when it restarts, with the same key:

    key = journal.key("order-42/pay")        # the same, after a crash too
    api.post("/charges", json=..., key=key)
    ...                                      # record the outcome in your own data
    journal.settle("order-42/pay")           # last: before this, a restart would send it again

Only your code settles an intent: a response that arrived is not yet an outcome that you recorded.
Settling is written with the next intent or in the background, so it costs no wait. If a crash loses
it, you find the intent again, and a retry returns the stored response.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

from oncekey._system.chance import random_token
from oncekey._system.clock import Clock, SystemClock
from oncekey._system.probes import probe
from oncekey.client import _intent as intents
from oncekey.client._intent import LIST_MAX, Intent
from oncekey.client._retention import EVERYWHERE
from oncekey.client.keys import uuid7
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.stores.sqlite.connection import suspend_at_fork

BUSY_S_MAX = 5.0
FLUSH_AFTER_S = 1.0
"""How long other processes may still see a settled intent as unsettled."""

_log = logging.getLogger("oncekey.client")

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS oncekey_intents (name TEXT PRIMARY KEY, key TEXT NOT NULL, "
    "begun REAL NOT NULL, origin TEXT NOT NULL, note TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS oncekey_servers (origin TEXT PRIMARY KEY, "
    "retention_s REAL NOT NULL) WITHOUT ROWID",
)

_INSERT = "INSERT INTO oncekey_intents VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_ASSUME = "INSERT INTO oncekey_servers VALUES (?, ?) ON CONFLICT DO NOTHING"
_SET = (
    "INSERT INTO oncekey_servers VALUES (?, ?) ON CONFLICT (origin) "
    "DO UPDATE SET retention_s = excluded.retention_s"
)
_LEARN = f"{_SET} WHERE retention_s < 0 OR excluded.retention_s < retention_s"
_KNOWN_RETENTIONS = "SELECT origin, retention_s FROM oncekey_servers"
_FIND = (
    "SELECT name, key, begun, origin, note, "
    "(SELECT s.retention_s FROM oncekey_servers s WHERE s.origin = i.origin), "
    "(SELECT s.retention_s FROM oncekey_servers s WHERE s.origin = ?) "
    "FROM oncekey_intents i"
)


class Journal:
    """A journal in an SQLite file, for any number of threads and processes."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        retention_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`retention_s`: how long servers remember keys, unless they state it themselves; the
        default is the profile's, else 24 hours.
        """
        intents.must_be_retention(retention_s)
        path_given: object = path  # an unset environment variable is None
        if not isinstance(path_given, str | os.PathLike) or "://" in os.fspath(path_given):
            # Not shown: it may hold a password.
            raise Misuse(
                "a journal is a file, so give its path: Journal('intents.db'). To store intents in "
                "your own database, use SqlJournal()"
            )
        self.path = Path(path).absolute()
        self._retention_s = retention_s
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._settled: dict[str, str] = {}
        """Names and keys of settled intents that are not written yet."""
        self._flush_timer: threading.Timer | None = None
        """Writes them, unless a new intent does so first."""
        self._known_retentions: dict[str, float] = {}
        """A cache that avoids writing known retentions again; the file is authoritative."""
        self._db: sqlite3.Connection | None = None
        suspend_at_fork(self)

    def key(
        self, name: str, *, origin: str = "", note: str = "", retention_s: float | None = None
    ) -> str:
        """Return the key of this intent: its existing one, or a new one, durably written.

        `origin` is its server, and `retention_s` how long that remembers keys, used until the
        server states it. Raises `Unknown` if the server has forgotten the key by now, and
        `StoreUnavailable` if the key cannot be written: then send nothing.
        """
        return self.begin(name, origin=origin, note=note, retention_s=retention_s).key

    def begin(
        self, name: str, *, origin: str = "", note: str = "", retention_s: float | None = None
    ) -> Intent:
        """Like `key`, but return the whole intent."""
        intents.must_be_valid(name, note)
        intents.must_be_retention(retention_s)
        origin = intents.normalize_origin(origin)
        with self._database(". Nothing was sent") as db:
            found = self._find(db, name)
            if found is None or self._settled.get(name) == found.key:
                found = self._begin(db, name, origin, note, retention_s)
        found.must_be_usable(self._clock.wall())
        return found

    def settle(self, *names: str, key: str | None = None) -> None:
        """Mark these intents as done: the next `key` of this name is a new one. With a `key`, only
        if the intent still has it: another process may have settled and begun it again.

        Written with the next new intent or soon in the background; at once by `flush` or `close`,
        and when the process exits.
        """
        intents.must_match_key(names, key)
        with self._database() as db:
            for name in names:
                found = self._find(db, name)
                if found is not None and key in (None, found.key):
                    self._settled[name] = found.key
            self._flush_soon()

    @contextlib.contextmanager
    def intent(self, name: str, *, origin: str = "", note: str = "") -> Iterator[str]:
        """Yield the key of an intent, and settle it if the block ends without an exception. Raise
        for a 503, `response.raise_for_status()`, or the next key is a new one.
        """
        key = self.key(name, origin=origin, note=note)
        yield key
        self.settle(name, key=key)

    def find(self, name: str) -> Intent | None:
        """Return the unsettled intent of this name, or None."""
        with self._database() as db:
            found = self._find(db, name)
            settled = self._settled.get(name)
        return None if found is None or found.key == settled else found

    def unsettled(self, limit: int = LIST_MAX, *, after: Intent | None = None) -> list[Intent]:
        """List unsettled intents, oldest first: send each again with its key. Pass the last one as
        `after` to get the next page.
        """
        self.flush()
        last = (-math.inf, "") if after is None else (after.begun, after.name)
        with self._database() as db:
            oldest = f"{_FIND} WHERE (begun, name) > (?, ?) ORDER BY begun, name LIMIT ?"
            rows = db.execute(oldest, (EVERYWHERE, *last, limit)).fetchall()
        return [self._intent(row) for row in rows]

    def knows(self, origin: str, retention_s: float) -> bool:
        """Whether this retention is already known. Does not read the file."""
        return not intents.is_news(
            self._known_retentions.get(intents.normalize_origin(origin)), retention_s
        )

    def learn(self, origin: str, retention_s: float) -> None:
        """Record how long this server says it remembers keys. Written only if it is new."""
        intents.must_be_retention(retention_s)
        with self._database() as db:
            if not self.knows(origin, retention_s):
                self._write_retention(db, _LEARN, intents.normalize_origin(origin), retention_s)

    def flush(self) -> None:
        """Write settled intents to the file."""
        with self._lock:
            if self._settled:
                probe("before_settle")
                with self._database() as db:
                    with _transaction(db):
                        self._remove_settled(db)
                    probe("after_settle")
                    self._settled.clear()

    def close(self) -> None:
        with self._lock:
            try:
                self.flush()
            finally:
                if self._flush_timer is not None:
                    self._flush_timer.cancel()
                    self._flush_timer = None
                self._close_db()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------- the file

    def _begin(
        self,
        db: sqlite3.Connection,
        name: str,
        origin: str,
        note: str,
        retention_s: float | None,
    ) -> Intent:
        wall = self._clock.wall()
        fresh = name, uuid7(wall, random_token()), wall, origin, note
        probe("before_intent")
        with _transaction(db):
            self._remove_settled(db)
            db.execute(_INSERT, fresh)
            self._write_assumption(db, origin, retention_s)
            found = self._find(db, name)  # another process may have begun it first
        probe("after_intent")
        self._settled.clear()
        if found is None:
            raise StoreUnavailable(f"the journal {self.path} does not keep what is written to it")
        return found

    def _find(self, db: sqlite3.Connection, name: str) -> Intent | None:
        row = db.execute(f"{_FIND} WHERE name = ?", (EVERYWHERE, name)).fetchone()
        return None if row is None else self._intent(row)

    def _intent(self, row: tuple[Any, ...]) -> Intent:
        *written, server_s, recorded_s = row
        retention_s = intents.usable_retention(server_s, self._retention_s, recorded_s)
        return intents.intent_from_row(*written, retention_s=retention_s)

    def _write_assumption(
        self, db: sqlite3.Connection, origin: str, retention_s: float | None
    ) -> None:
        """Record the configured retention for readers without the application's settings."""
        if self._retention_s is not None:
            if self._known_retentions.get(EVERYWHERE) != self._retention_s:
                self._write_retention(db, _SET, EVERYWHERE, self._retention_s)
        elif retention_s and origin not in self._known_retentions:
            self._write_retention(db, _ASSUME, origin, intents.as_assumption(retention_s))

    def _write_retention(
        self, db: sqlite3.Connection, how: str, origin: str, retention_s: float
    ) -> None:
        db.execute(how, (origin, retention_s))
        self._known_retentions.update(db.execute(_KNOWN_RETENTIONS))  # others learn too

    def _remove_settled(self, db: sqlite3.Connection) -> None:
        db.executemany(
            "DELETE FROM oncekey_intents WHERE name = ? AND key = ?", self._settled.items()
        )

    def _flush_soon(self) -> None:
        if self._settled and self._flush_timer is None:
            _journals_to_flush.add(self)
            self._flush_timer = threading.Timer(FLUSH_AFTER_S, self._flush_later)
            self._flush_timer.daemon = True
            self._flush_timer.start()

    def _flush_later(self) -> None:
        """Write what no new intent has written meanwhile."""
        with self._lock:
            self._flush_timer = None
            if not self._try_flush():
                self._flush_soon()

    def _try_flush(self) -> bool:
        """`flush`, but log a failure and return False."""
        try:
            self.flush()
        except StoreUnavailable as error:
            _log.warning("settled intents are not written yet: %s", error)
            return False
        return True

    @contextlib.contextmanager
    def _database(self, otherwise: str = "") -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._open_db()
            except sqlite3.Error as error:
                self._close_db()  # its state is unknown
                raise StoreUnavailable(
                    f"the journal {self.path} cannot be used: {error}{otherwise}"
                ) from error

    def _open_db(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = _open_file(self.path)
            self._known_retentions = dict(self._db.execute(_KNOWN_RETENTIONS))
        return self._db

    def _close_db(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def before_fork(self) -> None:
        self._lock.acquire()
        self._close_db()

    def after_fork(self) -> None:
        if self._flush_timer is not None and not self._flush_timer.is_alive():
            self._flush_timer = None  # a child process has none of its parent's threads
        self._lock.release()


_journals_to_flush: WeakSet[Journal] = WeakSet()
"""Journals that may hold unwritten settlements."""


@atexit.register
def _flush_at_exit() -> None:
    """Flush all journals at exit, even if they were never closed."""
    for journal in list(_journals_to_flush):
        journal._try_flush()


def _open_file(path: Path) -> sqlite3.Connection:
    with contextlib.suppress(OSError):  # SQLite's own error is clearer
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    db = sqlite3.connect(path, timeout=BUSY_S_MAX, isolation_level=None, check_same_thread=False)
    # Truncating and syncing the rollback journal makes each commit durable, on every SQLite
    # version and with any number of processes.
    db.execute("PRAGMA journal_mode = TRUNCATE").fetchone()
    db.execute("PRAGMA synchronous = FULL")
    for statement in _SCHEMA:
        db.execute(statement)
    return db


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # SQLite may have ended it already
            db.execute("ROLLBACK")
        raise
