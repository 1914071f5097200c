"""Asking on a connection of the caller's to MySQL or MariaDB, in the caller's transaction.

Statements go one by one, for such a connection need not take several at once; nothing is repeated
after a deadlock, which has rolled back the caller's rows too. The clock is read so that the
session's time zone does not matter. A transaction of the caller's is mostly REPEATABLE READ: what
decides is read under a lock, which shows the newest there too. MariaDB can refuse that instead, and
does so since 11.6 unless told otherwise: for our statements, and no others, it is told. A heartbeat
may renew the record at any time, and the caller's rows would never be committed.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from oncekey._core.op import Op
from oncekey.errors import Misuse, TooLong
from oncekey.stores.mysql.statements import CLOCK, CLOCK_OF_ANY_SESSION, Question, Reply
from oncekey.stores.mysql.transactions import TransactionOver
from oncekey.stores.sql_batch import RowHeld

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


_KNOW_SNAPSHOT = (((10, 6, 18), (10, 7)), ((10, 11, 8), (11, 0)), ((11, 4, 2), (99,)))
"""From which version on, and before which, MariaDB can be told to let us see the newest."""
_READS_OR_WRITES = ("SELECT", "INSERT", "UPDATE", "DELETE")
_HURRY = (
    "SET @oncekey_wait_s = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = 1"
)
_CALM = "SET SESSION innodb_lock_wait_timeout = @oncekey_wait_s"
_PACKET = "SELECT @@SESSION.max_allowed_packet"
_SHORT_BYTES_MAX = 65_536
"""What is longer is sent only after a look at how much the server takes: on what is too long for it
the server hangs up, and the caller's rows are gone too.
"""


class Server:
    """How our statements are put to one server: so that they see the newest, and where they are to
    wait for nobody, do not. What is set for that counts for our statements alone.
    """

    def __init__(self, version: str) -> None:
        found = re.search(r"(\d+)\.(\d+)\.(\d+)-MariaDB", version)  # 5.5.5- may stand before it
        numbers = tuple(map(int, found.groups())) if found else ()
        self._is_mariadb = found is not None
        knows = any(first <= numbers < end for first, end in _KNOW_SNAPSHOT)
        self._always = ["innodb_snapshot_isolation = OFF"] if knows else []

    def put(self, question: Question) -> list[str]:
        """The statements of a question."""
        settings = [*self._always]
        if question.at_once and self._is_mariadb:
            settings.append("innodb_lock_wait_timeout = 0")
        first = f"SET STATEMENT {', '.join(settings)} FOR " if settings else ""
        return [
            f"{first}{_by_any_clock(each)}" if each.startswith(_READS_OR_WRITES) else each
            for each in (*question.statements, *question.after)
        ]

    def around(self, question: Question) -> tuple[list[str], list[str]]:
        """What goes before and after it, whatever becomes of it. MySQL has no settings for single
        statements, and counts in whole seconds.
        """
        hurries = question.at_once and not self._is_mariadb
        return ([_HURRY], [_CALM]) if hurries else ([], [])


def by_pymysql(connection: Any) -> Callable[[Question], Any]:
    """How to ask on a connection of PyMySQL."""
    pymysql, server = sys.modules["pymysql"], Server(connection.get_server_info())

    def ask(question: Question) -> list[Reply]:
        before, after = server.around(question)
        replies = []
        with connection.cursor(pymysql.cursors.Cursor) as cursor:
            try:
                for statement in before:
                    cursor.execute(statement)
                for statement in server.put(question):
                    if len(statement) > _SHORT_BYTES_MAX:
                        cursor.execute(_PACKET)
                        _check_fits(statement, cursor.fetchall())
                    cursor.execute(statement)
                    replies.append(Reply(cursor.fetchall(), cursor.rowcount))
            except pymysql.MySQLError as error:
                raise _judged(error, question) from error
            finally:
                with contextlib.suppress(pymysql.MySQLError):  # a lost one has no settings left
                    for statement in after:
                        cursor.execute(statement)
        return replies

    return ask


def by_asyncmy(connection: Any) -> Callable[[Question], Awaitable[Any]]:
    """How to ask on a connection of asyncmy."""
    errors, cursors = sys.modules["asyncmy.errors"], sys.modules["asyncmy.cursors"]
    server = Server(connection.get_server_info())

    async def ask(question: Question) -> list[Reply]:
        before, after = server.around(question)
        replies = []
        async with connection.cursor(cursors.Cursor) as cursor:
            try:
                for statement in before:
                    await cursor.execute(statement)
                for statement in server.put(question):
                    if len(statement) > _SHORT_BYTES_MAX:
                        await cursor.execute(_PACKET)
                        _check_fits(statement, await cursor.fetchall())
                    await cursor.execute(statement)
                    replies.append(Reply(await cursor.fetchall(), cursor.rowcount))
            except errors.MySQLError as error:
                raise _judged(error, question) from error
            finally:
                with contextlib.suppress(errors.MySQLError):  # a lost one has no settings left
                    for statement in after:
                        await cursor.execute(statement)
        return replies

    return ask


def _check_fits(statement: str, rows: Sequence[Sequence[Any]]) -> None:
    """Raise `TooLong` before the server hangs up on what is longer than a packet of its own."""
    bytes_max = int(rows[0][0])
    if len(statement) >= bytes_max:
        raise TooLong(
            f"this needs a packet of {len(statement)} bytes, the server takes {bytes_max}: raise "
            "max_allowed_packet there, or keep shorter answers"
        )


def _by_any_clock(statement: str) -> str:
    return statement.replace(CLOCK, CLOCK_OF_ANY_SESSION)  # values are digits: none can hold it


def _judged(error: Any, question: Question) -> Exception:
    match error.args[0] if error.args else None:
        case 1146:  # no such table
            return Misuse(
                f"{error}: this connection's database has no oncekey tables. Records commit with "
                "your rows only where they are in the same database: name that one as store=…, and "
                "run `oncekey migrate URL` with its URL"
            )
        case 1205 | 3572 if question.at_once:  # waited for long enough; does not wait
            return RowHeld("another transaction holds the id", sent=True)
        case 1568:  # its isolation cannot be set any more
            return Misuse(
                f"{error}: a transaction was open on this connection before atomic mode began its "
                "own. Lend it connections on which nothing was asked yet: no SELECT when one is "
                "opened or a session begins, no transaction.atomic() around it"
            )
        case 1305:  # no such savepoint
            return TransactionOver(str(error), sent=True)
    judged: Exception = error
    return judged
