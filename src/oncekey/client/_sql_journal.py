"""A journal in the caller's own SQL database, written in the caller's own transactions.

The intent to pay exists if and only if the order does, because both are one commit; and it is
settled in the commit that records the outcome:

    with connection:                                                    # one transaction
        connection.execute("INSERT INTO orders …")
        key = journal.key("order-42/pay", within=connection)
    answer = api.post("/charges", json=…, key=key)                      # after its commit
    with connection:
        connection.execute("UPDATE orders SET paid = …")
        journal.settle("order-42/pay", within=connection, answer=answer)

Whatever dies in between is found by `unsettled` when it is back, with its key.
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
from oncekey.client._sql import DIALECTS, Asker, asker
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
"""Beside a snapshot that is older than what another transaction has committed meanwhile."""


def _id(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# What is known of servers is looked up beside, not joined: a locking read would lock it as well,
# and all who begin intents at one server would wait for each other's commits.
_FIND = (
    "SELECT j.name, j.intent_key, j.begun, j.origin, j.note, "
    "(SELECT s.retention_s FROM oncekey_journal_servers s WHERE s.id = j.server) AS told_s, "
    "(SELECT s.retention_s FROM oncekey_journal_servers s WHERE s.id = ?) AS said_s "
    "FROM oncekey_journal j"
)
_CHANGE = "UPDATE oncekey_journal_servers SET retention_s = ? WHERE id = ?"


class SqlJournal:
    """Intents in the tables `oncekey_journal` and `oncekey_journal_servers`.

    It holds no connection: each call is given the caller's, and is part of what happens there.
    """

    def __init__(
        self,
        *,
        retention_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        intents.must_last(retention_s)
        self._retention_s = retention_s
        self._clock = clock or SystemClock()

    @staticmethod
    def schema(dialect: str) -> list[str]:
        """The statements that make the tables, for whoever has migrations of their own. `dialect`
        is postgresql, mysql, mariadb or sqlite.
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
        # Names are compared by their digest: columns of text ignore case or trailing blanks on
        # some databases, and two intents would share a key.
        return [
            f"CREATE TABLE IF NOT EXISTS oncekey_journal (id CHAR(64) PRIMARY KEY, name {text} "
            f"NOT NULL, intent_key VARCHAR(255) NOT NULL, begun DOUBLE PRECISION NOT NULL, "
            f"server CHAR(64) NOT NULL, origin {text} NOT NULL, note {text} NOT NULL){after}",
            f"CREATE TABLE IF NOT EXISTS oncekey_journal_servers (id CHAR(64) PRIMARY KEY, "
            f"origin {text} NOT NULL, retention_s DOUBLE PRECISION NOT NULL){after}",
        ]

    def create(self, *, within: Any) -> None:
        """Make the tables where they are missing. On MySQL that commits what is open."""
        ask = asker(within)
        for statement in self._schema(ask.dialect):
            ask.do(statement)

    def key(
        self,
        name: str,
        *,
        within: Any,
        origin: str = "",
        note: str = "",
        retention_s: float | None = None,
    ) -> str:
        """The key of this intent: a new one, written in this transaction, or the one that it has.

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
        """As `key`, with all that is known of the intent."""
        intents.must_fit(name, note)
        intents.must_last(retention_s)
        ask, wall = asker(within), self._clock.wall()
        found = self._find(ask, name)
        if found is None:
            origin = intents.where(origin)
            fresh = uuid7(wall, random_token())
            probe("before_intent")
            _insert(
                ask,
                "oncekey_journal (id, name, intent_key, begun, server, origin, note)",
                (_id(name), name, fresh, wall, _id(origin), origin, note),
            )
            # Whoever lists intents without the application's settings counts on the same.
            if self._retention_s is not None:
                _set(ask, EVERYWHERE, self._retention_s)
            elif retention_s is not None:
                _assume(ask, origin, retention_s)
            probe("after_intent")
            found = self._find(ask, name, _LATEST.get(ask.dialect, ""))
        if found is None:
            raise StoreUnavailable(
                f"the intent {name!r} was begun by another transaction, which this one does not "
                "see: roll back and begin anew. Nothing was sent"
            )
        found.must_be_usable(wall)
        return found

    def settle(self, *names: str, within: Any, key: str | None = None, answer: Any = None) -> None:
        """These are done, if and only if this transaction commits. With a `key`, only if it is
        still that of the intent: somebody else may have settled it, and begun it anew. From an
        `answer` is learnt how long its server remembers keys.
        """
        intents.must_be_one_of(names, key)
        ask = asker(within)
        heard = None if answer is None else intents.advertised(answer, self._clock.wall())
        probe("before_settle")
        for name in names:
            if key is None:
                ask.do("DELETE FROM oncekey_journal WHERE id = ?", _id(name))
            else:
                both = "DELETE FROM oncekey_journal WHERE id = ? AND intent_key = ?"
                ask.do(both, _id(name), key)
        if heard is not None:
            _learn(ask, *heard)
        probe("after_settle")

    def find(self, name: str, *, within: Any) -> Intent | None:
        """The intent of this name, if it was begun and is not settled."""
        return self._find(asker(within), name)

    def unsettled(
        self, *, within: Any, limit: int = LIST_MAX, after: Intent | None = None
    ) -> list[Intent]:
        """What was begun and not settled, the oldest first: send it again with its key. `after` the
        last of those come the next.
        """
        # By the digest, too: to some databases two names are the same.
        order = "j.begun, j.name, j.id"
        last = () if after is None else (after.begun, after.name, _id(after.name))
        where = f" WHERE ({order}) > (?, ?, ?)" if last else ""
        oldest = f"{_FIND}{where} ORDER BY {order} LIMIT {int(limit)}"
        rows = asker(within).rows(oldest, _id(EVERYWHERE), *last)
        return [self._intent(row) for row in rows]

    def learn(self, origin: str, retention_s: float, *, within: Any) -> None:
        """What this server says of how long it remembers keys."""
        intents.must_last(retention_s)
        _learn(asker(within), intents.where(origin), retention_s)

    def _find(self, ask: Asker, name: str, how: str = "") -> Intent | None:
        rows = ask.rows(f"{_FIND} WHERE j.id = ?{how}", _id(EVERYWHERE), _id(name))
        return self._intent(rows[0]) if rows else None

    def _intent(self, row: tuple[Any, ...]) -> Intent:
        *written, told_s, said_s = row
        retention_s = intents.counted_on(told_s, self._retention_s, said_s)
        return intents.found(*written, retention_s=retention_s)


def _insert(ask: Asker, into: str, given: tuple[Any, ...]) -> None:
    """A new row; on a database that is not known here, one that is there already is an error."""
    insert, otherwise = _NEW.get(ask.dialect, ("INSERT INTO", ""))
    marks = ", ".join("?" * len(given))
    ask.do(f"{insert} {into} VALUES ({marks}){otherwise}", *given)


# ----------------------------------------------------------------------- what is known of servers


def _known(ask: Asker, origin: str) -> float | None:
    rows = ask.rows("SELECT retention_s FROM oncekey_journal_servers WHERE id = ?", _id(origin))
    return rows[0][0] if rows else None


def _add(ask: Asker, origin: str, retention_s: float) -> None:
    columns = "oncekey_journal_servers (id, origin, retention_s)"
    _insert(ask, columns, (_id(origin), origin, retention_s))


def _assume(ask: Asker, origin: str, retention_s: float) -> None:
    if _known(ask, origin) is None:
        _add(ask, origin, intents.assumed(retention_s))


def _set(ask: Asker, origin: str, retention_s: float) -> None:
    known_s = _known(ask, origin)
    if known_s is None:
        _add(ask, origin, retention_s)
    elif known_s != retention_s:
        ask.do(_CHANGE, retention_s, _id(origin))


def _learn(ask: Asker, origin: str, retention_s: float) -> None:
    known_s = _known(ask, origin)
    if known_s is None:
        _add(ask, origin, retention_s)
    elif intents.is_news(known_s, retention_s):
        shorten = f"{_CHANGE} AND (retention_s < 0 OR retention_s > ?)"  # by now, too
        ask.do(shorten, retention_s, _id(origin), retention_s)
