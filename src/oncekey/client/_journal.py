"""The journal: intents and their keys in a file, so that a key survives whoever made it.

A key is on disk before it is given out, hence before the first byte of its request leaves. A
process that dies anywhere after that finds the intent again when it is back, with the same key:

    key = journal.key("order-42/pay")        # the same, after a crash too
    api.post("/charges", json=..., key=key)
    ...                                      # record the outcome where it belongs
    journal.settle("order-42/pay")           # last: before this, a restart would ask again

An intent is settled by whoever began it and by nobody else: an answer that arrived is not yet an
outcome that was recorded. Settling is written with the next intent, or in the background, so nobody
waits for it; if a crash loses it, the intent is found again, and asking again brings the kept
answer.
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
UNWRITTEN_S_MAX = 1.0
"""For so long other processes may take what is settled here for unsettled."""

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
_LEARNT = "SELECT origin, retention_s FROM oncekey_servers"
_FIND = (
    "SELECT name, key, begun, origin, note, "
    "(SELECT s.retention_s FROM oncekey_servers s WHERE s.origin = i.origin), "
    "(SELECT s.retention_s FROM oncekey_servers s WHERE s.origin = ?) "
    "FROM oncekey_intents i"
)


class Journal:
    """A journal in an SQLite file; for all threads, and for several processes."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        retention_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`retention_s`: how long servers remember keys, as far as they do not say so themselves;
        without it, what is known of the profile, and else 24 hours.
        """
        intents.must_last(retention_s)
        given: object = path  # an environment variable that nobody set is None
        if not isinstance(given, str | os.PathLike) or "://" in os.fspath(given):
            # Not shown: it may hold a password.
            raise Misuse(
                "a journal is a file, and named by its path: Journal('intents.db'). In a database "
                "of yours, a SqlJournal() keeps intents"
            )
        self.path = Path(path).absolute()
        self._retention_s = retention_s
        self._clock = clock or SystemClock()
        self._alone = threading.RLock()
        self._settled: dict[str, str] = {}
        """Names and keys of what is settled, but not written yet."""
        self._writing: threading.Timer | None = None
        """Writes them, if no new intent does so before."""
        self._learnt: dict[str, float] = {}
        """So that what is known is not written again. What counts is in the file."""
        self._db: sqlite3.Connection | None = None
        suspend_at_fork(self)

    def key(
        self, name: str, *, origin: str = "", note: str = "", retention_s: float | None = None
    ) -> str:
        """The key of this intent: a new one, durably written, or the one that it has.

        `origin` is where it goes, and `retention_s` how long keys can be counted on there, for the
        case that nothing is known about it yet. Raises `Unknown` if the server has forgotten the
        key by now, `StoreUnavailable` if it cannot be written down: then nothing may be sent.
        """
        return self.begin(name, origin=origin, note=note, retention_s=retention_s).key

    def begin(
        self, name: str, *, origin: str = "", note: str = "", retention_s: float | None = None
    ) -> Intent:
        """As `key`, with all that is known of the intent."""
        intents.must_fit(name, note)
        intents.must_last(retention_s)
        origin = intents.where(origin)
        with self._asking(". Nothing was sent") as db:
            found = self._find(db, name)
            if found is None or self._settled.get(name) == found.key:
                found = self._begin(db, name, origin, note, retention_s)
        found.must_be_usable(self._clock.wall())
        return found

    def settle(self, *names: str, key: str | None = None) -> None:
        """These are done: the next `key` of such a name is a new one. With a `key`, only if it is
        still that of the intent: somebody else may have settled it, and begun it anew.

        Written with the next new intent, or soon in the background; by `flush` or `close` at once,
        and when the process ends.
        """
        intents.must_be_one_of(names, key)
        with self._asking() as db:
            for name in names:
                found = self._find(db, name)
                if found is not None and key in (None, found.key):
                    self._settled[name] = found.key
            self._write_soon()

    @contextlib.contextmanager
    def intent(self, name: str, *, origin: str = "", note: str = "") -> Iterator[str]:
        """The key of an intent that is settled if the block ends without an error. A 503 is none
        unless you raise it: `response.raise_for_status()`, or the next key is a new one.
        """
        key = self.key(name, origin=origin, note=note)
        yield key
        self.settle(name, key=key)

    def find(self, name: str) -> Intent | None:
        """The intent of this name, if it was begun and is not settled."""
        with self._asking() as db:
            found = self._find(db, name)
            settled = self._settled.get(name)
        return None if found is None or found.key == settled else found

    def unsettled(self, limit: int = LIST_MAX, *, after: Intent | None = None) -> list[Intent]:
        """What was begun and not settled, the oldest first: send it again with its key. `after` the
        last of those come the next.
        """
        self.flush()
        last = (-math.inf, "") if after is None else (after.begun, after.name)
        with self._asking() as db:
            oldest = f"{_FIND} WHERE (begun, name) > (?, ?) ORDER BY begun, name LIMIT ?"
            rows = db.execute(oldest, (EVERYWHERE, *last, limit)).fetchall()
        return [self._intent(row) for row in rows]

    def knows(self, origin: str, retention_s: float) -> bool:
        """Whether that would be no news. Looks into no file."""
        return not intents.is_news(self._learnt.get(intents.where(origin)), retention_s)

    def learn(self, origin: str, retention_s: float) -> None:
        """What this server says of how long it remembers keys. Written only if that is news."""
        intents.must_last(retention_s)
        with self._asking() as db:
            if not self.knows(origin, retention_s):
                self._note(db, _LEARN, intents.where(origin), retention_s)

    def flush(self) -> None:
        """Write down what was settled."""
        with self._alone:
            if self._settled:
                probe("before_settle")
                with self._asking() as db:
                    with _committing(db):
                        self._remove_settled(db)
                    probe("after_settle")
                    self._settled.clear()

    def close(self) -> None:
        with self._alone:
            try:
                self.flush()
            finally:
                if self._writing is not None:
                    self._writing.cancel()
                    self._writing = None
                self._shut()

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
        with _committing(db):
            self._remove_settled(db)
            db.execute(_INSERT, fresh)
            self._note_what_is_relied_on(db, origin, retention_s)
            found = self._find(db, name)  # another process may have been first
        probe("after_intent")
        self._settled.clear()
        if found is None:
            raise StoreUnavailable(f"the journal {self.path} does not keep what is written to it")
        return found

    def _find(self, db: sqlite3.Connection, name: str) -> Intent | None:
        row = db.execute(f"{_FIND} WHERE name = ?", (EVERYWHERE, name)).fetchone()
        return None if row is None else self._intent(row)

    def _intent(self, row: tuple[Any, ...]) -> Intent:
        *written, told_s, said_s = row
        retention_s = intents.counted_on(told_s, self._retention_s, said_s)
        return intents.found(*written, retention_s=retention_s)

    def _note_what_is_relied_on(
        self, db: sqlite3.Connection, origin: str, retention_s: float | None
    ) -> None:
        """Whoever opens the file without the application's settings counts on the same."""
        if self._retention_s is not None:
            if self._learnt.get(EVERYWHERE) != self._retention_s:
                self._note(db, _SET, EVERYWHERE, self._retention_s)
        elif retention_s and origin not in self._learnt:
            self._note(db, _ASSUME, origin, intents.assumed(retention_s))

    def _note(self, db: sqlite3.Connection, how: str, origin: str, retention_s: float) -> None:
        db.execute(how, (origin, retention_s))
        self._learnt.update(db.execute(_LEARNT))  # others learn too

    def _remove_settled(self, db: sqlite3.Connection) -> None:
        db.executemany(
            "DELETE FROM oncekey_intents WHERE name = ? AND key = ?", self._settled.items()
        )

    def _write_soon(self) -> None:
        if self._settled and self._writing is None:
            _unwritten.add(self)
            self._writing = threading.Timer(UNWRITTEN_S_MAX, self._write_now)
            self._writing.daemon = True
            self._writing.start()

    def _write_now(self) -> None:
        """What no new intent has written meanwhile."""
        with self._alone:
            self._writing = None
            if not self._written():
                self._write_soon()

    def _written(self) -> bool:
        """As `flush`; False where that is not possible now, which is logged."""
        try:
            self.flush()
        except StoreUnavailable as error:
            _log.warning("what was settled is not written yet: %s", error)
            return False
        return True

    @contextlib.contextmanager
    def _asking(self, otherwise: str = "") -> Iterator[sqlite3.Connection]:
        with self._alone:
            try:
                yield self._opened()
            except sqlite3.Error as error:
                self._shut()  # whatever state it is in goes with it
                raise StoreUnavailable(
                    f"the journal {self.path} cannot be used: {error}{otherwise}"
                ) from error

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = _open(self.path)
            self._learnt = dict(self._db.execute(_LEARNT))
        return self._db

    def _shut(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def before_fork(self) -> None:
        self._alone.acquire()
        self._shut()

    def after_fork(self) -> None:
        if self._writing is not None and not self._writing.is_alive():
            self._writing = None  # a child has none of its parent's threads
        self._alone.release()


_unwritten: WeakSet[Journal] = WeakSet()
"""Those that may hold what is settled, and not written."""


@atexit.register
def _write_down() -> None:
    """A process that ends in order forgets nothing, though nobody closes its journals."""
    for journal in list(_unwritten):
        journal._written()


def _open(path: Path) -> sqlite3.Connection:
    with contextlib.suppress(OSError):  # SQLite says it better
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    db = sqlite3.connect(path, timeout=BUSY_S_MAX, isolation_level=None, check_same_thread=False)
    # A rollback journal that is emptied, and synced so: one commit, durable, on every release of
    # SQLite, however many processes share the file.
    db.execute("PRAGMA journal_mode = TRUNCATE").fetchone()
    db.execute("PRAGMA synchronous = FULL")
    for statement in _SCHEMA:
        db.execute(statement)
    return db


@contextlib.contextmanager
def _committing(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # SQLite ends some by itself
            db.execute("ROLLBACK")
        raise
