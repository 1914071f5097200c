"""A journal in your own SQL database, written in your own transactions.

The intent to pay exists if and only if the order does, because both are in one commit; and it is
settled in the commit that records the outcome:

    with connection:                                                    # one transaction
        connection.execute("INSERT INTO orders …")
        key = journal.key("order-42/pay", within=connection)
    answer = api.post("/charges", json=…, key=key)                      # after its commit
    with connection:
        connection.execute("UPDATE orders SET paid = …")
        journal.settle("order-42/pay", within=connection, answer=answer)

If the process dies in between, `unsettled` finds the intent and its key after a restart.
"""

from __future__ import annotations

import hashlib
from typing import Any

from oncekey._system.chance import random_token
from oncekey._system.clock import Clock, SystemClock
from oncekey._system.probes import probe
from oncekey.client import _intent as intents
from oncekey.client._intent import LIST_MAX, Intent
from oncekey.client._retention import EVERYWHERE
from oncekey.client._sql import DIALECTS, SqlConnection, as_sql_connection
from oncekey.client.keys import uuid7
from oncekey.errors import Misuse, StoreUnavailable

_LONG_TEXT = {"mysql": "MEDIUMTEXT"}
_AFTER = {"mysql": " ENGINE = InnoDB DEFAULT CHARSET = utf8mb4"}
_NEW = {
    "mysql": ("INSERT IGNORE INTO", ""),
    "postgresql": ("INSERT INTO", " ON CONFLICT DO NOTHING"),
    "sqlite": ("INSERT INTO", " ON CONFLICT DO NOTHING"),
}
_LATEST = {"mysql": " FOR UPDATE"}
"""Reads the latest commit, although the transaction's snapshot may be older."""


def _id(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# Subqueries, not joins: a locking read would also lock the server's row, and all transactions that
# begin intents for one server would wait for each other.
_FIND = (
    "SELECT j.name, j.intent_key, j.begun, j.origin, j.note, "
    "(SELECT s.retention_s FROM oncekey_journal_servers s WHERE s.id = j.server) AS told_s, "
    "(SELECT s.retention_s FROM oncekey_journal_servers s WHERE s.id = ?) AS said_s "
    "FROM oncekey_journal j"
)
_UPDATE_SERVER = "UPDATE oncekey_journal_servers SET retention_s = ? WHERE id = ?"


class SqlJournal:
    """Intents in the tables `oncekey_journal` and `oncekey_journal_servers`.

    It holds no connection: each call takes yours and runs in your transaction.
    """

    def __init__(
        self,
        *,
        retention_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        intents.must_be_retention(retention_s)
        self._retention_s = retention_s
        self._clock = clock or SystemClock()

    @staticmethod
    def schema(dialect: str) -> list[str]:
        """Return the statements that create the tables, for your own migrations. `dialect` is
        postgresql, mysql, mariadb or sqlite.
        """
        known = DIALECTS.get(dialect)
        if known is None:
            raise Misuse(
                f"no schema for {dialect!r}: choose from postgresql, mysql, mariadb, sqlite"
            )
        return SqlJournal._schema(known)

    @staticmethod
    def _schema(dialect: str) -> list[str]:
        text, after = _LONG_TEXT.get(dialect, "TEXT"), _AFTER.get(dialect, "")
        # Names are compared by digest: on some databases text columns ignore case or trailing
        # blanks, so two intents would share a key.
        return [
            f"CREATE TABLE IF NOT EXISTS oncekey_journal (id CHAR(64) PRIMARY KEY, name {text} "
            f"NOT NULL, intent_key VARCHAR(255) NOT NULL, begun DOUBLE PRECISION NOT NULL, "
            f"server CHAR(64) NOT NULL, origin {text} NOT NULL, note {text} NOT NULL){after}",
            f"CREATE TABLE IF NOT EXISTS oncekey_journal_servers (id CHAR(64) PRIMARY KEY, "
            f"origin {text} NOT NULL, retention_s DOUBLE PRECISION NOT NULL){after}",
        ]

    def create(self, *, within: Any) -> None:
        """Create missing tables. On MySQL this commits the open transaction."""
        db = as_sql_connection(within)
        for statement in self._schema(db.dialect):
            db.execute(statement)

    def key(
        self,
        name: str,
        *,
        within: Any,
        origin: str = "",
        note: str = "",
        retention_s: float | None = None,
    ) -> str:
        """Return the key of this intent: its existing one, or a new one written in this
        transaction.

        Commit before you send it. Raises `Unknown` if the server has forgotten the key by now.
        """
        begun = self.begin(name, within=within, origin=origin, note=note, retention_s=retention_s)
        return begun.key

    def begin(
        self,
        name: str,
        *,
        within: Any,
        origin: str = "",
        note: str = "",
        retention_s: float | None = None,
    ) -> Intent:
        """Like `key`, but return the whole intent."""
        intents.must_be_valid(name, note)
        intents.must_be_retention(retention_s)
        db, wall = as_sql_connection(within), self._clock.wall()
        found = self._find(db, name)
        if found is None:
            origin = intents.normalize_origin(origin)
            fresh = uuid7(wall, random_token())
            probe("before_intent")
            _insert(
                db,
                "oncekey_journal (id, name, intent_key, begun, server, origin, note)",
                (_id(name), name, fresh, wall, _id(origin), origin, note),
            )
            # Record it for readers without the application's settings.
            if self._retention_s is not None:
                _set(db, EVERYWHERE, self._retention_s)
            elif retention_s is not None:
                _assume(db, origin, retention_s)
            probe("after_intent")
            found = self._find(db, name, _LATEST.get(db.dialect, ""))
        if found is None:
            raise StoreUnavailable(
                f"the intent {name!r} was begun by another transaction that this one cannot see: "
                "roll back and try again. Nothing was sent"
            )
        found.must_be_usable(wall)
        return found

    def settle(self, *names: str, within: Any, key: str | None = None, answer: Any = None) -> None:
        """Mark these intents as done if this transaction commits. With a `key`, only if the intent
        still has it: another process may have settled and begun it again. From an `answer` (a
        response) it learns how long the server remembers keys.
        """
        intents.must_match_key(names, key)
        db = as_sql_connection(within)
        retention = None if answer is None else intents.stated_retention(answer, self._clock.wall())
        probe("before_settle")
        for name in names:
            if key is None:
                db.execute("DELETE FROM oncekey_journal WHERE id = ?", _id(name))
            else:
                both = "DELETE FROM oncekey_journal WHERE id = ? AND intent_key = ?"
                db.execute(both, _id(name), key)
        if retention is not None:
            _learn(db, *retention)
        probe("after_settle")

    def find(self, name: str, *, within: Any) -> Intent | None:
        """Return the unsettled intent of this name, or None."""
        return self._find(as_sql_connection(within), name)

    def unsettled(
        self, *, within: Any, limit: int = LIST_MAX, after: Intent | None = None
    ) -> list[Intent]:
        """List unsettled intents, oldest first: send each again with its key. Pass the last one as
        `after` to get the next page.
        """
        # Also by the digest: to some databases two different names are equal.
        order = "j.begun, j.name, j.id"
        last = () if after is None else (after.begun, after.name, _id(after.name))
        where = f" WHERE ({order}) > (?, ?, ?)" if last else ""
        oldest = f"{_FIND}{where} ORDER BY {order} LIMIT {int(limit)}"
        rows = as_sql_connection(within).query(oldest, _id(EVERYWHERE), *last)
        return [self._intent(row) for row in rows]

    def learn(self, origin: str, retention_s: float, *, within: Any) -> None:
        """Record how long this server says it remembers keys."""
        intents.must_be_retention(retention_s)
        _learn(as_sql_connection(within), intents.normalize_origin(origin), retention_s)

    def _find(self, db: SqlConnection, name: str, how: str = "") -> Intent | None:
        rows = db.query(f"{_FIND} WHERE j.id = ?{how}", _id(EVERYWHERE), _id(name))
        return self._intent(rows[0]) if rows else None

    def _intent(self, row: tuple[Any, ...]) -> Intent:
        *written, server_s, recorded_s = row
        retention_s = intents.usable_retention(server_s, self._retention_s, recorded_s)
        return intents.intent_from_row(*written, retention_s=retention_s)


def _insert(db: SqlConnection, into: str, values: tuple[Any, ...]) -> None:
    """Insert a row if it is new; in an unknown dialect an existing row is an error."""
    insert, otherwise = _NEW.get(db.dialect, ("INSERT INTO", ""))
    marks = ", ".join("?" * len(values))
    db.execute(f"{insert} {into} VALUES ({marks}){otherwise}", *values)


# ----------------------------------------------------------------------- retentions of servers


def _known_retention(db: SqlConnection, origin: str) -> float | None:
    rows = db.query("SELECT retention_s FROM oncekey_journal_servers WHERE id = ?", _id(origin))
    return rows[0][0] if rows else None


def _add(db: SqlConnection, origin: str, retention_s: float) -> None:
    columns = "oncekey_journal_servers (id, origin, retention_s)"
    _insert(db, columns, (_id(origin), origin, retention_s))


def _assume(db: SqlConnection, origin: str, retention_s: float) -> None:
    if _known_retention(db, origin) is None:
        _add(db, origin, intents.as_assumption(retention_s))


def _set(db: SqlConnection, origin: str, retention_s: float) -> None:
    known_s = _known_retention(db, origin)
    if known_s is None:
        _add(db, origin, retention_s)
    elif known_s != retention_s:
        db.execute(_UPDATE_SERVER, retention_s, _id(origin))


def _learn(db: SqlConnection, origin: str, retention_s: float) -> None:
    known_s = _known_retention(db, origin)
    if known_s is None:
        _add(db, origin, retention_s)
    elif intents.is_news(known_s, retention_s):
        shorten = f"{_UPDATE_SERVER} AND (retention_s < 0 OR retention_s > ?)"  # by now, too
        db.execute(shorten, retention_s, _id(origin), retention_s)
