"""Asking on a connection of the caller's to MySQL or MariaDB, in the caller's transaction.

Statements go one by one, for such a connection need not take several at once; nothing is repeated
after a deadlock, which has rolled back the caller's rows too. The clock is read so that the
session's time zone does not matter. A transaction of the caller's is mostly REPEATABLE READ: what
decides is read under a lock, which shows the newest there too. MariaDB can refuse that instead, and
does so since 11.6 unless told otherwise: for our statements, and no others, it is told. A heartbeat
may renew the record at any time, and the caller's rows would never be committed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from oncekey.core.op import Op
from oncekey.errors import Misuse
from oncekey.stores.mysql_text import CLOCK, CLOCK_OF_ANY_SESSION, Question, Reply

IN_TRANSACTION = 1
"""The bit of a server's status that says so."""
IDENTITY = Question(
    ("SELECT DATABASE(), @@hostname, @@port, (SELECT MIN(applied) FROM oncekey_schema)",)
)


def identity() -> Op[Any]:
    """What tells the store's database from any other."""
    [reply] = yield IDENTITY
    [row] = reply.rows
    return tuple(row)


def begun(connection: Any) -> bool:
    """Both drivers begin by themselves before the next statement, unless in autocommit."""
    return bool(connection.server_status & IN_TRANSACTION) or not connection.get_autocommit()


_NEWEST_TOO = "SET STATEMENT innodb_snapshot_isolation = OFF FOR "
_KNOW_THAT = (((10, 6, 18), (10, 7)), ((10, 11, 8), (11, 0)), ((11, 4, 2), (99,)))
"""From which version on, and before which, MariaDB has this setting."""


def before_each(version: str) -> str:
    """What our statements begin with on this server, so that they see the newest."""
    found = re.search(r"(\d+)\.(\d+)\.(\d+)-MariaDB", version)  # 5.5.5- may stand before it
    numbers = tuple(map(int, found.groups())) if found else ()
    return _NEWEST_TOO if any(first <= numbers < end for first, end in _KNOW_THAT) else ""


def by_pymysql(connection: Any) -> Callable[[Question], Any]:
    """How to ask on a connection of PyMySQL."""
    pymysql, prefix = sys.modules["pymysql"], before_each(connection.get_server_info())

    def ask(question: Question) -> list[Reply]:
        replies = []
        with connection.cursor(pymysql.cursors.Cursor) as cursor:
            for statement in (*question.statements, *question.after):
                try:
                    cursor.execute(prefix + _by_any_clock(statement))
                except pymysql.MySQLError as error:
                    raise _judged(error) from error
                replies.append(Reply(cursor.fetchall(), cursor.rowcount))
        return replies

    return ask


def by_asyncmy(connection: Any) -> Callable[[Question], Awaitable[Any]]:
    """How to ask on a connection of asyncmy."""
    errors, cursors = sys.modules["asyncmy.errors"], sys.modules["asyncmy.cursors"]
    prefix = before_each(connection.get_server_info())

    async def ask(question: Question) -> list[Reply]:
        replies = []
        async with connection.cursor(cursors.Cursor) as cursor:
            for statement in (*question.statements, *question.after):
                try:
                    await cursor.execute(prefix + _by_any_clock(statement))
                except errors.MySQLError as error:
                    raise _judged(error) from error
                replies.append(Reply(await cursor.fetchall(), cursor.rowcount))
        return replies

    return ask


def _by_any_clock(statement: str) -> str:
    return statement.replace(CLOCK, CLOCK_OF_ANY_SESSION)  # values are digits: none can hold it


def _judged(error: Any) -> Exception:
    if error.args and error.args[0] == 1146:
        return Misuse(
            f"{error}: this connection's database has no oncekey tables. Records commit with your "
            "rows only where they are in the same database: name that one as store=…, and run "
            "`oncekey migrate` on it"
        )
    judged: Exception = error
    return judged
