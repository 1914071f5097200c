"""Connections to MySQL and MariaDB: the only file that knows the drivers, asyncmy for event loops
and PyMySQL for threads; and which parts of a URL are theirs, which are ours, what may be shown.

Connections
    Each lane of the gatherer holds one, in autocommit; there is no pool. What matters of a session
    is set when it is made: READ COMMITTED, a strict `sql_mode`, UTC, how long to wait for a row. A
    question is one packet with several statements, so no proxy that spreads statements over servers
    or sessions can stand in between.

Replies that do not come
    Every question has a timeout on this side. After it the connection is dropped and the caller is
    told that the outcome is unknown; it repeats the verb, which then waits for the row of the
    transaction in doubt and recognises its own token.
"""

from __future__ import annotations

import asyncio
import math
import select
import ssl
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import asyncmy
import pymysql
from asyncmy import errors as asyncmy_errors
from pymysql.connections import Connection as PyMySQLConnection
from pymysql.constants import CLIENT

from oncekey._system.clock import SystemClock
from oncekey.errors import Misuse, StoreUnavailable, StoreUnfit, TooLong
from oncekey.stores.connection import AnswerTimer
from oncekey.stores.mysql import checks, durability
from oncekey.stores.mysql.statements import Question, Reply
from oncekey.stores.mysql.writes import Limits
from oncekey.stores.sql_batch import Denied, RowHeld
from oncekey.stores.urls import canonical_host, redact, scrub

# ------------------------------------------------------------------------------ addresses

_PORT = 3306


@dataclass(frozen=True, slots=True)
class Address:
    """A URL, and where it leads."""

    url: str
    unix_socket: str | None = None
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"Address({self.safe_url!r})"  # error trackers store local variables

    @property
    def safe_url(self) -> str:
        return redact(self.url)

    def driver(self) -> dict[str, Any]:
        """Return the arguments that both drivers take."""
        parts = urlsplit(self.url)
        given: dict[str, Any] = {
            "host": parts.hostname or "localhost",
            "port": parts.port or _PORT,
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
            "database": unquote(parts.path[1:]),
        }
        if self.unix_socket is not None:
            given["unix_socket"] = self.unix_socket
        if self.tls is not None:
            given["ssl"] = self.tls
        return given

    @property
    def location(self) -> tuple[Hashable, ...]:
        """The server and the database, however they were named."""
        where = self.driver()
        server = where.get("unix_socket") or (canonical_host(where["host"]), where["port"])
        return server, where["database"]

    def scrub(self, text: str) -> str:
        """Remove the password, if a driver quoted it."""
        return scrub(self.url, text)


def parse_url(url: str) -> tuple[Address, dict[str, Any]]:
    """Split a URL into an address and the options of the store."""
    base, _, query = url.partition("?")
    parts = urlsplit(base)
    if not parts.username or not parts.path[1:]:
        raise Misuse(
            f"{redact(base)} names no {'database' if parts.username else 'user'}: write "
            "mysql://user:password@host/database"
        )
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        options |= _option(name, value)
    place = {name: options.pop(name) for name in ("unix_socket", "tls") if name in options}
    return Address(base, **place), options


def _option(name: str, value: str) -> dict[str, Any]:
    if name == "allow":
        return {name: value.split(",")}
    if name == "unix_socket" and value:
        return {name: value}
    if name == "tls" and value == "true":
        return {"tls": ssl.create_default_context()}
    if name == "tls_ca":
        try:
            return {"tls": ssl.create_default_context(cafile=value)}
        except (OSError, ssl.SSLError) as error:
            raise Misuse(f"tls_ca={value} cannot be read as certificates: {error}") from error
    if name in ("timeout_s", "connect_timeout_s"):
        try:
            return {name: float(value)}
        except ValueError:
            pass  # reported below
    raise Misuse(
        f"{name}={value} is not understood. There are "
        "allow=unsafe-durability,small-packets,few-connections, tls=true, tls_ca=FILE, "
        "unix_socket=PATH, timeout_s=5 and connect_timeout_s=5"
    )


# ------------------------------------------------------------------------- the two drivers


class MySQLDriver:
    """Connects to one server, and says in the words of the contract what goes wrong there."""

    def __init__(self, address: Address, limits: Limits, connect_timeout_s: float) -> None:
        self.address = address
        self.limits = limits
        self.shows_early = False
        """Whether the server shows a commit to others before it is on disk: `durability`."""
        self._connect_timeout_s = connect_timeout_s

    def session(self) -> str:
        """Return how a session begins. The last reply says how long a packet may be."""
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
                # Otherwise it loads all certificates that the system trusts, and checks none.
                ssl_disabled=self.address.tls is None,
            )
            return MySQLConnection(self, connection)
        except (*DRIVER_ERRORS, RuntimeError) as error:
            raise self.translate(error, sent=False) from self._cause(error)

    async def aconnect(self) -> AsyncMySQLConnection:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                connection = await asyncmy.connect(
                    **self.address.driver(), autocommit=True, charset="utf8mb4"
                )
                return await AsyncMySQLConnection(self, connection).begin()
        except (*DRIVER_ERRORS, RuntimeError) as error:
            raise self.translate(error, sent=False) from self._cause(error)

    def packet(self, question: Question, bytes_max: int) -> str:
        """Return the text of a question, which is ASCII."""
        parts = question.statements
        if question.atomic:
            flush = durability.WRITES if question.flushed and self.shows_early else ()
            parts = ("START TRANSACTION", *parts, *flush, "COMMIT")
        text = "; ".join((*parts, *question.after))
        if len(text) >= bytes_max:
            raise TooLong(
                f"{self.address.safe_url}: this needs a packet of {len(text)} bytes, the server "
                f"takes {bytes_max}: raise max_allowed_packet there, or keep shorter answers"
            )
        return text

    def unavailable(self, why: str, *, sent: bool) -> StoreUnavailable:
        return StoreUnavailable(f"{self.address.safe_url}: {self.address.scrub(why)}", sent=sent)

    def translate(self, error: Any, *, sent: bool = True) -> Exception:
        """Translate a driver's error into one of the contract; keep those that the verb caused."""
        safe_url = self.address.safe_url
        why = self.address.scrub(str(error) or type(error).__name__)
        match error.args[0] if error.args else None:
            case 1205 | 1213:  # lock wait timeout, deadlock
                return RowHeld(f"{safe_url}: another transaction holds the record", sent=sent)
            case 1146:  # no such table
                return StoreUnfit(
                    f"{safe_url} has no oncekey tables: run `oncekey migrate {safe_url}` ({why})"
                )
            case 1044 | 1142 | 1143 | 1227:  # not allowed
                return Denied(
                    f"{safe_url}: {why}. The user needs SELECT, INSERT, UPDATE and DELETE on the "
                    "oncekey tables, and CREATE and ALTER to migrate"
                )
            case 1665:  # no READ COMMITTED with statements in the binary log
                return StoreUnfit(f"{safe_url}: {why}. Set binlog_format = ROW or MIXED there")
        if sent and isinstance(error, _OWN_FAULTS):
            own: Exception = error
            return own
        # The drivers' other RuntimeError: the server hung up while they prepared the connection.
        if isinstance(error, RuntimeError) and "package is required" in why:
            return StoreUnfit(f"{safe_url}: {why}. Install it, or connect with tls=true")
        return self.unavailable(why, sent=sent)

    def _cause(self, error: Exception) -> Exception | None:
        """Return the error as a cause, unless it quotes the password."""
        return error if self.address.scrub(str(error)) == str(error) else None


DRIVER_ERRORS = (OSError, TimeoutError, pymysql.MySQLError, asyncmy_errors.MySQLError)
_OWN_FAULTS = tuple(
    getattr(errors, name)
    for errors in (pymysql.err, asyncmy_errors)
    for name in ("DataError", "IntegrityError", "ProgrammingError", "NotSupportedError")
)
_GONE = "the server has closed the connection"


def _late(timeout_s: float) -> str:
    return f"no answer within {timeout_s:g} s"


def _answers(question: Question, replies: list[Reply]) -> list[Reply]:
    """Drop the replies to the statements around a transaction."""
    if question.atomic:
        del replies[1 + len(question.statements) : len(replies) - len(question.after)], replies[0]
    return replies


class AsyncMySQLConnection:
    """Ask with asyncmy."""

    def __init__(self, driver: MySQLDriver, connection: Any) -> None:
        self._driver = driver
        self._connection = connection
        self._timer = AnswerTimer(self._give_up)
        self._bytes_max = 0
        self._late = False

    async def begin(self) -> AsyncMySQLConnection:
        *_, last = await self._replies(self._driver.session())
        self._bytes_max = int(str(last.rows[0][0]))
        return self

    async def ask(self, question: Question) -> list[Reply]:
        if not self._connection.connected or self._connection._stream_broken:
            raise self._driver.unavailable(_GONE, sent=False)
        text = self._driver.packet(question, self._bytes_max)
        timeout_s = self._driver.limits.of(question)
        self._timer.begin(timeout_s)
        try:
            return _answers(question, await self._replies(text))
        except DRIVER_ERRORS as error:
            if self._late:
                raise self._driver.unavailable(_late(timeout_s), sent=True) from error
            translated = self._driver.translate(error)
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
        """End the transaction and its locks: a failed statement does not."""
        try:
            await self._replies("ROLLBACK")
        except DRIVER_ERRORS as error:
            self._abort()
            raise self._driver.translate(error) from error

    def _give_up(self) -> None:
        self._late = True
        self._abort()

    def _abort(self) -> None:
        """Hang up at once, without waiting for a server that does not read."""
        if self._connection._transport is not None:
            self._connection._transport.abort()
        self._connection.close()

    async def close(self) -> None:
        self._timer.close()
        self._abort()


class MySQLConnection:
    """Ask with PyMySQL."""

    def __init__(self, driver: MySQLDriver, connection: _Bounded) -> None:
        self._driver = driver
        self._connection = connection
        *_, last = self._replies(driver.session())
        self._bytes_max = int(str(last.rows[0][0]))

    def ask(self, question: Question) -> list[Reply]:
        if self._connection.is_gone():
            raise self._driver.unavailable(_GONE, sent=False)
        text = self._driver.packet(question, self._bytes_max)
        timeout_s = self._driver.limits.of(question)
        self._connection.deadline = SystemClock.monotonic() + timeout_s
        try:
            return _answers(question, self._replies(text))
        except DRIVER_ERRORS as error:
            if self._connection.is_late():
                self._connection.hang_up()
                raise self._driver.unavailable(_late(timeout_s), sent=True) from error
            translated = self._driver.translate(error)
            if question.atomic and self._connection.open:
                self._roll_back()
            if translated is error:
                raise
            raise translated from error
        except BaseException:
            self._connection.hang_up()  # interrupted: it may still carry a reply
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
            raise self._driver.translate(error) from error

    def close(self) -> None:
        self._connection.hang_up()


class _Bounded(PyMySQLConnection):  # type: ignore[misc]
    """A connection that waits for the server until its deadline."""

    deadline = math.inf

    def is_gone(self) -> bool:
        """Whether the server hung up: unasked, it sends only that."""
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
