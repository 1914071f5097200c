"""Connect to Redis servers: the only file that imports the driver.

A question to a `RedisConnection` is a list of commands. They are sent in one write, and the replies
come back as one list, with errors among them as values. The driver's connection handles names, TLS,
AUTH and SELECT. Commands are packed by hiredis directly, because the driver packs them in plain
Python for async callers.

With more than one server, a question to `NodeConnections` is an address and the commands.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import hiredis
import redis.asyncio.connection as async_driver
import redis.connection as driver
from hiredis import pack_command
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    MovedError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from oncekey._core.op import Pause
from oncekey.errors import StoreUnavailable
from oncekey.stores.connection import AnswerTimer
from oncekey.stores.redis.verbs import Command

Address = tuple[str, int]
"""Host and port."""

__all__ = [
    "Address",
    "AskError",
    "AsyncNodeConnections",
    "AsyncRedisConnection",
    "ClusterDownError",
    "Endpoint",
    "MovedError",
    "NoPermissionError",
    "NoScriptError",
    "NodeConnections",
    "ReadOnlyError",
    "RedisConnection",
    "RedisError",
    "TryAgainError",
    "parse_url",
]

_DRIVER_CLASSES: dict[str, Any] = {
    "redis": driver.Connection,
    "rediss": driver.SSLConnection,
    "unix": driver.UnixDomainSocketConnection,
}
_ASYNC_DRIVER_CLASSES: dict[str, Any] = {
    "redis": async_driver.Connection,
    "rediss": async_driver.SSLConnection,
    "unix": async_driver.UnixDomainSocketConnection,
}

_NEEDS_PASSWORD = ("HELLO must be called with the client already auth", "Authentication required")
"""How servers answer a client that sends no password; a wrong password gets another error."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address, and how to connect to it."""

    kind: str
    options: Mapping[str, Any]
    timeout_s: float
    connect_timeout_s: float

    def __repr__(self) -> str:
        return f"Endpoint({str(self)!r})"  # no password: error trackers record local variables

    def __str__(self) -> str:
        db = self.options.get("db", 0)
        if self.kind == "unix":
            return f"unix://{self.options['path']}?db={db}"
        return f"{self.kind}://{self.options['host']}:{self.options['port']}/{db}"

    def at(self, address: Address) -> Endpoint:
        """Return the same endpoint at another address."""
        host, port = address
        return replace(self, options={**self.options, "host": host, "port": port})

    def with_timeout(self, timeout_s: float) -> Endpoint:
        """Return the same endpoint with another timeout."""
        options = {**self.options, "socket_connect_timeout": timeout_s}
        return replace(self, options=options, timeout_s=timeout_s, connect_timeout_s=timeout_s)

    def driver_connection(self) -> Any:
        """Return the driver's connection, unconnected. Raise TypeError for unknown options."""
        return _DRIVER_CLASSES[self.kind](**self.options, socket_timeout=self.timeout_s)

    def connect(self) -> RedisConnection:
        driver_connection = self.driver_connection()
        try:
            driver_connection.connect()
        except (RedisError, OSError) as error:
            raise self._connect_error(error) from error
        return RedisConnection(driver_connection, str(self))

    async def aconnect(self) -> AsyncRedisConnection:
        driver_connection = _ASYNC_DRIVER_CLASSES[self.kind](**self.options, socket_timeout=None)
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                await driver_connection.connect()
        except (RedisError, OSError) as error:  # a timeout is an OSError
            await driver_connection.disconnect(nowait=True)
            raise self._connect_error(error) from error
        return AsyncRedisConnection(driver_connection, str(self), self.timeout_s)

    def _connect_error(self, error: Exception) -> StoreUnavailable:
        why = str(error) or f"no answer within {self.connect_timeout_s} s"
        if why.startswith(_NEEDS_PASSWORD) and not self.options.get("password"):
            why = f"it requires a password: write {self.kind}://user:password@… in its URL"
        return StoreUnavailable(f"cannot connect to {self}: {why}", sent=False)


def parse_url(url: str) -> dict[str, Any]:
    """Parse `redis://`, `rediss://` and `unix://` as the driver does. Raise ValueError."""
    parts: dict[str, Any] = driver.parse_url(url)  # type: ignore[no-untyped-call]
    parts.pop("connection_class", None)
    return parts


# -------------------------------------------------------------------------------------- one server

_INCOMPLETE = object()
_NUMBERS = (int, float)
_PUSH = getattr(hiredis, "PushNotification", ())
"""Messages that a RESP3 server sends unasked; older releases of hiredis do not have the class."""


def encode_command(command: Command) -> bytes:
    """Encode a command for sending. Numbers are formatted here: hiredis crashes the process if a
    signal handler raises while it formats one.
    """
    return bytes(pack_command(tuple([_encode_number(part) for part in command])))


def _encode_number(part: Any) -> Any:
    return b"%a" % part if type(part) in _NUMBERS else part


def _lost_reply(address: str, error: Exception, replies: Sequence[Any]) -> StoreUnavailable:
    if isinstance(error, BusyLoadingError) and not replies:
        return StoreUnavailable(f"{address} is still loading its data", sent=False)
    return StoreUnavailable(f"{address} did not answer: {str(error) or 'too late'}", sent=True)


class RedisConnection:
    """Answer lists of commands, blocking."""

    def __init__(self, driver_connection: Any, address: str) -> None:
        self._driver_connection = driver_connection
        self._address = address

    def ask(self, question: Sequence[Command]) -> list[Any]:
        packed = b"".join(map(encode_command, question))
        replies: list[Any] = []
        try:
            self._driver_connection.send_packed_command([packed], check_health=False)
            while len(replies) < len(question):
                try:
                    replies.append(self._driver_connection.read_response())
                except ResponseError as refusal:
                    replies.append(refusal)
        except (RedisError, OSError) as error:
            raise _lost_reply(self._address, error, replies) from error
        return replies

    def close(self) -> None:
        self._driver_connection.disconnect()


class AsyncRedisConnection(asyncio.Protocol):
    """Answer lists of commands, awaited.

    The driver makes the connection; then its transport is read and written here, because the driver
    awaits every reply separately, which takes longer than everything else a verb costs.
    """

    def __init__(self, driver_connection: Any, address: str, timeout_s: float) -> None:
        self._driver_connection = driver_connection
        self._address = address
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._timer = AnswerTimer(lambda: self._fail(TimeoutError()))
        self._parser = hiredis.Reader(
            protocolError=InvalidResponse,
            replyError=driver.DefaultParser.parse_error,
            notEnoughData=_INCOMPLETE,
        )
        self._replies: list[Any] = []
        self._replies_expected = 0
        self._replied: asyncio.Future[None] = self._loop.create_future()
        self._replied.set_result(None)  # no question is pending
        self._transport: asyncio.Transport = driver_connection._writer.transport
        self._transport.set_protocol(self)

    async def ask(self, question: Sequence[Command]) -> list[Any]:
        packed = b"".join(map(encode_command, question))
        if self._transport.is_closing():
            raise StoreUnavailable(f"{self._address} has closed the connection", sent=False)
        replies: list[Any] = []
        self._replies = replies
        self._replies_expected = len(question)
        self._replied = self._loop.create_future()
        self._timer.begin(self._timeout_s)
        try:
            self._transport.write(packed)
            await self._replied
        except (RedisError, OSError) as error:
            raise _lost_reply(self._address, error, replies) from error
        except asyncio.CancelledError:
            await self.close()
            raise
        finally:
            self._timer.end()
        return replies

    def data_received(self, data: bytes) -> None:
        parser, replies = self._parser, self._replies
        parser.feed(data)
        try:
            while (reply := parser.gets()) is not _INCOMPLETE:
                if isinstance(reply, RedisError) and not isinstance(reply, ResponseError):
                    raise reply
                if not isinstance(reply, _PUSH):
                    replies.append(reply)
        except RedisError as error:
            self._fail(error)
        if len(replies) >= self._replies_expected and not self._replied.done():
            self._replied.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionResetError(str(exc or "it has closed the connection")))

    def _fail(self, error: Exception) -> None:
        if not self._replied.done():
            self._replied.set_exception(error)

    async def close(self) -> None:
        self._timer.close()
        await self._driver_connection.disconnect(nowait=True)


# ------------------------------------------------------------------------------------ many servers


class NodeConnections:
    """Answer (address, commands), blocking; connect to each node when it is first needed."""

    def __init__(self, endpoint_at: Callable[[Address], Endpoint]) -> None:
        self._endpoint_at = endpoint_at
        self._connections: dict[Address, RedisConnection] = {}

    def ask(self, question: tuple[Address, list[Command]] | Pause) -> Any:
        if isinstance(question, Pause):
            return threading.Event().wait(question.seconds)
        address, commands = question
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = self._endpoint_at(address).connect()
        try:
            return connection.ask(commands)
        except StoreUnavailable:
            self._connections.pop(address).close()
            raise

    def close(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()


class AsyncNodeConnections:
    """The same, awaited."""

    def __init__(self, endpoint_at: Callable[[Address], Endpoint]) -> None:
        self._endpoint_at = endpoint_at
        self._connections: dict[Address, AsyncRedisConnection] = {}

    async def ask(self, question: tuple[Address, list[Command]] | Pause) -> Any:
        if isinstance(question, Pause):
            return await asyncio.sleep(question.seconds)
        address, commands = question
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = await self._endpoint_at(address).aconnect()
        try:
            return await connection.ask(commands)
        except StoreUnavailable:
            await self._connections.pop(address).close()
            raise

    async def close(self) -> None:
        while self._connections:
            await self._connections.popitem()[1].close()
