"""Connections to Redis servers: the only file that knows the driver.

A question to a `RedisConnection` is a list of commands. They leave in one write, and the replies
come back as one list, errors among them as values. The driver's connection sees to names, TLS, AUTH
and SELECT; commands are packed by hiredis itself, because the driver packs them for async callers
in plain Python.

Where there is more than one server, a question to `Roads` says which: an address and the commands.
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
from oncekey.stores.redis.slots import Address
from oncekey.stores.redis.verbs import Command

__all__ = [
    "Address",
    "AskError",
    "AsyncRedisConnection",
    "AsyncRoads",
    "ClusterDownError",
    "Endpoint",
    "MovedError",
    "NoPermissionError",
    "NoScriptError",
    "ReadOnlyError",
    "RedisConnection",
    "RedisError",
    "Roads",
    "TryAgainError",
    "parse_url",
]

_LINKS: dict[str, Any] = {
    "redis": driver.Connection,
    "rediss": driver.SSLConnection,
    "unix": driver.UnixDomainSocketConnection,
}
_ASYNC_LINKS: dict[str, Any] = {
    "redis": async_driver.Connection,
    "rediss": async_driver.SSLConnection,
    "unix": async_driver.UnixDomainSocketConnection,
}

_WANTS_PASSWORD = ("HELLO must be called with the client already auth", "Authentication required")
"""What servers say to whoever sends none; to one that sends a wrong one they say so."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is, and how to connect to it."""

    kind: str
    options: Mapping[str, Any]
    timeout_s: float
    connect_timeout_s: float

    def __repr__(self) -> str:
        return f"Endpoint({str(self)!r})"  # error trackers keep what stands in local names

    def __str__(self) -> str:
        db = self.options.get("db", 0)
        if self.kind == "unix":
            return f"unix://{self.options['path']}?db={db}"
        return f"{self.kind}://{self.options['host']}:{self.options['port']}/{db}"

    def at(self, address: Address) -> Endpoint:
        """The same, at another address."""
        host, port = address
        return replace(self, options={**self.options, "host": host, "port": port})

    def within(self, timeout_s: float) -> Endpoint:
        """The same, with less patience."""
        options = {**self.options, "socket_connect_timeout": timeout_s}
        return replace(self, options=options, timeout_s=timeout_s, connect_timeout_s=timeout_s)

    def link(self) -> Any:
        """The driver's connection, not connected yet. Raises TypeError for unknown options."""
        return _LINKS[self.kind](**self.options, socket_timeout=self.timeout_s)

    def connect(self) -> RedisConnection:
        link = self.link()
        try:
            link.connect()
        except (RedisError, OSError) as error:
            raise self._unreachable(error) from error
        return RedisConnection(link, str(self))

    async def aconnect(self) -> AsyncRedisConnection:
        link = _ASYNC_LINKS[self.kind](**self.options, socket_timeout=None)
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                await link.connect()
        except (RedisError, OSError) as error:  # a timeout is an OSError
            await link.disconnect(nowait=True)
            raise self._unreachable(error) from error
        return AsyncRedisConnection(link, str(self), self.timeout_s)

    def _unreachable(self, error: Exception) -> StoreUnavailable:
        why = str(error) or f"no answer within {self.connect_timeout_s} s"
        if why.startswith(_WANTS_PASSWORD) and not self.options.get("password"):
            why = f"it wants a password: write {self.kind}://user:password@… in its URL"
        return StoreUnavailable(f"cannot connect to {self}: {why}", sent=False)


def parse_url(url: str) -> dict[str, Any]:
    """As the driver reads `redis://`, `rediss://` and `unix://`; raises ValueError."""
    parts: dict[str, Any] = driver.parse_url(url)  # type: ignore[no-untyped-call]
    parts.pop("connection_class", None)
    return parts


# -------------------------------------------------------------------------------------- one server

_NOTHING_YET = object()
_NUMBERS = (int, float)
_UNASKED = getattr(hiredis, "PushNotification", ())
"""What a server says unasked, in RESP3; older releases of hiredis do not tell."""


def packed_command(command: Command) -> bytes:
    """As it is sent. Numbers are written here: hiredis ends the process if a signal raises while
    it writes one.
    """
    return bytes(pack_command(tuple([_written(part) for part in command])))


def _written(part: Any) -> Any:
    return b"%a" % part if type(part) in _NUMBERS else part


def _broken(address: str, error: Exception, replies: Sequence[Any]) -> StoreUnavailable:
    if isinstance(error, BusyLoadingError) and not replies:
        return StoreUnavailable(f"{address} is still loading its data", sent=False)
    return StoreUnavailable(f"{address} did not answer: {str(error) or 'too late'}", sent=True)


class RedisConnection:
    """Answers lists of commands, blocking."""

    def __init__(self, link: Any, address: str) -> None:
        self._link = link
        self._address = address

    def ask(self, question: Sequence[Command]) -> list[Any]:
        packed = b"".join(map(packed_command, question))
        replies: list[Any] = []
        try:
            self._link.send_packed_command([packed], check_health=False)
            while len(replies) < len(question):
                try:
                    replies.append(self._link.read_response())
                except ResponseError as refusal:
                    replies.append(refusal)
        except (RedisError, OSError) as error:
            raise _broken(self._address, error, replies) from error
        return replies

    def close(self) -> None:
        self._link.disconnect()


class AsyncRedisConnection(asyncio.Protocol):
    """Answers lists of commands, awaited.

    Once the driver has connected, its transport is read and written here: the driver awaits every
    reply by itself, which takes longer than all else that is done for a verb.
    """

    def __init__(self, link: Any, address: str, timeout_s: float) -> None:
        self._link = link
        self._address = address
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._timer = AnswerTimer(lambda: self._fail(TimeoutError()))
        self._parser = hiredis.Reader(
            protocolError=InvalidResponse,
            replyError=driver.DefaultParser.parse_error,
            notEnoughData=_NOTHING_YET,
        )
        self._replies: list[Any] = []
        self._wanted = 0
        self._answered: asyncio.Future[None] = self._loop.create_future()
        self._answered.set_result(None)  # nothing was asked
        self._transport: asyncio.Transport = link._writer.transport
        self._transport.set_protocol(self)

    async def ask(self, question: Sequence[Command]) -> list[Any]:
        packed = b"".join(map(packed_command, question))
        if self._transport.is_closing():
            raise StoreUnavailable(f"{self._address} has closed the connection", sent=False)
        replies: list[Any] = []
        self._replies = replies
        self._wanted = len(question)
        self._answered = self._loop.create_future()
        self._timer.begin(self._timeout_s)
        try:
            self._transport.write(packed)
            await self._answered
        except (RedisError, OSError) as error:
            raise _broken(self._address, error, replies) from error
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
            while (reply := parser.gets()) is not _NOTHING_YET:
                if isinstance(reply, RedisError) and not isinstance(reply, ResponseError):
                    raise reply
                if not isinstance(reply, _UNASKED):
                    replies.append(reply)
        except RedisError as error:
            self._fail(error)
        if len(replies) >= self._wanted and not self._answered.done():
            self._answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionResetError(str(exc or "it has closed the connection")))

    def _fail(self, error: Exception) -> None:
        if not self._answered.done():
            self._answered.set_exception(error)

    async def close(self) -> None:
        self._timer.close()
        await self._link.disconnect(nowait=True)


# ------------------------------------------------------------------------------------ many servers


class Roads:
    """Answers (address, commands), blocking, on a connection to each that is made when needed."""

    def __init__(self, endpoint_at: Callable[[Address], Endpoint]) -> None:
        self._endpoint_at = endpoint_at
        self._roads: dict[Address, RedisConnection] = {}

    def ask(self, question: tuple[Address, list[Command]] | Pause) -> Any:
        if isinstance(question, Pause):
            return threading.Event().wait(question.seconds)
        address, commands = question
        road = self._roads.get(address)
        if road is None:
            road = self._roads[address] = self._endpoint_at(address).connect()
        try:
            return road.ask(commands)
        except StoreUnavailable:
            self._roads.pop(address).close()
            raise

    def close(self) -> None:
        while self._roads:
            self._roads.popitem()[1].close()


class AsyncRoads:
    """The same, awaited."""

    def __init__(self, endpoint_at: Callable[[Address], Endpoint]) -> None:
        self._endpoint_at = endpoint_at
        self._roads: dict[Address, AsyncRedisConnection] = {}

    async def ask(self, question: tuple[Address, list[Command]] | Pause) -> Any:
        if isinstance(question, Pause):
            return await asyncio.sleep(question.seconds)
        address, commands = question
        road = self._roads.get(address)
        if road is None:
            road = self._roads[address] = await self._endpoint_at(address).aconnect()
        try:
            return await road.ask(commands)
        except StoreUnavailable:
            await self._roads.pop(address).close()
            raise

    async def close(self) -> None:
        while self._roads:
            await self._roads.popitem()[1].close()
