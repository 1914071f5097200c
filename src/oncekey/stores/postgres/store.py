"""Records in PostgreSQL 13 or later: the durable store for more than one machine.

What is where: queries.sql holds the statements and says why they are safe,
`postgres_sql` asks them; this file is the store and the only one that knows the drivers: asyncpg
for event loops, psycopg for threads.

Connections
    Each lane of the gatherer holds one, in autocommit; there is no pool. Nothing depends on the
    session, so PgBouncer in transaction mode can stand in between: `?pgbouncer=true` stops
    preparing statements and sending settings, neither of which it passes on.

Replies that do not come
    Every statement has a deadline on this side. After it the connection is dropped, but the
    statement is not cancelled: a COMMIT that waits for a standby is not bound by
    `statement_timeout`, and cancelling it leaves a commit that is not replicated. The caller is
    told that the outcome is unknown and repeats the verb; the conditional write then waits for the
    row of the transaction in doubt, and recognises its own token.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Collection, Generator, Hashable, Sequence
from typing import Any, TypeVar

import asyncpg
import psycopg
from asyncpg.prepared_stmt import PreparedStatement
from psycopg import waiting
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.array import ListBinaryDumper

from oncekey._core.op import Op
from oncekey._core.verbs import Verb
from oncekey._system.clock import SystemClock
from oncekey.errors import Misuse, StoreError, StoreUnavailable, StoreUnfit
from oncekey.stores.base import Durability, Traits
from oncekey.stores.checks import Examination, Risk, Sample, allowed, first_by_id, insist
from oncekey.stores.connection import AnswerTimer
from oncekey.stores.postgres import checks
from oncekey.stores.postgres import verbs as postgres_sql
from oncekey.stores.postgres.address import Address, named, split
from oncekey.stores.postgres.layouts import begin_inline
from oncekey.stores.postgres.outbox import PostgresOutboxTable
from oncekey.stores.postgres.statements import STATEMENTS
from oncekey.stores.postgres.transactions import TRANSACTIONS
from oncekey.stores.postgres.verbs import Limits, Question
from oncekey.stores.sql import Migration, check_waits, migrations
from oncekey.stores.sql_batch import Denied, FunctionGone, RowHeld, group

MIGRATORS = 31360989905909113
"""The advisory lock of those who migrate."""

# A prepared statement is planned once, perhaps while the tables are empty and reading them whole is
# cheapest. With the settings of plans it goes by the indexes, then and later.
_SETTINGS = {
    **checks.NEEDED,
    "client_min_messages": "warning",  # or `_is_doubt` would hear nothing
    "default_transaction_isolation": "read committed",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}

DURABILITY = Durability(
    *(True, True, True),
    "a commit is on disk before it is acknowledged; a failover to an asynchronous standby can "
    "forget the last ones",
)
UNSAFE_DURABILITY = Durability(
    *(True, False, False),
    "fsync or synchronous_commit may be off: a crash can forget what was acknowledged",
)

T = TypeVar("T")
Rows = Sequence[Any]


def open_url(url: str) -> PostgresStore:
    """A store from `postgresql://user:password@host/database`, with any parameter of libpq's, and
    of our own: `pgbouncer=true`, `allow=unsafe-durability`, `timeout_s`, `connect_timeout_s`.
    """
    libpq, options = split(url)
    return PostgresStore(libpq, **options)


SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


class PostgresStore:
    """Records in PostgreSQL."""

    name = "postgres"
    traits = Traits()
    transactions = TRANSACTIONS
    outbox = PostgresOutboxTable()

    def __init__(
        self,
        url: str,
        *,
        pgbouncer: bool = False,
        allow: Collection[str] = (),
        timeout_s: float = 5.0,
        connect_timeout_s: float = 5.0,
    ) -> None:
        check_waits(timeout_s=timeout_s, connect_timeout_s=connect_timeout_s)
        self.allowed = allowed(allow, checks.RISKS)
        self.durability = UNSAFE_DURABILITY if Risk.DURABILITY in self.allowed else DURABILITY
        self.address = Address(named(url))
        self._check_address()
        self.pgbouncer = pgbouncer
        self.limits = Limits(timeout_s)
        self._connect_timeout_s = connect_timeout_s

    def __repr__(self) -> str:
        return f"PostgresStore({self.address.shown!r})"

    def _check_address(self) -> None:
        """Raise `Misuse` for what libpq would refuse without asking the server."""
        address, why = self.address, ""
        try:
            mode = conninfo_to_dict(address.libpq).get("sslmode", SSL_MODES[0])
            if mode not in SSL_MODES:
                why = f"sslmode is one of {', '.join(SSL_MODES)}"
        except psycopg.ProgrammingError as error:
            why = str(error)
        if why:
            raise Misuse(f"{address.shown}: {address.scrub(why).strip()}")

    @property
    def location(self) -> Hashable:
        return self.name, *self.address.location

    def group(self, verb: Verb) -> Hashable:
        return group(verb)

    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        return postgres_sql.perform(verbs, self.limits)

    # ---------------------------------------------------------------------- fitness and schema

    def prepare(self) -> Op[None]:
        [row] = yield Question(checks.PREPARE)
        shown = self.address.shown
        findings = checks.Server(*row).findings(shown, pooled=self.pgbouncer)
        insist(findings, shown, self.allowed)

    def examine(self) -> Op[Examination]:
        return checks.examine(self.address.shown, pooled=self.pgbouncer)

    def now(self) -> Op[float | None]:
        return checks.now()

    def sample(self, limit: int) -> Op[Sample]:
        return first_by_id(self, limit)

    def migrate(self) -> Op[list[str]]:
        known, applied = migrations(self.name), []
        for migration in known:
            yield Question("BEGIN", script=True)
            try:
                applied += yield from self._migrate(migration, known)
                yield Question("COMMIT", script=True)
            except Exception as error:
                with contextlib.suppress(StoreError):
                    yield Question("ROLLBACK", script=True)
                if isinstance(error, RowHeld):
                    raise self.unavailable(_TABLE_HELD, sent=False) from error
                raise
        return applied

    def _migrate(self, migration: Migration, known: list[Migration]) -> Op[list[str]]:
        """Apply one that is missing. A new database gets all of them at once: cut short in between
        it would be taken for an older one, whose layout others rely on.
        """
        yield Question(STATEMENTS["one_migrator"], (MIGRATORS,), chore=True)
        yield Question(STATEMENTS["notebook"], script=True)
        noted = {row[0] for row in (yield Question(STATEMENTS["noted"]))}
        wanted = [migration] if noted else known
        missing = [each for each in wanted if each.number not in noted]
        for each in missing:
            note = (each.number, each.name, each.oldest_reader)
            yield Question(each.sql, chore=True, script=True)
            yield Question(STATEMENTS["note"], note)
        if not noted:
            yield from begin_inline()
        return [f"{each.number:04}_{each.name}" for each in missing]

    # ----------------------------------------------------------------------------- connections

    def connect(self) -> PostgresConnection:
        try:
            given: dict[str, Any] = conninfo_to_dict(self.address.libpq)
            if not self.pgbouncer:
                given["options"] = f"{given.get('options') or ''} {_options()}"
            given["connect_timeout"] = math.ceil(self._connect_timeout_s)
            given["client_encoding"] = "UTF8"  # as asyncpg has it: texts may hold any character
            connection = _Bounded.connect(
                **given,
                autocommit=True,
                cursor_factory=psycopg.RawCursor,
                prepare_threshold=None if self.pgbouncer else 0,
            )
        except psycopg.Error as error:
            raise self.translated(error, sent=False) from self._shown(error)
        # As text, what an array says depends on settings of the server: on
        # `standard_conforming_strings` its bytes, on `array_nulls` its nulls.
        connection.adapters.register_dumper(list, ListBinaryDumper)
        return PostgresConnection(self, connection)

    async def aconnect(self) -> AsyncPostgresConnection:
        try:
            connection = await asyncpg.connect(
                self.address.asyncpg,
                timeout=self._connect_timeout_s,
                server_settings=None if self.pgbouncer else _SETTINGS,
                # Without one asyncpg names no statement: each is parsed anew when it is executed,
                # in the same round trip.
                statement_cache_size=0 if self.pgbouncer else 100,
            )
        except (*_DRIVER_ERRORS, ValueError) as error:
            raise self.translated(error, sent=False) from self._shown(error)
        return AsyncPostgresConnection(self, connection)

    def unavailable(self, why: str, *, sent: bool) -> StoreUnavailable:
        return StoreUnavailable(f"{self.address.shown}: {self.address.scrub(why)}", sent=sent)

    def translated(self, error: Exception, *, sent: bool = True) -> Exception:
        """A driver's error in the words of the contract; what is the verb's own fault stays."""
        shown = self.address.shown
        why = self.address.scrub(str(error) or type(error).__name__)
        match getattr(error, "sqlstate", None):
            case "55P03":  # lock_timeout
                return RowHeld(f"{shown}: another transaction holds the record", sent=sent)
            case "42P01":  # no such table
                return StoreUnfit(
                    f"{shown} has no oncekey tables: run `oncekey migrate {shown}` ({why})"
                )
            case "42883":  # no such function
                return FunctionGone(
                    f"{shown}: {why}. A move to another layout is under way, or has just ended: "
                    f"try again. If it stays so, run `oncekey migrate {shown}`",
                    sent=sent,
                )
            case "42501":  # not allowed
                return Denied(
                    f"{shown}: {why}. The role needs SELECT, INSERT, UPDATE and DELETE on the "
                    "oncekey tables, and USAGE on their sequences; to migrate, it must own them, "
                    "or be allowed to create them"
                )
            case state if not self.pgbouncer and (
                state in _NOT_PASSED_ON or "unsupported startup parameter" in why
            ):
                return StoreUnfit(
                    f"{shown}: {why}. If a pooler such as PgBouncer answers there, add "
                    "pgbouncer=true to the URL"
                )
            case str(state) if sent and state[:2] not in _OUTAGES and state not in _OUTDATED:
                return error
            case None if isinstance(error, psycopg.DataError):  # refused before it was sent
                return error
        return self.unavailable(why, sent=sent)

    def _shown(self, error: Exception) -> Exception | None:
        """The error as a cause, unless it quotes the password."""
        return error if self.address.scrub(str(error)) == str(error) else None


# By class: connection, transaction rollback (deadlock, serialization), resources, operator
# intervention, system, internal.
_OUTAGES = {"08", "40", "53", "57", "58", "XX"}
# Another connection is needed: a primary has become a standby; a table was changed so that what is
# prepared here does not fit it any more.
_OUTDATED = {"25006", "0A000"}
# Protocol violation, no such prepared statement, prepared statement exists: somebody in between
# did not pass on what was sent before.
_NOT_PASSED_ON = {"08P01", "26000", "42P05"}
_DRIVER_ERRORS = (
    *(OSError, TimeoutError, asyncpg.PostgresError),
    *(asyncpg.InterfaceError, asyncpg.InternalClientError),
)


def _options() -> str:
    """The settings as libpq takes them."""
    return " ".join(
        f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in _SETTINGS.items()
    )


def _is_doubt(source_file: str | None) -> bool:
    """A warning of "committed locally, but might not have been replicated". The reply that follows
    it says success, and must not be believed. It is told by its source: texts are translated.
    """
    return (source_file or "").endswith("syncrep.c")


_DOUBT = "a commit was cut short while it waited for a standby"
_TABLE_HELD = (
    "a transaction that stays open keeps the tables from being changed, and others would soon wait "
    "behind the change: see pg_stat_activity for who it is, then migrate again"
)
_GONE = "the server has closed the connection"


def _late(timeout_s: float) -> str:
    return f"no answer within {timeout_s:g} s"


def _was_refused(error: Exception) -> bool:
    """Whether asyncpg sent nothing: it has read a server's last words, and not yet that it hung up,
    and takes that for another question under way. There never is one.
    """
    return isinstance(error, asyncpg.InternalClientError) and str(error).startswith("cannot switch")


class AsyncPostgresConnection:
    """Asks by asyncpg."""

    def __init__(
        self, store: PostgresStore, connection: asyncpg.Connection[asyncpg.Record]
    ) -> None:
        self._store = store
        self._connection = connection
        self._timer = AnswerTimer(self._give_up)
        self._statements: dict[str, PreparedStatement[asyncpg.Record]] = {}
        self._late = False
        self._doubt = False
        connection.add_log_listener(self._heard)

    async def ask(self, question: Question) -> Rows:
        if self._connection.is_closed():
            raise self._store.unavailable(_GONE, sent=False)
        timeout_s = self._store.limits.of(question)
        self._timer.begin(timeout_s)
        try:
            statement = self._statements.get(question.sql)
            rows = await (statement.fetch(*question.args) if statement else self._first(question))
        except _DRIVER_ERRORS as error:
            if self._late:
                raise self._store.unavailable(_late(timeout_s), sent=True) from error
            if _was_refused(error):
                raise self._store.unavailable(_GONE, sent=False) from error
            translated = self._store.translated(error)
            if translated is error:
                raise
            raise translated from error
        except asyncio.CancelledError:
            self._connection.terminate()  # before asyncpg cancels the statement
            raise
        finally:
            self._timer.end()
        if self._doubt:
            raise self._store.unavailable(_DOUBT, sent=True)
        return rows

    async def _first(self, question: Question) -> Rows:
        """The answer to a question that was not asked before. Scripts are not prepared."""
        if question.script:
            await self._connection.execute(question.sql)
            return ()
        statement = await self._connection.prepare(question.sql)
        self._statements[question.sql] = statement
        return await statement.fetch(*question.args)

    def _give_up(self) -> None:
        self._late = True
        self._connection.terminate()

    def _heard(self, _: Any, message: asyncpg.PostgresLogMessage) -> None:
        self._doubt |= _is_doubt(message.server_source_filename)

    async def close(self) -> None:
        self._timer.close()
        try:
            await self._connection.close(timeout=1.0)
        except _DRIVER_ERRORS:
            self._connection.terminate()


class PostgresConnection:
    """Asks by psycopg."""

    def __init__(self, store: PostgresStore, connection: _Bounded) -> None:
        self._store = store
        self._connection = connection
        self._doubt = False
        connection.add_notice_handler(self._heard)

    def ask(self, question: Question) -> Rows:
        connection = self._connection
        try:  # twice: first its last words, then that it has hung up
            connection.pgconn.consume_input()
            connection.pgconn.consume_input()
        except psycopg.OperationalError as error:
            raise self._store.unavailable(_GONE, sent=False) from error
        timeout_s = self._store.limits.of(question)
        connection.deadline = SystemClock.monotonic() + timeout_s
        try:
            rows = self._answer(question)
        except TimeoutError as error:
            raise self._store.unavailable(_late(timeout_s), sent=True) from error
        except psycopg.Error as error:
            translated = self._store.translated(error)
            if translated is error:
                raise
            raise translated from error
        except Exception:
            raise  # a value that no server could take: found before anything was sent
        except BaseException:
            connection.close()  # interrupted: what it still carries is nobody's
            raise
        if self._doubt:
            raise self._store.unavailable(_DOUBT, sent=True)
        return rows

    def _answer(self, question: Question) -> Rows:
        statement = question.sql.encode()
        if question.script:
            self._connection.execute(statement, prepare=False)
            return ()
        cursor = self._connection.execute(statement, question.args, binary=True)
        return cursor.fetchall() if cursor.description else ()

    def _heard(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        self._doubt |= _is_doubt(diagnostic.source_file)

    def close(self) -> None:
        self._connection.close()


class _Bounded(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits for the server only until its deadline, and cancels nothing."""

    deadline = math.inf

    def wait(
        self, gen: Generator[Any, Any, T], interval: float = 0.1, timeout: float | None = None
    ) -> T:
        return waiting.wait(self._until_deadline(gen), self.pgconn.socket, interval)

    def _until_deadline(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        try:
            awaited = next(gen)
            while True:
                ready = yield awaited
                if SystemClock.monotonic() > self.deadline:
                    raise TimeoutError
                awaited = gen.send(ready)
        except StopIteration as stop:
            value: T = stop.value
            return value
