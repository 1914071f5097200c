"""Transactions of MySQL and MariaDB: records that commit with the rows of a handler or caller.

Neither server has a lock that belongs to a transaction and to no row. So there is a table of ids in
which a transaction inserts a row and removes it again: until the transaction ends, it holds the
lock on that row, and no other transaction ever sees it. Another request for the id finds the row
locked, and no record is locked meanwhile. If a caller is interrupted between the two and commits,
its row stays. It locks nothing: the next transaction uses and removes it.

No request should wait for such a row. MariaDB has a setting for a single statement. MySQL has none
for an INSERT: there the statement looks first, by a read that does not wait; if the row was
inserted since, it waits for at least a second, the shortest time that this server knows. Under
REPEATABLE READ a read that locks a missing row would keep others from inserting beside it, so in a
caller's transaction nothing looks first, and on MySQL that second is the rule.

The record is read before the id is taken, so this may miss a commit in between. It decides nothing:
the unique id of the records does.

Nothing outlasts the transaction. A savepoint with the name of the attempt shows whether the
handler, or a deadlock, has ended it.

On a connection of the caller's statements go one by one, for it need not take several at once. No
statement is repeated after a deadlock, which has rolled back the caller's rows too. The clock is
read so that the session's time zone does not matter. A caller's transaction is mostly REPEATABLE
READ: what decides is read under a lock, which shows the newest there too. MariaDB can refuse that
instead, and does since 11.6 unless told otherwise. It is told, for our statements alone: a
heartbeat may renew the record at any time, and the caller's rows would never be committed.
"""

# ruff: noqa: S608  (every value in a statement is a `literal`)

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from oncekey._core.op import Op
from oncekey._core.record import Claim, Record, State
from oncekey._core.verbs import Swap
from oncekey.errors import Misuse, StoreUnavailable, TooLong
from oncekey.stores.mysql.statements import (
    CLOCK,
    CLOCK_OF_ANY_SESSION,
    Question,
    Reply,
    Value,
    later,
    literal,
    micros,
)
from oncekey.stores.mysql.writes import answer_row, claim_row, records
from oncekey.stores.sql_batch import RowHeld
from oncekey.stores.transactions import (
    Ask,
    AsyncAsk,
    Hold,
    SqlTransactions,
    TransactionVerbs,
    is_of,
    not_begun,
)

READ_COMMITTED = Question(("SET TRANSACTION ISOLATION LEVEL READ COMMITTED",))
"""For the transaction that begins with the next statement, and no other."""

_TAKE = "INSERT INTO oncekey_held (id) VALUES ({id}) ON DUPLICATE KEY UPDATE id = oncekey_held.id"
_LOOK_AND_TAKE = (
    "INSERT INTO oncekey_held (id) SELECT {id} FROM DUAL "
    "WHERE NOT EXISTS (SELECT 1 FROM oncekey_held h WHERE h.id = {id} FOR UPDATE NOWAIT) "
    "ON DUPLICATE KEY UPDATE id = oncekey_held.id"
)
_LET_GO = "DELETE FROM oncekey_held WHERE id = {id}"


_UNDOING = (1205, 1213)
"""Error codes of a lock wait timeout and a deadlock."""
_ERROR_CLASS = "OperationalError"
"""The name of their class in every MySQL driver and in Django. Other errors may have such a number
for another reason: a `KeyError` of an id.
"""


class TransactionOver(StoreUnavailable):
    """There is no such savepoint: the transaction that set it has ended."""


def _mark(claim: Claim) -> str:
    return f"oncekey_{claim.token.hex()}"


def _hold(claim: Claim, *, callers: bool) -> Op[Hold]:
    found = (yield from records([claim.id])).get(claim.id)
    if found is not None and _has_ended(found):
        return Hold(False, found)
    given, mark = literal(claim.id), _mark(claim)
    take = _TAKE if callers else _LOOK_AND_TAKE
    statements = (f"SAVEPOINT {mark}", take.format(id=given), _LET_GO.format(id=given))
    try:
        yield Question(statements, at_once=True)
    except RowHeld:
        if callers:  # with innodb_rollback_on_timeout the rows are gone, and this fails
            yield Question((f"RELEASE SAVEPOINT {mark}",))
        return Hold(False, found)
    return Hold(True, found)


def _has_ended(record: Record) -> bool:
    return record.state in (State.COMPLETED, State.UNKNOWN) and not record.expired


def is_ours(claim: Claim) -> Op[bool]:
    """Whether the transaction is still the one that took the id."""
    mark = _mark(claim)
    try:
        yield Question((f"RELEASE SAVEPOINT {mark}", f"SAVEPOINT {mark}"))
    except TransactionOver:
        return False
    return True


def insert_completed(claim: Claim, complete: Swap) -> Op[bool]:
    """Write a record that did not exist, completed. False if there is one after all, be it one that
    this transaction cannot see, or if the transaction is not the one that took the id.
    """
    if not (yield from is_ours(claim)):
        return False
    columns = _completed_row(claim, complete, "f.removed + 1")
    source = f"SELECT {', '.join(columns.values())} FROM oncekey_fences f"
    return (yield from _insert(claim, columns, source))


def _insert_completed_in(claim: Claim, complete: Swap) -> Op[bool]:
    """The same in a transaction that may be REPEATABLE READ: there a statement that writes would
    lock the fences that it reads, and block sweeps until the caller's commit. Read them before;
    they need not be the newest, since a fence is never presented without its token.
    """
    if not (yield from is_ours(claim)):
        return False
    [fences] = yield Question(("SELECT removed + 1 FROM oncekey_fences",))
    [(fence,)] = fences.rows
    columns = _completed_row(claim, complete, literal(int(fence)))
    return (yield from _insert(claim, columns, f"VALUES ({', '.join(columns.values())})"))


def _insert(claim: Claim, columns: Iterable[str], source: str) -> Op[bool]:
    *_, after = yield Question(
        (
            f"INSERT INTO oncekey_claims ({', '.join(f'`{name}`' for name in columns)}) {source} "
            "ON DUPLICATE KEY UPDATE id = oncekey_claims.id",
            f"SELECT token FROM oncekey_claims WHERE id = {literal(claim.id)}",
        )
    )
    return [tuple(row) for row in after.rows] == [(claim.token,)]


def _completed_row(claim: Claim, complete: Swap, fence: str) -> dict[str, str]:
    """Return columns of `oncekey_claims` as expressions."""
    row: dict[str, Value] = {"id": claim.id, "token": claim.token, **claim_row(claim)}
    for name in ("lease_us", "expires_us", "request"):  # only of what runs
        del row[name]
    values = {name: literal(given) for name, given in {**row, **answer_row(complete)}.items()}
    moments = {"created": CLOCK, "expires": later(str(micros(complete.retention_s)))}
    fences = dict.fromkeys(("fence", "generation"), fence)
    counts = {"attempt": "1", "lapses": "0", "beat": "0", "no_effect": "0"}
    return {**values, **moments, **fences, **counts, "state": "'completed'"}


def undoes(error: BaseException) -> bool:
    """Whether a deadlock caused it, or a lock wait timeout, which can undo as much."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        classes = (each.__name__ for each in type(cause).__mro__)
        if cause.args and cause.args[0] in _UNDOING and _ERROR_CLASS in classes:
            return True
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False


# ------------------------------------------------------------------- on a caller's connection

_IN_TRANSACTION = 1
"""The bit of a server's status that says so."""
_IDENTITY = Question(
    ("SELECT DATABASE(), @@hostname, @@port, (SELECT MIN(applied) FROM oncekey_schema)",)
)


def identity() -> Op[Any]:
    """What tells the store's database from any other."""
    [reply] = yield _IDENTITY
    [row] = reply.rows
    return tuple(row)


def join(store: Any, connection: Any) -> Ask | None:
    """How to ask on a connection of PyMySQL."""
    return (
        join_pymysql(connection) if is_of(connection, "pymysql.connections", "Connection") else None
    )


def ajoin(store: Any, connection: Any) -> AsyncAsk | None:
    """How to ask on a connection of asyncmy."""
    return (
        join_asyncmy(connection) if is_of(connection, "asyncmy.connection", "Connection") else None
    )


def _must_have_begun(connection: Any) -> None:
    """Both drivers begin by themselves before the next statement, unless in autocommit."""
    if not connection.server_status & _IN_TRANSACTION and connection.get_autocommit():
        raise not_begun("connection.begin()")


_KNOW_SNAPSHOT = (((10, 6, 18), (10, 7)), ((10, 11, 8), (11, 0)), ((11, 4, 2), (99,)))
"""Versions of MariaDB, from and before, with a setting that shows the newest rows."""
_READS_OR_WRITES = ("SELECT", "INSERT", "UPDATE", "DELETE")
_SET_WAIT = (
    "SET @oncekey_wait_s = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = 1"
)
_RESTORE_WAIT = "SET SESSION innodb_lock_wait_timeout = @oncekey_wait_s"
_PACKET = "SELECT @@SESSION.max_allowed_packet"
_SHORT_BYTES_MAX = 65_536
"""Longer statements are sent only after checking the server's packet size: the server hangs up on
one that is too long, and the caller's rows are gone too.
"""


class CallersServer:
    """How to send our statements on a caller's connection, so that they see the newest rows and do
    not wait where they must not. The settings apply to our statements alone.
    """

    def __init__(self, version: str) -> None:
        found = re.search(r"(\d+)\.(\d+)\.(\d+)-MariaDB", version)  # 5.5.5- may stand before it
        numbers = tuple(map(int, found.groups())) if found else ()
        self._is_mariadb = found is not None
        knows = any(first <= numbers < end for first, end in _KNOW_SNAPSHOT)
        self._always = ["innodb_snapshot_isolation = OFF"] if knows else []

    def statements(self, question: Question) -> list[str]:
        """Return the statements of a question."""
        settings = [*self._always]
        if question.at_once and self._is_mariadb:
            settings.append("innodb_lock_wait_timeout = 0")
        first = f"SET STATEMENT {', '.join(settings)} FOR " if settings else ""
        return [
            f"{first}{_with_any_clock(each)}" if each.startswith(_READS_OR_WRITES) else each
            for each in (*question.statements, *question.after)
        ]

    def around(self, question: Question) -> tuple[list[str], list[str]]:
        """Return what to run before and after it, even if it fails. MySQL has no settings for
        single statements, and counts in whole seconds.
        """
        must_not_wait = question.at_once and not self._is_mariadb
        return ([_SET_WAIT], [_RESTORE_WAIT]) if must_not_wait else ([], [])


def join_pymysql(connection: Any) -> Callable[[Question], Any]:
    _must_have_begun(connection)
    pymysql, server = sys.modules["pymysql"], CallersServer(connection.get_server_info())

    def ask(question: Question) -> list[Reply]:
        before, after = server.around(question)
        replies = []
        with connection.cursor(pymysql.cursors.Cursor) as cursor:
            try:
                for statement in before:
                    cursor.execute(statement)
                for statement in server.statements(question):
                    if len(statement) > _SHORT_BYTES_MAX:
                        cursor.execute(_PACKET)
                        _check_fits(statement, cursor.fetchall())
                    cursor.execute(statement)
                    replies.append(Reply(cursor.fetchall(), cursor.rowcount))
            except pymysql.MySQLError as error:
                raise _translate(error, question) from error
            finally:
                with contextlib.suppress(pymysql.MySQLError):  # a lost one has no settings left
                    for statement in after:
                        cursor.execute(statement)
        return replies

    return ask


def join_asyncmy(connection: Any) -> Callable[[Question], Awaitable[Any]]:
    _must_have_begun(connection)
    errors, cursors = sys.modules["asyncmy.errors"], sys.modules["asyncmy.cursors"]
    server = CallersServer(connection.get_server_info())

    async def ask(question: Question) -> list[Reply]:
        before, after = server.around(question)
        replies = []
        async with connection.cursor(cursors.Cursor) as cursor:
            try:
                for statement in before:
                    await cursor.execute(statement)
                for statement in server.statements(question):
                    if len(statement) > _SHORT_BYTES_MAX:
                        await cursor.execute(_PACKET)
                        _check_fits(statement, await cursor.fetchall())
                    await cursor.execute(statement)
                    replies.append(Reply(await cursor.fetchall(), cursor.rowcount))
            except errors.MySQLError as error:
                raise _translate(error, question) from error
            finally:
                with contextlib.suppress(errors.MySQLError):  # a lost one has no settings left
                    for statement in after:
                        await cursor.execute(statement)
        return replies

    return ask


def _check_fits(statement: str, rows: Sequence[Sequence[Any]]) -> None:
    """Raise `TooLong` before the server hangs up on a statement longer than its packet size."""
    bytes_max = int(rows[0][0])
    if len(statement) >= bytes_max:
        raise TooLong(
            f"this needs a packet of {len(statement)} bytes, the server takes {bytes_max}: raise "
            "max_allowed_packet there, or keep shorter answers"
        )


def _with_any_clock(statement: str) -> str:
    return statement.replace(CLOCK, CLOCK_OF_ANY_SESSION)  # values are digits and cannot contain it


def _translate(error: Any, question: Question) -> Exception:
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
    other: Exception = error
    return other


VERBS = TransactionVerbs(partial(_hold, callers=False), is_ours, insert_completed, undoes)
TRANSACTIONS = SqlTransactions(
    "mysql",
    "Asyncmy(pool), PyMySQL(connect), SQLAlchemy(engine), AsyncSQLAlchemy(engine) or Django()",
    join,
    ajoin,
    identity=identity,
    begin=READ_COMMITTED,
    verbs=VERBS,
    callers_verbs=TransactionVerbs(
        partial(_hold, callers=True), is_ours, _insert_completed_in, undoes
    ),
    shows_early=lambda store: bool(store.driver.shows_early),
)
