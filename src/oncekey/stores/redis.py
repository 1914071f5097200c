"""Records in Redis or Valkey: one hash for each, changed only by Lua scripts.

What is where: `schema/redis/*.lua` are the verbs, `redis_calls` calls them, `redis_walk` is for
verbs that name no record, `redis_fitness` judges the server. This file is the store, and the only
one that knows the driver.

Time and fences
    Every script reads the server's clock. A fence is max(previous + 1, that clock in microseconds),
    so it also rises over a record that expired and vanished, unless the clock is set back by more
    than that record's retention.

Expiry
    Completed and released records carry an expiry and vanish by themselves. Running and unknown
    ones carry none: only `Sweep` removes them, by their own deadline.

Full memory
    A server that does not evict refuses new claims when its memory is full; attempts that run can
    still renew, finish and release. A refused claim has left nothing behind.

Replicas
    A failover can forget what was acknowledged a moment before. With `wait_replicas` nothing is
    told, neither written nor found, before that many replicas have it: WAIT covers only the writes
    of its own connection, so each batch ends with a mark, written behind everything that it found.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import hiredis
import redis.asyncio.connection as async_driver
import redis.connection as driver
from hiredis import pack_command
from redis.exceptions import (
    BusyLoadingError,
    InvalidResponse,
    NoPermissionError,
    NoScriptError,
    RedisError,
    ResponseError,
)

from oncekey.core.op import Op
from oncekey.core.verbs import AppendStep, Find, Insert, Peek, Requested, Steps, Swap, Verb
from oncekey.errors import Misuse, StoreError, StoreUnavailable, StoreUnfit
from oncekey.stores import redis_fitness as fitness
from oncekey.stores.base import AGAIN, Durability
from oncekey.stores.patience import Patience
from oncekey.stores.redis_calls import COMMANDS, OUTCOMES, TEXTS, Command, call
from oncekey.stores.redis_walk import Walker

_log = logging.getLogger("oncekey")

_LOADS: list[Command] = [("SCRIPT", "LOAD", text) for text in TEXTS.values()]

_PREFIX = re.compile(r"[A-Za-z0-9_.:{}-]{1,64}")
_WALK = "walk"
_LANES: dict[type, str] = dict.fromkeys((Find, Peek, Steps, Requested), "read")
_LANES |= {Insert: "insert", Swap: "swap", AppendStep: "swap"}


class RedisStore:
    """Records on one Redis or Valkey server. `open_url` makes one of a URL."""

    name = "redis"
    durability: Durability = fitness.UNCERTAIN
    """As the server is set, once a connection has looked."""

    def __init__(
        self,
        *,
        host: str = "localhost",
        port: int = 6379,
        path: str | None = None,
        db: int = 0,
        username: str | None = None,
        password: str | None = None,
        tls: bool = False,
        prefix: str = "oncekey",
        timeout_s: float = 5.0,
        connect_timeout_s: float = 5.0,
        wait_replicas: int = 0,
        wait_timeout_s: float = 1.0,
        allow: Collection[str] = (),
        driver_options: Mapping[str, Any] | None = None,
    ) -> None:
        """`path` names a Unix socket; `driver_options` go to redis-py's connection as they are."""
        if not _PREFIX.fullmatch(prefix):
            raise Misuse(
                f"prefix={prefix!r}: 1 to 64 letters, digits and _ . : {{ }} - are allowed"
            )
        if set(allow) - {fitness.EVICTION}:
            raise Misuse(f"allow={sorted(allow)}: only {fitness.EVICTION!r} can be allowed")
        if wait_replicas and not 0.001 <= wait_timeout_s < timeout_s:
            raise Misuse(f"wait_timeout_s={wait_timeout_s} must be below timeout_s={timeout_s}")
        self._prefix = prefix
        self._allow = frozenset(allow)
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._wait_replicas = wait_replicas
        self._tail: list[Command] = []
        if wait_replicas:
            wait = ("WAIT", wait_replicas, round(wait_timeout_s * 1000))
            self._tail = [call("mark", f"{prefix}:mark"), wait]
        self._walker = Walker(prefix, self._ask_all, partial(self._ask_all, tail=self._tail))
        self._warned: set[str] = set()

        self._kind = "unix" if path else "rediss" if tls else "redis"
        self._address = f"unix://{path}?db={db}" if path else f"{self._kind}://{host}:{port}/{db}"
        self._options = {
            **({"path": path} if path else {"host": host, "port": port}),
            "db": db,
            "username": username,
            "password": password,
            "socket_connect_timeout": connect_timeout_s,
            **(driver_options or {}),
        }
        try:
            self._link()
        except TypeError as error:
            raise Misuse(f"{self._address}: redis-py does not take this option: {error}") from error

    def __repr__(self) -> str:
        return f"RedisStore({self._address!r}, prefix={self._prefix!r})"

    # ------------------------------------------------------------------------------------ verbs

    def group(self, verb: Verb) -> Hashable:
        # Renewals have their own: a healthy lease must not lapse behind a queue of large answers.
        if type(verb) is Swap and verb.lease_s is not None and verb.claim is None:
            return "renew"
        return _LANES.get(type(verb), _WALK)

    def perform(self, verbs: Sequence[Any]) -> Op[list[Any]]:
        lane = self.group(verbs[0])
        if lane == _WALK:
            outcomes = []
            for verb in verbs:
                outcomes.append((yield from self._walker.perform(verb)))
            return outcomes
        keys = [f"{self._prefix}:{verb.id.hex()}" for verb in verbs]
        commands = [COMMANDS[type(verb)](verb, key) for verb, key in zip(verbs, keys, strict=True)]
        replies = yield from self._exchange(commands, [] if lane == "read" else self._tail)
        if all(isinstance(reply, RedisError) for reply in replies):
            raise self._judged(replies[0])
        # If some were carried out, the others are asked again, alone, to fail for their own reason.
        return [
            AGAIN if isinstance(reply, RedisError) else OUTCOMES[type(verb)](verb, reply)
            for verb, reply in zip(verbs, replies, strict=True)
        ]

    def _exchange(self, commands: list[Command], tail: list[Command]) -> Op[list[Any]]:
        """The replies to the commands, errors among them as values, when replicas have them."""
        replies: list[Any] = yield commands + tail
        if NoScriptError in map(type, replies):
            replies = yield from self._load(commands, replies, tail)
        if tail:
            self._check_acknowledged(replies[len(commands) :])
        return replies[: len(commands)]

    def _load(
        self, commands: list[Command], replies: list[Any], tail: list[Command]
    ) -> Op[list[Any]]:
        """Teach the server the scripts: it is new, or was restarted or flushed.

        What it did not know it did not do, and is asked to do again; the other replies stand.
        """
        missing = [at for at in range(len(commands)) if type(replies[at]) is NoScriptError]
        answers: list[Any] = yield [*_LOADS, *(commands[at] for at in missing), *tail]
        loaded, again = answers[: len(_LOADS)], answers[len(_LOADS) :]
        errors = [reply for reply in loaded if isinstance(reply, RedisError)]
        for at, reply in zip(missing, again, strict=False):
            replies[at] = errors[0] if errors else reply
        return replies[: len(commands)] + again[len(missing) :]

    def _check_acknowledged(self, replies: list[Any]) -> None:
        for reply in replies:
            if isinstance(reply, RedisError):
                raise StoreUnavailable(f"{self._address} cannot wait for replicas: {reply}")
        if replies[-1] < self._wait_replicas:
            raise StoreUnavailable(
                f"{replies[-1]} of {self._wait_replicas} replicas of {self._address} acknowledged "
                "in time, so a failover may forget this write: see `redis-cli INFO replication`"
            )

    def _ask_all(self, commands: list[Command], tail: Sequence[Command] = ()) -> Op[list[Any]]:
        """The replies, where every command must succeed."""
        if not commands:
            return []
        replies = yield from self._exchange(commands, list(tail))
        for reply in replies:
            if isinstance(reply, RedisError):
                raise self._judged(reply, sent=len(commands) > 1)
        return replies

    def _judged(self, error: RedisError, *, sent: bool = False) -> StoreError:
        """What an error that the server answered means; `sent` if it may have done other things."""
        if isinstance(error, NoPermissionError):
            rule = fitness.acl_rule(self._prefix)
            return StoreUnfit(
                f"{self._address}: {error}. Allow it: `redis-cli ACL SETUSER <user> {rule}`"
            )
        if (why := fitness.refusal(str(error), getattr(error, "status_code", None))) is not None:
            return StoreUnavailable(f"{self._address} refused: {why}", sent=sent)
        return StoreError(f"{self._address}: {error}")

    # ---------------------------------------------------------------------------------- fitness

    def prepare(self) -> Op[None]:
        (reply,) = yield [("INFO",)]
        info: dict[str, str] = {}
        if isinstance(reply, RedisError):
            self._warn(
                f"INFO is not allowed ({reply}), so version, role, eviction, cluster mode and "
                "durability are not checked: see to it that maxmemory-policy is noeviction"
            )
        else:
            info = fitness.read_info(reply)
        fitness.check_server(info, self._address, self._allow)
        if info.get("cluster_enabled") == "1":
            (reply,) = yield from self._ask_all([("CLUSTER", "INFO")])
            fitness.check_cluster(fitness.read_info(reply), self._address)
        yield from self._schema()
        yield from self._learn_durability(info)

    def _learn_durability(self, info: Mapping[str, str]) -> Op[None]:
        appendfsync = None
        if info.get("aof_enabled") == "1":
            (reply,) = yield [("CONFIG", "GET", "appendfsync")]
            if isinstance(reply, RedisError):
                self._warn(f"CONFIG GET is not allowed ({reply}), so appendfsync is not known")
            else:  # a dictionary in RESP3, else a list
                *_, value = reply.values() if isinstance(reply, dict) else reply
                appendfsync = value.decode()
        self.durability = fitness.durability(info, appendfsync)
        if info.get("aof_enabled") == "0":
            self._warn(f"{self.durability.note}: `redis-cli CONFIG SET appendonly yes`")

    def _warn(self, message: str) -> None:
        """Once, not for every connection."""
        if message not in self._warned:
            self._warned.add(message)
            _log.warning("%s: %s", self._address, message)

    def migrate(self) -> Op[list[str]]:
        before = yield from self._schema()
        return [name for number, name in fitness.MIGRATIONS.items() if number > before]

    def _schema(self) -> Op[int]:
        """Check the schema's number, and raise it to ours: the number that was there before."""
        ask = call("schema", f"{self._prefix}:schema", fitness.SCHEMA, fitness.OLDEST_READER)
        ((version, oldest_reader, before),) = yield from self._ask_all([ask])
        fitness.check_schema(int(version), int(oldest_reader), self._address)
        return int(before)

    # ------------------------------------------------------------------------------ connections

    def connect(self) -> RedisConnection:
        link = self._link()
        try:
            link.connect()
        except (RedisError, OSError) as error:
            raise self._unreachable(error) from error
        return RedisConnection(link, self._address)

    async def aconnect(self) -> AsyncRedisConnection:
        link = _ASYNC_LINKS[self._kind](**self._options, socket_timeout=None)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await link.connect()
        except (RedisError, OSError) as error:  # a timeout is an OSError
            await link.disconnect(nowait=True)
            raise self._unreachable(error) from error
        return AsyncRedisConnection(link, self._address, self._timeout_s)

    def _link(self) -> Any:
        return _LINKS[self._kind](**self._options, socket_timeout=self._timeout_s)

    def _unreachable(self, error: Exception) -> StoreUnavailable:
        why = str(error) or f"no answer within {self._connect_timeout_s} s"
        return StoreUnavailable(f"cannot connect to {self._address}: {why}", sent=False)


# A question is a list of commands. They leave in one write, and the replies come back as one list,
# errors among them as values. The driver's connection sees to names, TLS, AUTH and SELECT; commands
# are packed by hiredis itself, because the driver packs them for async callers in plain Python.

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


_NOTHING_YET = object()
_UNASKED = getattr(hiredis, "PushNotification", ())
"""What a server says unasked, in RESP3; older releases of hiredis do not tell."""


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
        packed = b"".join(map(pack_command, question))
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
        self._patience = Patience(lambda: self._fail(TimeoutError()))
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
        packed = b"".join(map(pack_command, question))
        if self._transport.is_closing():
            raise StoreUnavailable(f"{self._address} has closed the connection", sent=False)
        replies: list[Any] = []
        self._replies = replies
        self._wanted = len(question)
        self._answered = self._loop.create_future()
        self._patience.begin(self._timeout_s)
        try:
            self._transport.write(packed)
            await self._answered
        except (RedisError, OSError) as error:
            raise _broken(self._address, error, replies) from error
        except asyncio.CancelledError:
            await self.close()
            raise
        finally:
            self._patience.end()
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
        self._patience.close()
        await self._link.disconnect(nowait=True)


# ------------------------------------------------------------------------------------------- URLs

_SCHEMES = {"valkey": "redis", "valkeys": "rediss", "redis+unix": "unix"}
_PLACE = ("host", "port", "path", "db", "username", "password")
_OPTIONS: dict[str, Callable[[str], Any]] = {
    "prefix": str,
    "timeout_s": float,
    "connect_timeout_s": float,
    "wait_replicas": int,
    "wait_timeout_s": float,
    "allow": lambda text: text.split(","),
}


def open_url(url: str) -> RedisStore:
    """`redis://user:password@host:port/db`, `rediss://` with TLS, `unix:///path?db=0`, `valkey://`.

    Behind the `?`: `prefix`, `timeout_s`, `connect_timeout_s`, `wait_replicas`, `wait_timeout_s`
    and `allow=eviction`, as `RedisStore` has them. Anything else is redis-py's: `ssl_ca_certs`,
    `client_name`, `protocol` and so on.
    """
    scheme, _, rest = url.partition("://")
    scheme = _SCHEMES.get(scheme.lower(), scheme.lower())
    try:
        parts: dict[str, Any] = driver.parse_url(f"{scheme}://{rest}")  # type: ignore[no-untyped-call]
        options = {name: read(parts.pop(name)) for name, read in _OPTIONS.items() if name in parts}
    except ValueError:
        # The driver's message stays unseen: it takes half a password for a port, and shows it.
        raise Misuse(
            f"this {scheme}:// URL cannot be read: timeouts and counts must be numbers, and "
            "special characters in the password percent-encoded"
        ) from None
    parts.pop("connection_class", None)
    place = {name: parts.pop(name) for name in _PLACE if name in parts}
    return RedisStore(tls=scheme == "rediss", driver_options=parts, **place, **options)
