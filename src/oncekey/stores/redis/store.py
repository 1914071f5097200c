"""Store records in Redis or Valkey: one hash per record, changed only by Lua scripts.

The `*.lua` files implement the verbs, `verbs` builds their commands, and `scan` handles verbs that
name no record. `checks` decides whether a server is safe to use, and `connection` talks to it. This
file is the store on one server, and `open_url` for all of them; `sentinel` and `cluster` find the
right server first.

Time and fences
    Every script reads the server's clock. A fence is max(previous + 1, that clock in microseconds),
    so it rises even after a record expired and vanished, unless the clock is set back by more than
    that record's retention.

Expiry
    A record is one hash, because one key has one slot and one expiry.
    Completed and released records have an expiry (TTL) and vanish by themselves. Running and
    unknown records have none: only `Sweep` removes them, by their own deadline.

Full memory
    A server that does not evict refuses new claims when its memory is full. Running attempts can
    still renew, finish and release. A refused claim leaves nothing behind.

Replicas
    A failover can lose writes that were acknowledged a moment before. With `wait_replicas` the
    store reports nothing, neither a write nor a read, before that many replicas have it. WAIT
    covers only the writes of its own connection, so each batch ends by writing a mark behind
    everything it read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

from oncekey._core.op import Op
from oncekey._core.verbs import AppendStep, Find, Insert, Peek, Requested, Steps, Swap, Verb
from oncekey._system.warn_once import warn
from oncekey.errors import Misuse, StoreError, StoreUnavailable, StoreUnfit
from oncekey.stores.base import AGAIN, AsyncConnection, Connection, Durability, Traits
from oncekey.stores.checks import Examination, Sample, parse_risks
from oncekey.stores.redis import checks
from oncekey.stores.redis.connection import (
    Address,
    AskError,
    Endpoint,
    NoPermissionError,
    NoScriptError,
    RedisError,
    TryAgainError,
    parse_url,
)
from oncekey.stores.redis.scan import Scanner
from oncekey.stores.redis.verbs import COMMANDS, OUTCOMES, SCRIPTS, Command, call
from oncekey.stores.sql import check_waits
from oncekey.stores.urls import canonical_host, must_be_readable

_LOADS: list[Command] = [("SCRIPT", "LOAD", text) for text in SCRIPTS.values()]

_PREFIX = re.compile(r"[A-Za-z0-9_.:{}-]{1,64}")
_READ, _SCAN = "read", "scan"
_LANES: dict[type, str] = dict.fromkeys((Find, Peek, Steps, Requested), _READ)
_LANES |= {Insert: "insert", Swap: "swap", AppendStep: "swap"}


def group_of(verb: Verb) -> str:
    """Return the group of a verb: verbs of one group share round trips."""
    # Renewals have their own group: a healthy lease must not lapse behind a queue of large
    # responses.
    if type(verb) is Swap and verb.lease_s is not None and verb.claim is None:
        return "renew"
    return _LANES.get(type(verb), _SCAN)


class RedisStore:
    """Keep records on one Redis or Valkey server. `open_url` creates one from a URL."""

    name = "redis"
    traits = Traits()
    transactions = None
    outbox = None
    durability: Durability = checks.UNCERTAIN
    """What the server's settings guarantee; known once a connection has checked it."""

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
        """`path` names a Unix socket. `driver_options` are passed unchanged to redis-py's
        connection.
        """
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
        self.allowed = parse_risks(allow, checks.RISKS)
        self._wait_replicas = wait_replicas
        self._wait: Command = ("WAIT", wait_replicas, round(wait_timeout_s * 1000))
        self._scanner = Scanner(self)

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
            self.endpoint.driver_connection()
        except (TypeError, ValueError, RedisError) as error:
            raise Misuse(f"{self._address}: redis-py does not take this option: {error}") from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address!r}, prefix={self.prefix!r})"

    @property
    def location(self) -> Hashable:
        options = self.endpoint.options
        server = options.get("path") or (canonical_host(str(options["host"])), options["port"])
        return self.name, server, options["db"], self.prefix

    # ------------------------------------------------------------------------------------ verbs

    def group(self, verb: Verb) -> Hashable:
        return group_of(verb)

    def perform(self, verbs: Sequence[Any]) -> Op[list[Any]]:
        kind = group_of(verbs[0])
        if kind == _SCAN:
            outcomes = []
            for verb in verbs:
                outcomes.append((yield from self._scanner.perform(verb)))
            return outcomes
        commands = [COMMANDS[type(verb)](verb, self.key(verb.id)) for verb in verbs]
        replies = yield from self._exchange(commands, replicated=kind != _READ)
        if all(isinstance(reply, RedisError) for reply in replies):
            raise self._to_store_error(replies[0])
        # Where some commands succeeded, the failed ones are retried alone, so that each raises its
        # own error.
        return [
            AGAIN if isinstance(reply, RedisError) else OUTCOMES[type(verb)](verb, reply)
            for verb, reply in zip(verbs, replies, strict=True)
        ]

    def _exchange(
        self, commands: list[Command], *, replicated: bool, node: Address | None = None
    ) -> Op[list[Any]]:
        """Return the replies to the commands, with errors among them as values.

        With `replicated`, wait until the required number of replicas has everything the replies
        report. `node` is for commands that name no key, where there are several servers.
        """
        return self._ask_server(commands, [f"{self.prefix}:mark"] if replicated else [])

    def _ask_server(self, commands: list[Command], marks: Sequence[str]) -> Op[list[Any]]:
        """Return the replies of one server. The keys in `marks` are candidates for the mark that
        its replicas have to acknowledge.
        """
        tail = self._wait_commands(marks[0]) if marks and self._wait_replicas else []
        replies: list[Any] = yield commands + tail
        if NoScriptError in map(type, replies):
            replies = yield from self._load_scripts(commands, replies, tail)
        replies, acknowledged = replies[: len(commands)], replies[len(commands) :]
        if tail:
            for mark in marks[1:]:
                if not isinstance(acknowledged[0], (AskError, TryAgainError)):
                    break
                acknowledged = yield self._wait_commands(mark)  # the first mark's slot is moving
            self._check_acknowledged(acknowledged)
        return replies

    def _wait_commands(self, mark: str) -> list[Command]:
        return [call("mark", mark), self._wait]

    def _load_scripts(
        self, commands: list[Command], replies: list[Any], tail: list[Command]
    ) -> Op[list[Any]]:
        """Load the scripts into a server that is new, or was restarted or flushed.

        Repeat only the commands that failed with NOSCRIPT: they did nothing. The other replies
        stand.
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
        self, commands: list[Command], *, replicated: bool = False, node: Address | None = None
    ) -> Op[list[Any]]:
        """Return the replies; raise if any command failed."""
        if not commands:
            return []
        replies = yield from self._exchange(commands, replicated=replicated, node=node)
        for reply in replies:
            if isinstance(reply, RedisError):
                raise self._to_store_error(reply, sent=len(commands) > 1)
        return replies

    # --------------------------------------------------------------------------- keys and nodes

    def key(self, record_id: bytes) -> str:
        """Return the key of a record's hash."""
        return f"{self.prefix}:{record_id.hex()}"

    @property
    def pattern(self) -> str:
        """A SCAN pattern that matches the keys of all records, and a few others."""
        return f"{self.prefix}:*"

    def nodes(self) -> list[Address | None]:
        """Return the servers that hold keys; `[None]` where there is only one."""
        return [None]

    def open_lists(self, node: Address | None) -> list[str]:
        """Return the keys of a server's lists of records that may be abandoned."""
        return [f"{self.prefix}:open"]

    # ---------------------------------------------------------------------------------- errors

    def _to_store_error(self, error: RedisError, *, sent: bool = False) -> StoreError:
        """Translate an error reply. `sent` says that other commands may have been carried out."""
        if isinstance(error, NoPermissionError):
            rule = checks.acl_rule(self.prefix)
            return StoreUnfit(
                f"{self._address}: {error}. Allow it: `redis-cli ACL SETUSER <user> {rule}`"
            )
        if (why := checks.refusal(str(error), getattr(error, "status_code", None))) is not None:
            return StoreUnavailable(f"{self._address} refused: {why}", sent=sent)
        return StoreError(f"{self._address}: {error}")

    # ----------------------------------------------------------------------------------- checks

    def prepare(self) -> Op[None]:
        yield from self._check_cluster((yield from self._check_server()))
        yield from self._check_schema()

    def _check_cluster(self, info: Mapping[str, str]) -> Op[None]:
        if info.get("cluster_enabled") == "1":
            (reply,) = yield from self.ask_all([("CLUSTER", "INFO")])
            checks.check_cluster(checks.read_info(reply), self._address)

    def _check_server(self) -> Op[Mapping[str, str]]:
        """Check the server by its INFO, and return that."""
        (reply,) = yield [("INFO",)]
        info: dict[str, str] = {}
        if isinstance(reply, RedisError):
            self._warn(
                f"INFO is not allowed ({reply}), so version, role, eviction, cluster mode and "
                "durability are not checked: make sure that maxmemory-policy is noeviction"
            )
        else:
            info = checks.read_info(reply)
        checks.check_server(info, self._address, self.allowed)
        self._check_role(info)
        yield from self._read_durability(info)
        return info

    def _check_role(self, info: Mapping[str, str]) -> None:
        checks.check_role(info, self._address)

    def _read_durability(self, info: Mapping[str, str]) -> Op[None]:
        appendfsync = None
        if info.get("aof_enabled") == "1":
            (reply,) = yield [("CONFIG", "GET", "appendfsync")]
            if isinstance(reply, RedisError):
                self._warn(f"CONFIG GET is not allowed ({reply}), so appendfsync is unknown")
            else:  # a dictionary in RESP3, else a list
                *_, value = reply.values() if isinstance(reply, dict) else reply
                appendfsync = value.decode()
        self.durability = checks.durability(info, appendfsync)

    def _warn(self, message: str) -> None:
        """Warn once per process, not once per connection."""
        warn("store", f"{self._address}: {message}")

    def migrate(self) -> Op[list[str]]:
        before = yield from self._check_schema()
        return [name for number, name in checks.MIGRATIONS.items() if number > before]

    def _check_schema(self) -> Op[int]:
        """Check the schema version and raise it to ours; return the version found before."""
        ask = call("schema", f"{self.prefix}:schema", checks.SCHEMA, checks.OLDEST_READER)
        ((version, oldest_reader, before),) = yield from self.ask_all([ask])
        checks.check_schema(int(version), int(oldest_reader), self._address)
        return int(before)

    # --------------------------------------------------------------------------- oncekey doctor

    def examine(self) -> Op[Examination]:
        server = yield from checks.inspect_server(self.prefix)
        yield from self._check_cluster(server.info)  # the schema may be on another node
        return checks.examination(
            [("", server)], (yield from self._read_schema()), self._wait_replicas, self._address
        )

    def _read_schema(self) -> Op[tuple[int, int] | None]:
        key = f"{self.prefix}:schema"
        version, oldest_reader = yield from self._ask_one("HMGET", key, "version", "oldest_reader")
        return None if version is None else (int(version), int(oldest_reader))

    def now(self) -> Op[float | None]:
        seconds, micros = yield from self._ask_one("TIME")
        return int(seconds) + int(micros) / 1_000_000

    def _ask_one(self, *command: Any) -> Op[Any]:
        """Return the reply of any server, checked or not."""
        (reply,) = yield [command]
        if isinstance(reply, RedisError):
            raise self._to_store_error(reply)
        return reply

    def sample(self, limit: int) -> Op[Sample]:
        return self._scanner.sample(limit)

    # ------------------------------------------------------------------------------ connections

    def connect(self) -> Connection:
        return self.endpoint.connect()

    async def aconnect(self) -> AsyncConnection:
        return await self.endpoint.aconnect()


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
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
_PORTS = {"cluster": 6379, "sentinel": 26379}


def open_url(url: str) -> RedisStore:
    """Open `redis://user:password@host:port/db`, `rediss://` with TLS, `unix:///path?db=0` or
    `valkey://`.

    For several servers, `redis+cluster://host:port,host:port` names some nodes of a Cluster, and
    `redis+sentinel://host:port,host:port/service?db=0` some Sentinels and the service they watch.
    `rediss+…` and `valkey+…` work likewise.

    Options after the `?`: `prefix`, `timeout_s`, `connect_timeout_s`, `wait_replicas`,
    `wait_timeout_s` and `allow=eviction`, as in `RedisStore`; and `sentinel_username` and
    `sentinel_password` for Sentinels that require a login. All other options go to redis-py:
    `ssl_ca_certs`, `client_name`, `protocol` and so on.
    """
    # open_store has checked this already, but not for the cache of a tiered store.
    must_be_readable(url, "redis://user:password@host:6379/0")
    scheme, _, rest = url.partition("://")
    base, _, form = scheme.lower().partition("+")
    if form == "unix":
        base, form = "unix", ""
    base = _SCHEMES.get(base, base)
    try:
        addresses, one = _addresses(rest, form) if form else ([], rest)
        parts = parse_url(f"{base}://{one}")
        options = {name: read(parts.pop(name)) for name, read in _OPTIONS.items() if name in parts}
    except (ValueError, KeyError):
        # Hide the driver's message: it takes half a password for a port, and shows it.
        raise Misuse(
            f"this {scheme}:// URL cannot be read: timeouts and counts must be numbers, and "
            "special characters in the password percent-encoded"
        ) from None
    path = rest.partition("?")[0].rpartition("@")[2].partition("/")[2]
    if base == "unix":
        _check_socket(parts)
    elif form != "sentinel":
        _check_database(scheme, path)
    options |= {name: parts.pop(name) for name in _PLACE if name in parts}
    options |= {
        name: parts.pop(name) for name in _SENTINEL_OPTIONS if form == "sentinel" and name in parts
    }
    options |= {"tls": base == "rediss", "driver_options": parts}
    if form == "cluster":
        from oncekey.stores.redis.cluster import ClusterStore

        return ClusterStore(addresses, **_without(options, "host", "port"))
    if form == "sentinel":
        from oncekey.stores.redis.sentinel import SentinelStore

        return SentinelStore(addresses, path, **_without(options, "host", "port"))
    return RedisStore(**options)


def _check_socket(parts: dict[str, Any]) -> None:
    if "path" not in parts:  # the driver would connect by TCP
        raise Misuse("this unix:// URL names no socket: write unix:///run/redis.sock")


def _check_database(scheme: str, path: str) -> None:
    if not re.fullmatch(r"\d*/?", path):  # the driver would use database 0
        raise Misuse(
            f"this {scheme}:// URL names a database that is not a number: write {scheme}://host/0, "
            "and use ?prefix=name to keep applications apart by name"
        )


def _addresses(rest: str, form: str) -> tuple[list[Address], str]:
    """Split a URL into all its addresses and a URL with the first address alone. For Sentinels the
    path is the name of a service, not a database.
    """
    place, mark, query = rest.partition("?")
    user, at, place = place.rpartition("@")
    hosts, slash, path = place.partition("/")
    addresses = []
    for host in hosts.split(","):
        parts = parse_url(f"redis://{host}")
        addresses.append((parts.get("host", "localhost"), parts.get("port", _PORTS[form])))
    database = "" if form == "sentinel" else f"{slash}{path}"
    return addresses, f"{user}{at}{hosts.split(',')[0]}{database}{mark}{query}"


def _without(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}
