"""Records in Redis or Valkey: one hash for each, changed only by Lua scripts.

What is where: `*.lua` are the verbs, `verbs` calls them, `scan` is for
verbs that name no record, `redis_fitness` and `redis_look` judge the server, `redis_connection`
speaks to it. This file is the store on one server; `redis_sentinel` and `redis_cluster` find the
server first.

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

import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

from oncekey._core.op import Op
from oncekey._core.verbs import AppendStep, Find, Insert, Peek, Requested, Steps, Swap, Verb
from oncekey._system.warn_once import warn
from oncekey.errors import Misuse, StoreError, StoreUnavailable, StoreUnfit
from oncekey.stores.base import AGAIN, AsyncConnection, Connection, Durability
from oncekey.stores.checks import Examination, Sample, allowed
from oncekey.stores.redis import checks as fitness
from oncekey.stores.redis import inspection
from oncekey.stores.redis.connection import (
    Address,
    AskError,
    Endpoint,
    NoPermissionError,
    NoScriptError,
    RedisError,
    TryAgainError,
)
from oncekey.stores.redis.scan import Walker
from oncekey.stores.redis.verbs import COMMANDS, OUTCOMES, TEXTS, Command, call
from oncekey.stores.sql import check_waits

_LOADS: list[Command] = [("SCRIPT", "LOAD", text) for text in TEXTS.values()]

_PREFIX = re.compile(r"[A-Za-z0-9_.:{}-]{1,64}")
_READ, _WALK = "read", "walk"
_LANES: dict[type, str] = dict.fromkeys((Find, Peek, Steps, Requested), _READ)
_LANES |= {Insert: "insert", Swap: "swap", AppendStep: "swap"}


def lane(verb: Verb) -> str:
    """Which verbs travel together."""
    # Renewals have their own: a healthy lease must not lapse behind a queue of large answers.
    if type(verb) is Swap and verb.lease_s is not None and verb.claim is None:
        return "renew"
    return _LANES.get(type(verb), _WALK)


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
        check_waits(timeout_s=timeout_s, connect_timeout_s=connect_timeout_s)
        if wait_replicas < 0:
            raise Misuse(f"wait_replicas={wait_replicas} is no number of replicas")
        if wait_replicas and not 0.001 <= wait_timeout_s < timeout_s:
            raise Misuse(f"wait_timeout_s={wait_timeout_s} must be below timeout_s={timeout_s}")
        self.prefix = prefix
        self.allowed = allowed(allow, fitness.RISKS)
        self._wait_replicas = wait_replicas
        self._wait: Command = ("WAIT", wait_replicas, round(wait_timeout_s * 1000))
        self._walker = Walker(self)

        options = {
            **({"path": path} if path else {"host": host, "port": port}),
            "db": db,
            "username": username,
            "password": password,
            "socket_connect_timeout": connect_timeout_s,
            **(driver_options or {}),
        }
        kind = "unix" if path else "rediss" if tls else "redis"
        self.endpoint = Endpoint(kind, options, timeout_s, connect_timeout_s)
        self._address = str(self.endpoint)
        try:
            self.endpoint.link()
        except (TypeError, ValueError, RedisError) as error:
            raise Misuse(f"{self._address}: redis-py does not take this option: {error}") from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address!r}, prefix={self.prefix!r})"

    # ------------------------------------------------------------------------------------ verbs

    def group(self, verb: Verb) -> Hashable:
        return lane(verb)

    def perform(self, verbs: Sequence[Any]) -> Op[list[Any]]:
        kind = lane(verbs[0])
        if kind == _WALK:
            outcomes = []
            for verb in verbs:
                outcomes.append((yield from self._walker.perform(verb)))
            return outcomes
        commands = [COMMANDS[type(verb)](verb, self.key(verb.id)) for verb in verbs]
        replies = yield from self._exchange(commands, certain=kind != _READ)
        if all(isinstance(reply, RedisError) for reply in replies):
            raise self._judged(replies[0])
        # If some were carried out, the others are asked again, alone, to fail for their own reason.
        return [
            AGAIN if isinstance(reply, RedisError) else OUTCOMES[type(verb)](verb, reply)
            for verb, reply in zip(verbs, replies, strict=True)
        ]

    def _exchange(
        self, commands: list[Command], *, certain: bool, node: Address | None = None
    ) -> Op[list[Any]]:
        """The replies to the commands, errors among them as values.

        When `certain`, they come only after as many replicas as are waited for have all that they
        tell. `node` is for commands that name no key, where there are several servers.
        """
        return self._served(commands, [f"{self.prefix}:mark"] if certain else [])

    def _served(self, commands: list[Command], marks: Sequence[str]) -> Op[list[Any]]:
        """The replies of one server. Any of `marks` may be written for its replicas to wait for."""
        tail = self._tail(marks[0]) if marks and self._wait_replicas else []
        replies: list[Any] = yield commands + tail
        if NoScriptError in map(type, replies):
            replies = yield from self._load(commands, replies, tail)
        replies, acknowledged = replies[: len(commands)], replies[len(commands) :]
        if tail:
            for mark in marks[1:]:
                if not isinstance(acknowledged[0], (AskError, TryAgainError)):
                    break
                acknowledged = yield self._tail(mark)  # the first one's slot is just moving away
            self._check_acknowledged(acknowledged)
        return replies

    def _tail(self, mark: str) -> list[Command]:
        return [call("mark", mark), self._wait]

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

    def ask_all(
        self, commands: list[Command], *, certain: bool = False, node: Address | None = None
    ) -> Op[list[Any]]:
        """The replies, where every command must succeed."""
        if not commands:
            return []
        replies = yield from self._exchange(commands, certain=certain, node=node)
        for reply in replies:
            if isinstance(reply, RedisError):
                raise self._judged(reply, sent=len(commands) > 1)
        return replies

    # ------------------------------------------------------------------------ where things are

    def key(self, record_id: bytes) -> str:
        """Where a record is."""
        return f"{self.prefix}:{record_id.hex()}"

    @property
    def pattern(self) -> str:
        """What the keys of all records are like, and some others."""
        return f"{self.prefix}:*"

    def nodes(self) -> list[Address | None]:
        """The servers that hold keys; None where there is only one."""
        return [None]

    def lists(self, node: Address | None) -> list[str]:
        """The keys of that server's lists of what may be abandoned."""
        return [f"{self.prefix}:open"]

    # ---------------------------------------------------------------------------------- errors

    def _judged(self, error: RedisError, *, sent: bool = False) -> StoreError:
        """What an error that the server answered means; `sent` if it may have done other things."""
        if isinstance(error, NoPermissionError):
            rule = fitness.acl_rule(self.prefix)
            return StoreUnfit(
                f"{self._address}: {error}. Allow it: `redis-cli ACL SETUSER <user> {rule}`"
            )
        if (why := fitness.refusal(str(error), getattr(error, "status_code", None))) is not None:
            return StoreUnavailable(f"{self._address} refused: {why}", sent=sent)
        return StoreError(f"{self._address}: {error}")

    # ---------------------------------------------------------------------------------- fitness

    def prepare(self) -> Op[None]:
        yield from self._check_cluster((yield from self._examine()))
        yield from self._schema()

    def _check_cluster(self, info: Mapping[str, str]) -> Op[None]:
        if info.get("cluster_enabled") == "1":
            (reply,) = yield from self.ask_all([("CLUSTER", "INFO")])
            fitness.check_cluster(fitness.read_info(reply), self._address)

    def _examine(self) -> Op[Mapping[str, str]]:
        """Check the server by what it says of itself, and return that."""
        (reply,) = yield [("INFO",)]
        info: dict[str, str] = {}
        if isinstance(reply, RedisError):
            self._warn(
                f"INFO is not allowed ({reply}), so version, role, eviction, cluster mode and "
                "durability are not checked: see to it that maxmemory-policy is noeviction"
            )
        else:
            info = fitness.read_info(reply)
        fitness.check_server(info, self._address, self.allowed)
        self._check_role(info)
        yield from self._learn_durability(info)
        return info

    def _check_role(self, info: Mapping[str, str]) -> None:
        fitness.check_role(info, self._address)

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

    def _warn(self, message: str) -> None:
        """Once, not for every connection."""
        warn("store", f"{self._address}: {message}")

    def migrate(self) -> Op[list[str]]:
        before = yield from self._schema()
        return [name for number, name in fitness.MIGRATIONS.items() if number > before]

    def _schema(self) -> Op[int]:
        """Check the schema's number, and raise it to ours: the number that was there before."""
        ask = call("schema", f"{self.prefix}:schema", fitness.SCHEMA, fitness.OLDEST_READER)
        ((version, oldest_reader, before),) = yield from self.ask_all([ask])
        fitness.check_schema(int(version), int(oldest_reader), self._address)
        return int(before)

    # --------------------------------------------------------------------------- a thorough look

    def examine(self) -> Op[Examination]:
        looked = yield from inspection.look(self.prefix)
        yield from self._check_cluster(looked.info)  # another node may have what is asked next
        return inspection.examination(
            [("", looked)], (yield from self._noted_schema()), self._wait_replicas, self._address
        )

    def _noted_schema(self) -> Op[tuple[int, int] | None]:
        key = f"{self.prefix}:schema"
        version, oldest_reader = yield from self._told("HMGET", key, "version", "oldest_reader")
        return None if version is None else (int(version), int(oldest_reader))

    def now(self) -> Op[float | None]:
        seconds, micros = yield from self._told("TIME")
        return int(seconds) + int(micros) / 1_000_000

    def _told(self, *command: Any) -> Op[Any]:
        """The reply of whichever server is asked, fit or not."""
        (reply,) = yield [command]
        if isinstance(reply, RedisError):
            raise self._judged(reply)
        return reply

    def sample(self, limit: int) -> Op[Sample]:
        return self._walker.sample(limit)

    # ------------------------------------------------------------------------------ connections

    def connect(self) -> Connection:
        return self.endpoint.connect()

    async def aconnect(self) -> AsyncConnection:
        return await self.endpoint.aconnect()
