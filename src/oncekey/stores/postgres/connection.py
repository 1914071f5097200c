"""Connections to PostgreSQL: the only file that knows the drivers, asyncpg for event loops and
psycopg for threads; and which parts of a URL are theirs, which are ours, and what may be shown.

Connections
    Each lane of the gatherer holds one, in autocommit; there is no pool. Nothing depends on the
    session, so PgBouncer in transaction mode can stand in between: `?pgbouncer=true` stops
    preparing statements and sending settings, neither of which it passes on.

Replies that do not come
    Every statement has a timeout on this side. After it the connection is dropped, but the
    statement is not cancelled: a COMMIT that waits for a standby is not bound by
    `statement_timeout`, and cancelling it leaves a commit that is not replicated. The caller is
    told that the outcome is unknown and repeats the verb; the conditional write then waits for the
    row of the transaction in doubt, and recognises its own token.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import asyncpg
import psycopg
from asyncpg.prepared_stmt import PreparedStatement
from psycopg import waiting
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.array import ListBinaryDumper

from oncekey._system.clock import SystemClock
from oncekey.errors import Misuse, StoreUnavailable, StoreUnfit
from oncekey.stores.connection import AnswerTimer
from oncekey.stores.postgres import checks
from oncekey.stores.postgres.verbs import Limits, Question
from oncekey.stores.sql_batch import Denied, FunctionGone, RowHeld
from oncekey.stores.urls import canonical_host, redact, scrub

# A prepared statement is planned once, perhaps while the tables are empty and reading them whole is
# cheapest. With the settings of plans it goes by the indexes, then and later.
_SETTINGS = {
    **checks.NEEDED,
    "client_min_messages": "warning",  # or `_is_doubt` would see nothing
    "default_transaction_isolation": "read committed",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}


# ------------------------------------------------------------------------------ addresses

_OWN = ("pgbouncer", "allow", "timeout_s", "connect_timeout_s")

# What libpq does on the client's side. asyncpg would take these for settings of the server.
_LIBPQ_ONLY = frozenset(
    {
        *("channel_binding", "connect_timeout", "fallback_application_name", "gssencmode"),
        *("keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval"),
        *("require_auth", "sslcompression", "sslsni", "tcp_user_timeout"),
    }
)


@dataclass(frozen=True, slots=True)
class Address:
    """A URL that libpq understands."""

    libpq: str

    def __repr__(self) -> str:
        return f"Address({self.safe_url!r})"  # error trackers store local variables

    @property
    def asyncpg(self) -> str:
        """The URL for asyncpg."""
        return _without(self.libpq, _LIBPQ_ONLY)

    @property
    def safe_url(self) -> str:
        return redact(self.libpq.partition("?")[0])

    @property
    def location(self) -> tuple[Hashable, ...]:
        """The servers and the database, however they were named."""
        parts = urlsplit(self.libpq)
        options = dict(parse_qsl(parts.query))
        given = parts.netloc.rpartition("@")[2].split(",")
        hosts = options["host"].split(",") if "host" in options else [_host(each) for each in given]
        ports = options["port"].split(",") if "port" in options else [_port(each) for each in given]
        if len(ports) < len(hosts):
            ports = ports[:1] * len(hosts)
        name = options.get("dbname") or unquote(parts.path[1:]) or unquote(parts.username or "")
        servers = [(canonical_host(h), p or "5432") for h, p in zip(hosts, ports, strict=False)]
        return *sorted(servers), name, options.get("options")

    def scrub(self, text: str) -> str:
        """Remove the password, if a driver quoted it."""
        return scrub(self.libpq, text)


def split(url: str) -> tuple[str, dict[str, Any]]:
    """Split a URL into one without our parameters, and these as options of the store."""
    options: dict[str, Any] = {}
    for pair in url.partition("?")[2].split("&"):
        name, _, value = pair.partition("=")
        if name in _OWN:
            options |= _option(name, unquote(value))
    return _without(url, frozenset(_OWN)), options


def with_application_name(url: str) -> str:
    """Add a name for `pg_stat_activity`, unless the URL has one."""
    base, _, query = url.partition("?")
    pairs = [pair for pair in query.split("&") if pair]
    if not any(pair.startswith("application_name=") for pair in pairs):
        pairs.append("application_name=oncekey")
    return f"{base}?{'&'.join(pairs)}"


def _host(given: str) -> str:
    """The host of `host:port` or `[::1]:port`."""
    return given[1:].partition("]")[0] if given.startswith("[") else given.partition(":")[0]


def _port(given: str) -> str:
    return given.rpartition("]")[2].rpartition(":")[2] if ":" in given else ""


def _without(url: str, names: frozenset[str]) -> str:
    # Kept letter for letter: libpq does not read "+" as a space, as Python's parsers do.
    base, _, query = url.partition("?")
    kept = [pair for pair in query.split("&") if pair and pair.partition("=")[0] not in names]
    return f"{base}?{'&'.join(kept)}" if kept else base


def _option(name: str, value: str) -> dict[str, Any]:
    if name == "pgbouncer" and value in ("true", "false"):
        return {name: value == "true"}
    if name == "allow":
        return {name: value.split(",")}
    if name.endswith("_s"):
        try:
            return {name: float(value)}
        except ValueError:
            pass  # told below
    raise Misuse(
        f"{name}={value} is not understood. There are pgbouncer=true, "
        "allow=unsafe-durability,few-connections, timeout_s=5 and connect_timeout_s=5"
    )


# ------------------------------------------------------------------------- the two drivers

T = TypeVar("T")
Rows = Sequence[Any]
SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


class PostgresDriver:
    """Connects to one server, and says in the words of the contract what goes wrong there."""

    def __init__(
        self, address: Address, limits: Limits, connect_timeout_s: float, *, pgbouncer: bool
    ) -> None:
        self.address = address
        self.limits = limits
        self.pgbouncer = pgbouncer
        self._connect_timeout_s = connect_timeout_s
        self._check_address()

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
            raise Misuse(f"{address.safe_url}: {address.scrub(why).strip()}")

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
            raise self.translate(error, sent=False) from self._cause(error)
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
            raise self.translate(error, sent=False) from self._cause(error)
        return AsyncPostgresConnection(self, connection)

    def unavailable(self, why: str, *, sent: bool) -> StoreUnavailable:
        return StoreUnavailable(f"{self.address.safe_url}: {self.address.scrub(why)}", sent=sent)

    def translate(self, error: Exception, *, sent: bool = True) -> Exception:
        """Translate a driver's error into one of the contract; keep those that the verb caused."""
        safe_url = self.address.safe_url
        why = self.address.scrub(str(error) or type(error).__name__)
        match getattr(error, "sqlstate", None):
            case "55P03":  # lock_timeout
                return RowHeld(f"{safe_url}: another transaction holds the record", sent=sent)
            case "42P01":  # no such table
                return StoreUnfit(
                    f"{safe_url} has no oncekey tables: run `oncekey migrate {safe_url}` ({why})"
                )
            case "42883":  # no such function
                return FunctionGone(
                    f"{safe_url}: {why}. A move to another layout is under way, or has just ended: "
                    f"try again. If it stays so, run `oncekey migrate {safe_url}`",
                    sent=sent,
                )
            case "42501":  # not allowed
                return Denied(
                    f"{safe_url}: {why}. The role needs SELECT, INSERT, UPDATE and DELETE on the "
                    "oncekey tables, and USAGE on their sequences; to migrate, it must own them, "
                    "or be allowed to create them"
                )
            case state if not self.pgbouncer and (
                state in _NOT_PASSED_ON or "unsupported startup parameter" in why
            ):
                return StoreUnfit(
                    f"{safe_url}: {why}. If a pooler such as PgBouncer answers there, add "
                    "pgbouncer=true to the URL"
                )
            case str(state) if sent and state[:2] not in _OUTAGES and state not in _OUTDATED:
                return error
            case None if isinstance(error, psycopg.DataError):  # refused before it was sent
                return error
        return self.unavailable(why, sent=sent)

    def _cause(self, error: Exception) -> Exception | None:
        """Return the error as a cause, unless it quotes the password."""
        return error if self.address.scrub(str(error)) == str(error) else None


# By class: connection, transaction rollback (deadlock, serialization), resources, operator
# intervention, system, internal.
_OUTAGES = {"08", "40", "53", "57", "58", "XX"}
# Reconnect: a primary has become a standby; a table was changed and prepared statements no longer
# fit it.
_OUTDATED = {"25006", "0A000"}
# Protocol violation, no such prepared statement, prepared statement exists: a pooler did not pass
# on what was sent before.
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
    """Whether this warns "committed locally, but might not have been replicated". The reply after
    it reports success, and must not be trusted. Recognised by its source: texts are translated.
    """
    return (source_file or "").endswith("syncrep.c")


_DOUBT = "a commit was cut short while it waited for a standby"
_GONE = "the server has closed the connection"


def _late(timeout_s: float) -> str:
    return f"no answer within {timeout_s:g} s"


def _was_refused(error: Exception) -> bool:
    """Whether asyncpg sent nothing: it has read a server's last message, but not yet that it hung
    up, and takes that for another running query. There never is one.
    """
    return isinstance(error, asyncpg.InternalClientError) and str(error).startswith("cannot switch")


class AsyncPostgresConnection:
    """Ask with asyncpg."""

    def __init__(
        self, driver: PostgresDriver, connection: asyncpg.Connection[asyncpg.Record]
    ) -> None:
        self._driver = driver
        self._connection = connection
        self._timer = AnswerTimer(self._give_up)
        self._statements: dict[str, PreparedStatement[asyncpg.Record]] = {}
        self._late = False
        self._doubt = False
        connection.add_log_listener(self._note_doubt)

    async def ask(self, question: Question) -> Rows:
        if self._connection.is_closed():
            raise self._driver.unavailable(_GONE, sent=False)
        timeout_s = self._driver.limits.of(question)
        self._timer.begin(timeout_s)
        try:
            statement = self._statements.get(question.sql)
            rows = await (statement.fetch(*question.args) if statement else self._first(question))
        except _DRIVER_ERRORS as error:
            if self._late:
                raise self._driver.unavailable(_late(timeout_s), sent=True) from error
            if _was_refused(error):
                raise self._driver.unavailable(_GONE, sent=False) from error
            translated = self._driver.translate(error)
            if translated is error:
                raise
            raise translated from error
        except asyncio.CancelledError:
            self._connection.terminate()  # before asyncpg cancels the statement
            raise
        finally:
            self._timer.end()
        if self._doubt:
            raise self._driver.unavailable(_DOUBT, sent=True)
        return rows

    async def _first(self, question: Question) -> Rows:
        """Prepare and ask a question for the first time. Scripts are not prepared."""
        if question.script:
            await self._connection.execute(question.sql)
            return ()
        statement = await self._connection.prepare(question.sql)
        self._statements[question.sql] = statement
        return await statement.fetch(*question.args)

    def _give_up(self) -> None:
        self._late = True
        self._connection.terminate()

    def _note_doubt(self, _: Any, message: asyncpg.PostgresLogMessage) -> None:
        self._doubt |= _is_doubt(message.server_source_filename)

    async def close(self) -> None:
        self._timer.close()
        try:
            await self._connection.close(timeout=1.0)
        except _DRIVER_ERRORS:
            self._connection.terminate()


class PostgresConnection:
    """Ask with psycopg."""

    def __init__(self, driver: PostgresDriver, connection: _Bounded) -> None:
        self._driver = driver
        self._connection = connection
        self._doubt = False
        connection.add_notice_handler(self._note_doubt)

    def ask(self, question: Question) -> Rows:
        connection = self._connection
        try:  # twice: first its last message, then that it has hung up
            connection.pgconn.consume_input()
            connection.pgconn.consume_input()
        except psycopg.OperationalError as error:
            raise self._driver.unavailable(_GONE, sent=False) from error
        timeout_s = self._driver.limits.of(question)
        connection.deadline = SystemClock.monotonic() + timeout_s
        try:
            rows = self._answer(question)
        except TimeoutError as error:
            raise self._driver.unavailable(_late(timeout_s), sent=True) from error
        except psycopg.Error as error:
            translated = self._driver.translate(error)
            if translated is error:
                raise
            raise translated from error
        except Exception:
            raise  # a value that cannot be encoded: nothing was sent
        except BaseException:
            connection.close()  # interrupted: it may still carry a reply
            raise
        if self._doubt:
            raise self._driver.unavailable(_DOUBT, sent=True)
        return rows

    def _answer(self, question: Question) -> Rows:
        statement = question.sql.encode()
        if question.script:
            self._connection.execute(statement, prepare=False)
            return ()
        cursor = self._connection.execute(statement, question.args, binary=True)
        return cursor.fetchall() if cursor.description else ()

    def _note_doubt(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        self._doubt |= _is_doubt(diagnostic.source_file)

    def close(self) -> None:
        self._connection.close()


class _Bounded(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits for the server until its deadline, and cancels nothing."""

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
