"""Records in MySQL 8.0 or MariaDB 10.6 or later: what both can do, and nothing that only one can.

What is where: `mysql_text` spells values, `mysql_sql` and `mysql_write` ask the verbs and say why
that is safe, `mysql_flush` sees to it that what is said is on disk, `mysql_fitness` judges the
server; this file is the store and the only one that knows the drivers: asyncmy for event loops,
PyMySQL for threads.

Connections
    Each lane of the gatherer holds one, in autocommit; there is no pool. What matters of a session
    is set when it is made: READ COMMITTED, a strict `sql_mode`, UTC, how long to wait for a row. A
    question is one packet with several statements, so no proxy that spreads statements over servers
    or sessions can stand in between.

Replies that do not come
    Every question has a deadline on this side. After it the connection is dropped and the caller is
    told that the outcome is unknown; it repeats the verb, which then waits for the row of the
    transaction in doubt and recognises its own token.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
from collections.abc import Collection, Hashable, Sequence
from typing import Any

import asyncmy
import pymysql
from asyncmy import errors as asyncmy_errors
from pymysql.connections import Connection as PyMySQLConnection
from pymysql.constants import CLIENT

from oncekey._core.op import Op
from oncekey._core.verbs import Verb
from oncekey._system.clock import SystemClock
from oncekey.errors import StoreError, StoreUnavailable, StoreUnfit, TooLong
from oncekey.stores.base import Durability, Traits
from oncekey.stores.checks import Examination, Risk, Sample, allowed, first_by_id, insist
from oncekey.stores.connection import AnswerTimer
from oncekey.stores.mysql import checks, durability
from oncekey.stores.mysql import verbs as mysql_sql
from oncekey.stores.mysql.address import Address, read
from oncekey.stores.mysql.outbox import MySQLOutboxTable
from oncekey.stores.mysql.statements import Question, Reply
from oncekey.stores.mysql.transactions import TRANSACTIONS
from oncekey.stores.mysql.writes import Limits
from oncekey.stores.sql import check_schema, check_waits, migrations
from oncekey.stores.sql_batch import CHORE_TIMEOUT_S, Denied, RowHeld, group

DURABILITY = Durability(
    *(True, True, True),
    "a commit is on disk before it is acknowledged; a failover to an asynchronous replica can "
    "forget the last ones",
)
UNSAFE_DURABILITY = Durability(
    *(True, False, False),
    "innodb_flush_log_at_trx_commit or sync_binlog may not be 1: a crash can forget what was "
    "acknowledged",
)


def open_url(url: str) -> MySQLStore:
    """A store from `mysql://user:password@host/database`, or `mariadb://…`, with `tls=true`,
    `tls_ca`, `unix_socket`, `allow=unsafe-durability`, `timeout_s`, `connect_timeout_s`.
    """
    address, options = read(url)
    return MySQLStore(address, **options)


class MySQLStore:
    """Records in MySQL or MariaDB."""

    name = "mysql"
    traits = Traits()
    transactions = TRANSACTIONS
    outbox = MySQLOutboxTable()

    def __init__(
        self,
        address: Address,
        *,
        allow: Collection[str] = (),
        timeout_s: float = 5.0,
        connect_timeout_s: float = 5.0,
    ) -> None:
        check_waits(timeout_s=timeout_s, connect_timeout_s=connect_timeout_s)
        self.allowed = allowed(allow, checks.RISKS)
        self.durability = UNSAFE_DURABILITY if Risk.DURABILITY in self.allowed else DURABILITY
        self.address = address
        self.limits = Limits(timeout_s)
        self._connect_timeout_s = connect_timeout_s
        self.shows_early = False
        """Whether the server shows a commit to others before it is on disk: `mysql_flush`."""

    def __repr__(self) -> str:
        return f"MySQLStore({self.address.shown!r})"

    @property
    def location(self) -> Hashable:
        return self.name, *self.address.location

    def group(self, verb: Verb) -> Hashable:
        return group(verb)

    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        op = mysql_sql.perform(verbs, self.limits)
        return durability.before_said(verbs, op) if self.shows_early else op

    # ---------------------------------------------------------------------- fitness and schema

    def prepare(self) -> Op[None]:
        replies = yield checks.PREPARE
        shown = self.address.shown
        server = checks.server(replies)
        insist(server.findings(), shown, self.allowed)
        self.shows_early = server.shows_early
        [(applied, oldest_reader)] = replies[1].rows
        check_schema(self.name, applied, oldest_reader, shown)

    def examine(self) -> Op[Examination]:
        return checks.examine(self.address.shown)

    def now(self) -> Op[float | None]:
        return checks.now()

    def sample(self, limit: int) -> Op[Sample]:
        return first_by_id(self, limit)

    def migrate(self) -> Op[list[str]]:
        mutex = checks.ONE_MIGRATOR
        wait_s = int(CHORE_TIMEOUT_S / 2)
        [reply] = yield Question((f"SELECT GET_LOCK({mutex}, {wait_s})",), chore=True)
        if reply.rows[0][0] != 1:
            raise self.unavailable("somebody else migrates, and is not done yet", sent=False)
        release = Question((f"SELECT RELEASE_LOCK({mutex})",))
        try:
            applied = yield from self._migrate()
        except Exception as error:
            with contextlib.suppress(StoreError):
                yield release
            if isinstance(error, RowHeld):
                raise self.unavailable(_TABLE_HELD, sent=False) from error
            raise
        yield release
        return applied

    def _migrate(self) -> Op[list[str]]:
        """Each statement commits by itself, and can be repeated: what was cut short is finished."""
        yield Question((checks.NOTEBOOK,), chore=True)
        [reply] = yield Question(("SELECT number FROM oncekey_schema",))
        noted = {row[0] for row in reply.rows}
        applied = []
        for migration in migrations(self.name):
            if migration.number not in noted:
                for statement in checks.statements(migration):
                    yield Question((statement,), chore=True)
                yield Question((checks.note(migration),))
                applied.append(f"{migration.number:04}_{migration.name}")
        return applied

    # ----------------------------------------------------------------------------- connections

    def session(self) -> str:
        """What a session of ours begins with. The last reply says how long a packet may be."""
        wait_s = self.limits.row_wait_s
        return (
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; "
            f"SET SESSION {', '.join(map(' = '.join, checks.SETTINGS.items()))}, "
            f"innodb_lock_wait_timeout = {wait_s}, lock_wait_timeout = {wait_s}; "
            "SELECT @@SESSION.max_allowed_packet"
        )

    def connect(self) -> MySQLConnection:
        try:
            connection = _Bounded(
                **self.address.driver(),
                autocommit=True,
                charset="utf8mb4",
                client_flag=CLIENT.MULTI_STATEMENTS,
                connect_timeout=max(1, math.ceil(self._connect_timeout_s)),
                read_timeout=self._connect_timeout_s,
                write_timeout=self.limits.timeout_s,
                # Else it reads all certificates that the system trusts, and checks none of them.
                ssl_disabled=self.address.tls is None,
            )
            return MySQLConnection(self, connection)
        except (*DRIVER_ERRORS, RuntimeError) as error:
            raise self.translated(error, sent=False) from self._shown(error)

    async def aconnect(self) -> AsyncMySQLConnection:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                connection = await asyncmy.connect(
                    **self.address.driver(), autocommit=True, charset="utf8mb4"
                )
                return await AsyncMySQLConnection(self, connection).begin()
        except (*DRIVER_ERRORS, RuntimeError) as error:
            raise self.translated(error, sent=False) from self._shown(error)

    def packet(self, question: Question, bytes_max: int) -> str:
        """The text of a question. It has no character beyond ASCII."""
        parts = question.statements
        if question.atomic:
            flush = durability.WRITES if question.flushed and self.shows_early else ()
            parts = ("START TRANSACTION", *parts, *flush, "COMMIT")
        text = "; ".join((*parts, *question.after))
        if len(text) >= bytes_max:
            raise TooLong(
                f"{self.address.shown}: this needs a packet of {len(text)} bytes, the server takes "
                f"{bytes_max}: raise max_allowed_packet there, or keep shorter answers"
            )
        return text

    def unavailable(self, why: str, *, sent: bool) -> StoreUnavailable:
        return StoreUnavailable(f"{self.address.shown}: {self.address.scrub(why)}", sent=sent)

    def translated(self, error: Any, *, sent: bool = True) -> Exception:
        """A driver's error in the words of the contract; what is the verb's own fault stays."""
        shown = self.address.shown
        why = self.address.scrub(str(error) or type(error).__name__)
        match error.args[0] if error.args else None:
            case 1205 | 1213:  # lock wait timeout, deadlock
                return RowHeld(f"{shown}: another transaction holds the record", sent=sent)
            case 1146:  # no such table
                return StoreUnfit(
                    f"{shown} has no oncekey tables: run `oncekey migrate {shown}` ({why})"
                )
            case 1044 | 1142 | 1143 | 1227:  # not allowed
                return Denied(
                    f"{shown}: {why}. The user needs SELECT, INSERT, UPDATE and DELETE on the "
                    "oncekey tables, and CREATE and ALTER to migrate"
                )
            case 1665:  # no READ COMMITTED with statements in the binary log
                return StoreUnfit(f"{shown}: {why}. Set binlog_format = ROW or MIXED there")
        if sent and isinstance(error, _OWN_FAULTS):
            own: Exception = error
            return own
        # The drivers' other one says that a server hung up while they prepared the connection.
        if isinstance(error, RuntimeError) and "package is required" in why:
            return StoreUnfit(f"{shown}: {why}. Install it, or connect with tls=true")
        return self.unavailable(why, sent=sent)

    def _shown(self, error: Exception) -> Exception | None:
        """The error as a cause, unless it quotes the password."""
        return error if self.address.scrub(str(error)) == str(error) else None


DRIVER_ERRORS = (OSError, TimeoutError, pymysql.MySQLError, asyncmy_errors.MySQLError)
_OWN_FAULTS = tuple(
    getattr(errors, name)
    for errors in (pymysql.err, asyncmy_errors)
    for name in ("DataError", "IntegrityError", "ProgrammingError", "NotSupportedError")
)
_TABLE_HELD = (
    "a transaction that stays open keeps the tables from being changed, and others would soon wait "
    "behind the change: see SHOW PROCESSLIST for who it is, then migrate again"
)
_GONE = "the server has closed the connection"


def _late(timeout_s: float) -> str:
    return f"no answer within {timeout_s:g} s"


def _answers(question: Question, replies: list[Reply]) -> list[Reply]:
    """Without those to what makes it a transaction."""
    if question.atomic:
        del replies[1 + len(question.statements) : len(replies) - len(question.after)], replies[0]
    return replies


class AsyncMySQLConnection:
    """Asks by asyncmy."""

    def __init__(self, store: MySQLStore, connection: Any) -> None:
        self._store = store
        self._connection = connection
        self._timer = AnswerTimer(self._give_up)
        self._bytes_max = 0
        self._late = False

    async def begin(self) -> AsyncMySQLConnection:
        *_, last = await self._replies(self._store.session())
        self._bytes_max = int(str(last.rows[0][0]))
        return self

    async def ask(self, question: Question) -> list[Reply]:
        if not self._connection.connected or self._connection._stream_broken:
            raise self._store.unavailable(_GONE, sent=False)
        text = self._store.packet(question, self._bytes_max)
        timeout_s = self._store.limits.of(question)
        self._timer.begin(timeout_s)
        try:
            return _answers(question, await self._replies(text))
        except DRIVER_ERRORS as error:
            if self._late:
                raise self._store.unavailable(_late(timeout_s), sent=True) from error
            translated = self._store.translated(error)
            if question.atomic and not self._connection._stream_broken:
                await self._roll_back()
            if translated is error:
                raise
            raise translated from error
        except asyncio.CancelledError:
            self._abort()
            raise
        finally:
            self._timer.end()

    async def _replies(self, text: str) -> list[Reply]:
        cursor = self._connection.cursor()
        await cursor.execute(text)
        replies = [Reply(await cursor.fetchall(), cursor.rowcount)]
        while await cursor.nextset():
            replies.append(Reply(await cursor.fetchall(), cursor.rowcount))
        return replies

    async def _roll_back(self) -> None:
        """A statement that failed ends neither the transaction nor what it holds."""
        try:
            await self._replies("ROLLBACK")
        except DRIVER_ERRORS as error:
            self._abort()
            raise self._store.translated(error) from error

    def _give_up(self) -> None:
        self._late = True
        self._abort()

    def _abort(self) -> None:
        """Hang up at once: a server that reads nothing is not waited for."""
        if self._connection._transport is not None:
            self._connection._transport.abort()
        self._connection.close()

    async def close(self) -> None:
        self._timer.close()
        self._abort()


class MySQLConnection:
    """Asks by PyMySQL."""

    def __init__(self, store: MySQLStore, connection: _Bounded) -> None:
        self._store = store
        self._connection = connection
        *_, last = self._replies(store.session())
        self._bytes_max = int(str(last.rows[0][0]))

    def ask(self, question: Question) -> list[Reply]:
        if self._connection.is_gone():
            raise self._store.unavailable(_GONE, sent=False)
        text = self._store.packet(question, self._bytes_max)
        timeout_s = self._store.limits.of(question)
        self._connection.deadline = SystemClock.monotonic() + timeout_s
        try:
            return _answers(question, self._replies(text))
        except DRIVER_ERRORS as error:
            if self._connection.is_late():
                self._connection.hang_up()
                raise self._store.unavailable(_late(timeout_s), sent=True) from error
            translated = self._store.translated(error)
            if question.atomic and self._connection.open:
                self._roll_back()
            if translated is error:
                raise
            raise translated from error
        except BaseException:
            self._connection.hang_up()  # interrupted: what it still carries is nobody's
            raise

    def _replies(self, text: str) -> list[Reply]:
        cursor = self._connection.cursor()
        cursor.execute(text)
        replies = [Reply(cursor.fetchall(), cursor.rowcount)]
        while cursor.nextset():
            replies.append(Reply(cursor.fetchall(), cursor.rowcount))
        return replies

    def _roll_back(self) -> None:
        try:
            self._replies("ROLLBACK")
        except DRIVER_ERRORS as error:
            self._connection.hang_up()
            raise self._store.translated(error) from error

    def close(self) -> None:
        self._connection.hang_up()


class _Bounded(PyMySQLConnection):  # type: ignore[misc]
    """A connection that waits for the server only until its deadline."""

    deadline = math.inf

    def is_gone(self) -> bool:
        """Unasked, a server speaks only to say farewell."""
        if not self.open:
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def is_late(self) -> bool:
        return SystemClock.monotonic() >= self.deadline

    def hang_up(self) -> None:
        self._force_close()

    def _read_bytes(self, num_bytes: int) -> Any:
        if self.deadline < math.inf:
            left_s = self.deadline - SystemClock.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._sock.settimeout(left_s)
            self._current_timeout = left_s  # so that the driver sets its own for the next packet
        return super()._read_bytes(num_bytes)
