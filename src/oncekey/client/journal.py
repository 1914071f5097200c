"""The journal: intents and their keys in a file, so that a key survives whoever made it.

A key is on disk before it is given out, hence before the first byte of its request leaves. A
process that dies anywhere after that finds the intent again when it is back, with the same key:

    key = journal.key("order-42/pay")        # the same, after a crash too
    api.post("/charges", json=..., key=key)
    ...                                      # record the outcome where it belongs
    journal.settle("order-42/pay")           # last: before this, a restart would ask again

An intent is settled by whoever began it and by nobody else: an answer that arrived is not yet an
outcome that was recorded. Settling is written with the next intent, so it costs no write of its
own; if a crash loses it, the intent is found again, and asking again brings the kept answer.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from oncekey import guard
from oncekey.client import intent as intents
from oncekey.client import keys
from oncekey.client.intent import LIST_MAX, Intent
from oncekey.clock import Clock, SystemClock
from oncekey.errors import StoreUnavailable
from oncekey.probes import probe

BUSY_S_MAX = 5.0

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS oncekey_intents (name TEXT PRIMARY KEY, key TEXT NOT NULL, "
    "begun REAL NOT NULL, origin TEXT NOT NULL, note TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS oncekey_servers (origin TEXT PRIMARY KEY, "
    "retention_s REAL NOT NULL) WITHOUT ROWID",
)


class Journal:
    """A journal in an SQLite file; for all threads, and for several processes."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        retention_s: float | None = None,
        keys_as: str = "uuid7",
        clock: Clock | None = None,
        token: Callable[[], bytes] = guard.random_token,
    ) -> None:
        """`retention_s`: how long servers remember keys, as far as they do not say so themselves;
        without it, what is known of the profile, and else 24 hours.
        """
        intents.must_last(retention_s)
        self.path = Path(path).absolute()
        self._retention_s = retention_s
        self._make_key = keys.kind(keys_as)
        self._clock = clock or SystemClock()
        self._token = token
        self._alone = threading.RLock()
        self._settled: dict[str, str] = {}
        """Names and keys of what is settled, but not written yet."""
        self._learnt: dict[str, float] = {}
        self._db: sqlite3.Connection | None = None
        self._opened_by = 0

    def key(
        self, name: str, *, origin: str = "", note: str = "", retention_s: float | None = None
    ) -> str:
        """The key of this intent: a new one, durably written, or the one that it has.

        `origin` is where it goes, and `retention_s` how long keys can be counted on there, for the
        case that nothing is known about it yet. Raises `Unknown` if the server has forgotten the
        key by now, `StoreUnavailable` if it cannot be written down: then nothing may be sent.
        """
        intents.must_fit(name, note)
        intents.must_last(retention_s)
        origin = intents.where(origin)
        with self._asking() as db:
            found = self._find(db, name)
            if found is None or self._settled.get(name) == found.key:
                found = self._begin(db, name, origin, note, retention_s)
        return found.usable_key(self._clock.wall())

    def settle(self, *names: str) -> None:
        """These are done: the next `key` of such a name is a new one.

        Written with the next new intent, or by `flush` or `close`.
        """
        with self._asking() as db:
            for name in names:
                if (found := self._find(db, name)) is not None:
                    self._settled[name] = found.key  # another process may begin it anew

    @contextlib.contextmanager
    def intent(self, name: str, *, origin: str = "", note: str = "") -> Iterator[str]:
        """The key of an intent that is settled if the block ends without an error."""
        yield self.key(name, origin=origin, note=note)
        self.settle(name)

    def unsettled(self, limit: int = LIST_MAX) -> list[Intent]:
        """What was begun and not settled, the oldest first: send it again with its key."""
        self.flush()
        with self._asking() as db:
            rows = db.execute(f"{_SELECT} ORDER BY begun, name LIMIT ?", (limit,)).fetchall()
        return [self._intent(row) for row in rows]

    def knows(self, origin: str, retention_s: float) -> bool:
        """Whether that would be no news. Looks into no file."""
        known = self._learnt.get(intents.where(origin))
        return known is not None and intents.is_about(known, retention_s)

    def learn(self, origin: str, retention_s: float) -> None:
        """What this server says of how long it remembers keys. Written only if that is new."""
        intents.must_last(retention_s)
        with self._asking() as db:
            if not self.knows(origin, retention_s):
                with _committing(db):
                    self._note_retention(db, intents.where(origin), retention_s)

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
            self.flush()
            if self._db is not None:
                self._db.close()
                self._db = None

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
        fresh = name, self._make_key(wall, self._token()), wall, origin, note
        probe("before_intent")
        with _committing(db):
            self._remove_settled(db)
            db.execute(_INSERT, fresh)
            if retention_s and self._retention_s is None and origin not in self._learnt:
                self._note_retention(db, origin, retention_s)
            found = self._find(db, name)  # another process may have been first
        probe("after_intent")
        self._settled.clear()
        if found is None:
            raise StoreUnavailable(f"the journal {self.path} does not keep what is written to it")
        return found

    def _find(self, db: sqlite3.Connection, name: str) -> Intent | None:
        row = db.execute(f"{_SELECT} WHERE name = ?", (name,)).fetchone()
        return None if row is None else self._intent(row)

    def _intent(self, row: tuple[str, str, float, str, str]) -> Intent:
        retention_s = self._learnt.get(row[3]) or self._retention_s or intents.RETENTION_S
        return intents.found(*row, retention_s=retention_s)

    def _note_retention(self, db: sqlite3.Connection, origin: str, retention_s: float) -> None:
        db.execute(_LEARN, (origin, retention_s))
        self._learnt[origin] = retention_s

    def _remove_settled(self, db: sqlite3.Connection) -> None:
        db.executemany(
            "DELETE FROM oncekey_intents WHERE name = ? AND key = ?", self._settled.items()
        )

    @contextlib.contextmanager
    def _asking(self) -> Iterator[sqlite3.Connection]:
        with self._alone:
            try:
                yield self._opened()
            except sqlite3.Error as error:
                raise StoreUnavailable(
                    f"the journal {self.path} cannot be used: {error}. Nothing was sent"
                ) from error

    def _opened(self) -> sqlite3.Connection:
        if self._db is None or self._opened_by != os.getpid():  # a file must not cross a fork
            self._db = _open(self.path)
            self._opened_by = os.getpid()
            self._learnt = dict(self._db.execute("SELECT origin, retention_s FROM oncekey_servers"))
        return self._db


_INSERT = "INSERT INTO oncekey_intents VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_LEARN = (
    "INSERT INTO oncekey_servers VALUES (?, ?) ON CONFLICT (origin) "
    "DO UPDATE SET retention_s = excluded.retention_s"
)
_SELECT = "SELECT name, key, begun, origin, note FROM oncekey_intents"


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
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
