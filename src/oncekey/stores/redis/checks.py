"""Decide from a Redis server's own reports whether it is safe to use. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from oncekey._core.op import Op
from oncekey._core.values import value
from oncekey.errors import StoreUnavailable, StoreUnfit
from oncekey.stores.base import Durability
from oncekey.stores.checks import (
    Examination,
    Finding,
    Level,
    Risk,
    Size,
    advice,
    refuse_unsafe,
    schema,
    unsafe,
)
from oncekey.stores.redis.verbs import Command

SCHEMA, OLDEST_READER = 2, 1
MIGRATIONS = {1: "0001_record", 2: "0002_requests"}
VERSION_MIN = (6, 2)
RISKS = (Risk.EVICTION, Risk.DURABILITY)


def read_info(reply: bytes | str) -> dict[str, str]:
    """Parse the reply of INFO."""
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else reply
    pairs = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {name: value.strip() for name, colon, value in pairs if colon}


# -------------------------------------------------------------------------------------- at startup


def check_server(info: Mapping[str, str], address: str, allowed: Collection[Risk]) -> None:
    """Raise if this server must not be used; the message says what helps."""
    if info.get("loading", "0") != "0":
        raise StoreUnavailable(f"{address} is still loading its data", sent=False)
    refuse_unsafe(findings(info), address, allowed)


def check_role(info: Mapping[str, str], address: str) -> None:
    """Raise if this server is a replica."""
    refuse_unsafe([role(info)], address, ())


def findings(info: Mapping[str, str]) -> Iterator[Finding]:
    """Yield whatever decides whether a server may be used, except its role and the schema."""
    yield _version(info)
    yield _eviction(info.get("maxmemory_policy", "noeviction"))
    yield _appends(info)


def _version(info: Mapping[str, str]) -> Finding:
    version = info.get("redis_version", "")  # on Valkey the Redis version it is compatible with
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < VERSION_MIN:
        why = f"the oldest that will do is {'.'.join(map(str, VERSION_MIN))}"
        return unsafe("version", f"Redis {version}", why, "Upgrade the server, or use Valkey")
    return Finding("version", product(info))


def product(info: Mapping[str, str]) -> str:
    name = info.get("server_name", "redis")
    version = info.get(f"{name}_version") or info.get("redis_version", "of unknown version")
    return f"{name.capitalize()} {version}"


def _eviction(policy: str) -> Finding:
    seen = f"maxmemory-policy {policy}"
    if policy != "noeviction":
        return unsafe(
            "eviction",
            seen,
            "a full memory evicts records, and an evicted one lets its request run a second time",
            "Run `redis-cli CONFIG SET maxmemory-policy noeviction`, then `redis-cli CONFIG "
            "REWRITE` (a managed service has it among its parameters), or give the records a "
            "server of their own",
            Risk.EVICTION,
        )
    return Finding("eviction", seen)


def _appends(info: Mapping[str, str]) -> Finding:
    if info.get("aof_enabled", "1") == "0":
        return unsafe(
            "durability",
            "appendonly no",
            "a restart of the server forgets what is newer than its snapshot, and retries would "
            "then run again",
            "Run `redis-cli CONFIG SET appendonly yes`, then `redis-cli CONFIG REWRITE`",
            Risk.DURABILITY,
        )
    return Finding("durability", "appendonly yes" if "aof_enabled" in info else "unknown")


def role(info: Mapping[str, str]) -> Finding:
    """Say whether the server accepts writes."""
    role = info.get("role", "master")
    if role != "master":
        primary = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
        return unsafe(
            "role",
            "a replica",
            "it cannot be written to, and what it shows may be old",
            f"Connect to its primary, {primary}",
        )
    return Finding("role", "primary")


def check_cluster(info: Mapping[str, str], address: str) -> None:
    """Raise unless one node serves all keys. `info` is the reply of CLUSTER INFO."""
    nodes, state = info.get("cluster_size", "?"), info.get("cluster_state", "?")
    if nodes != "1" or state != "ok":
        raise StoreUnfit(
            f"{address} is a node of a Redis Cluster ({nodes} nodes hold keys, state {state}): "
            "write redis+cluster:// instead of redis://, with the addresses of some of its nodes"
        )


def check_schema(version: int, oldest_reader: int, address: str) -> None:
    """Raise if this code cannot work with the schema that another release wrote."""
    refuse_unsafe([schema(version, oldest_reader, SCHEMA, address)], address, ())


_COMMANDS = (
    "evalsha script|load hset hget hmget hkeys hdel hincrby zadd zrem zrangebyscore exists persist "
    "pexpireat unlink set scan time wait info select config|get cluster|info cluster|slots asking"
)


def acl_rule(prefix: str) -> str:
    """Return the ACL rule that a user needs: these commands, on these keys."""
    return f"~{prefix}:* " + " ".join(f"+{command}" for command in _COMMANDS.split())


# -------------------------------------------------------------------------------------- durability

UNCERTAIN = Durability(True, False, False, "depends on the server's settings, not yet known")
_SNAPSHOTS_ONLY = Durability(
    process_crash=True,
    store_crash=False,
    power_loss=False,
    note="appendonly is off, so a restart of the server forgets what is newer than its snapshot",
)
_SYNCED = Durability(True, True, True, "append-only file, synced before every answer")
_NOT_SYNCED = Durability(
    process_crash=True,
    # Redis writes the file before it answers, except while a sync is in progress: then seconds
    # later.
    store_crash=False,
    power_loss=False,
    note="append-only file, synced later: a loss of power forgets the last seconds, a crash of the "
    "server what it had not written while a sync was under way; appendfsync always forgets nothing",
)


def durability(info: Mapping[str, str], appendfsync: str | None) -> Durability:
    """Say what this server survives, as far as known."""
    match info.get("aof_enabled"):
        case None:
            return UNCERTAIN
        case "1":
            return _SYNCED if appendfsync == "always" else _NOT_SYNCED
        case _:
            return _SNAPSHOTS_ONLY


# ----------------------------------------------------------------------------------- while it runs

# How a server refuses a command that then had no effect, and what the error means.
_REFUSALS = {
    "OOM": "its memory is full and nothing was written: raise maxmemory, or shorten retention",
    "READONLY": "it is a replica now; a new connection may find the primary",
    "MASTERDOWN": "it is a replica that has lost its primary",
    "CLUSTERDOWN": "its cluster is down",
    "MOVED": "another node of its cluster holds this key",
    "ASK": "it is moving this key to another node of its cluster",
    "TRYAGAIN": "it is moving this key to another node of its cluster",
    "BUSY": "a script has been running for too long; `redis-cli SCRIPT KILL` ends it",
    "NOSCRIPT": "it forgot a script that was loaded a moment ago",
    "MISCONF": "it cannot write to its disk; see its log",
    "NOREPLICAS": "too few replicas are connected, as min-replicas-to-write says",
}
# The code is the first word; before Redis 7, an error inside a script is embedded in another one.
_CODE = re.compile(r"(?:^|-)([A-Z]{3,})\b")


def refusal(text: str, code: str | None) -> str | None:
    """Return why the server refused a command without effect; None for any other error."""
    found = _CODE.search(text)
    return _REFUSALS.get(code or "") or (_REFUSALS.get(found[1]) if found else None)


# ------------------------------------------------------------------------------- oncekey doctor

FULL_SHARE = 0.8
_SETTINGS = ("appendfsync", "no-appendfsync-on-rewrite", "maxclients")
_NEEDED_COMMANDS: tuple[Command, ...] = (
    ("EVALSHA", "0" * 40, 1, "{key}"),
    ("SCRIPT", "LOAD", "return 1"),
    *(("HSET", "{key}", "f", "v"), ("HMGET", "{key}", "f"), ("ZADD", "{key}", 1, "m")),
    *(("PEXPIREAT", "{key}", 1), ("UNLINK", "{key}"), ("SET", "{key}", "v"), ("SCAN", 0)),
    *(("TIME",), ("WAIT", 0, 0)),
)


@value
class ServerInfo:
    """The state of one server."""

    info: Mapping[str, str]
    settings: Mapping[str, str]
    """Those that the user may read."""
    denied: list[str] | None
    """The server's messages for commands that the user may not run; None if unknown."""


def inspect_server(prefix: str) -> Op[ServerInfo]:
    """Read everything the server may report; leave out what is denied."""
    questions: list[Command] = [("CONFIG", "GET", name) for name in _SETTINGS]
    info, user, *settings = yield [("INFO",), ("ACL", "WHOAMI"), *questions]
    replies = [reply for reply in settings if not isinstance(reply, Exception)]
    return ServerInfo(
        {} if isinstance(info, Exception) else read_info(info),
        dict(pair for reply in replies for pair in _pairs(reply)),
        None if isinstance(user, Exception) else (yield from _missing_permissions(user, prefix)),
    )


def _pairs(reply: Any) -> Iterator[tuple[str, str]]:
    """Yield the settings of a reply: a dictionary in RESP3, a list before."""
    flat = [each for pair in reply.items() for each in pair] if isinstance(reply, dict) else reply
    for name, text in zip(flat[::2], flat[1::2], strict=True):
        yield name.decode(), text.decode()


def _missing_permissions(user: Any, prefix: str) -> Op[list[str] | None]:
    """Try each command that the store needs with ACL DRYRUN and return the refusals."""
    key = f"{prefix}:{'0' * 64}"
    dry_runs = [
        ("ACL", "DRYRUN", user, *(key if word == "{key}" else word for word in command))
        for command in _NEEDED_COMMANDS
    ]
    replies = yield dry_runs
    if any(
        isinstance(reply, Exception) for reply in replies
    ):  # DRYRUN is not allowed, or the server is too old
        return None
    return [reply.decode() for reply in replies if reply != b"OK"]


# ---------------------------------------------------------------------------------------- findings


def examination(
    nodes: Sequence[tuple[str, ServerInfo]],
    schema_found: tuple[int, int] | None,
    wait_replicas: int,
    address: str,
) -> Examination:
    """Examine one server, or all nodes of a cluster, each with its name."""
    collected: list[Finding] = []
    for name, server in nodes:
        for finding in server_findings(server, wait_replicas):
            if name and finding.level is not Level.FINE:
                finding = replace(finding, what=f"{finding.what} of {name}")
            if finding not in collected:
                collected.append(finding)
    collected.append(_schema_finding(schema_found, address))
    about = product(nodes[0][1].info)
    if nodes[0][0]:
        about += f", {len(nodes)} nodes that hold keys"
    used = [int(server.info["used_memory"]) for _, server in nodes if "used_memory" in server.info]
    note = "everything that the server has in memory, including other applications' data"
    readable = schema_found is None or schema_found[1] <= SCHEMA
    return Examination(about, collected, Size(sum(used) or None, None, note), readable)


def _schema_finding(schema_found: tuple[int, int] | None, address: str) -> Finding:
    """Report the schema; an older one is upgraded at first use."""
    if schema_found is None:
        return Finding("schema", "none yet: the first use notes it")
    version, oldest_reader = schema_found
    if version < SCHEMA:
        return Finding("schema", f"schema {version}: the first use makes it {SCHEMA}")
    return schema(version, oldest_reader, SCHEMA, address)


def server_findings(server: ServerInfo, wait_replicas: int) -> Iterator[Finding]:
    """Yield all findings about one server."""
    info = server.info
    if not info:
        yield advice(
            "access",
            "INFO is not allowed",
            "version, role, eviction, durability and size cannot be server at, here and at a start",
            "Run `redis-cli ACL SETUSER <user> +info`",
        )
        return
    for finding in findings(info):
        is_appendonly = finding.what == "durability" and finding.level is Level.FINE
        yield _append_sync(server) if is_appendonly else finding
    yield role(info)
    yield _replication(info, wait_replicas)
    yield _memory(info)
    yield _evicted_keys(info)
    yield _disk(info)
    yield _connections(info, server.settings)
    yield _privileges(server)


def _append_sync(server: ServerInfo) -> Finding:
    appendfsync = server.settings.get("appendfsync", "unknown")
    seen = f"appendonly yes, appendfsync {appendfsync}"
    if appendfsync != "always":
        return advice(
            "durability",
            seen,
            "a loss of power forgets the last seconds, and retries of them run again",
            "Run `redis-cli CONFIG SET appendfsync always`, if that must not happen",
        )
    if server.settings.get("no-appendfsync-on-rewrite") == "yes":
        return advice(
            "durability",
            f"{seen}, no-appendfsync-on-rewrite yes",
            "while the file is rewritten nothing is synced",
            "Run `redis-cli CONFIG SET no-appendfsync-on-rewrite no`",
        )
    return Finding("durability", seen)


def _replication(info: Mapping[str, str], wait_replicas: int) -> Finding:
    replicas = int(info.get("connected_slaves", 0))
    if wait_replicas > replicas:
        return advice(
            "replication",
            f"replicas: {replicas}, wait_replicas={wait_replicas}",
            "every write waits in vain, and is reported as a failure",
            f"Start {wait_replicas - replicas} more, or lower wait_replicas in the URL",
        )
    if replicas and not wait_replicas:
        return advice(
            "replication",
            f"replicas: {replicas}, none is waited for",
            "a failover forgets what the replica had not received, and retries run again",
            "Add wait_replicas=1 to the URL",
        )
    return Finding("replication", f"replicas: {replicas}, wait_replicas={wait_replicas}")


def _memory(info: Mapping[str, str]) -> Finding:
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not most:
        return advice(
            "memory",
            f"used_memory {used:,}, maxmemory 0",
            "without a limit the system kills the server when its memory is full",
            "Run `redis-cli CONFIG SET maxmemory <bytes>`: new claims are then refused instead",
        )
    seen = f"used_memory {used:,} of maxmemory {most:,}"
    if used > FULL_SHARE * most:
        why = "when it is full, new claims are refused"
        return advice("memory", seen, why, "Raise maxmemory, or shorten retention")
    return Finding("memory", seen)


def _evicted_keys(info: Mapping[str, str]) -> Finding:
    evicted = int(info.get("evicted_keys", 0))
    if evicted:
        return advice(
            "evicted",
            f"evicted_keys {evicted:,} since the server's start",
            "records may be among them, and their requests may have run a second time",
            "Compare with the time at which maxmemory-policy was changed",
        )
    return Finding("evicted", "evicted_keys 0 since the server's start")


def _disk(info: Mapping[str, str]) -> Finding:
    names = ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
    if failed := [name for name in names if info.get(name, "ok") != "ok"]:
        return advice(
            "disk",
            f"{', '.join(failed)}: err",
            "the server cannot write to its disk, and may refuse writes",
            "See its log, and the room on its disk",
        )
    return Finding("disk", "what was last written, was written")


def _connections(info: Mapping[str, str], settings: Mapping[str, str]) -> Finding:
    open_now = int(info.get("connected_clients", 0))
    most = int(info.get("maxclients") or settings.get("maxclients") or 0)
    seen = f"{open_now} of maxclients {most or 'unknown'}"
    if most and open_now > FULL_SHARE * most:
        why = "a process that cannot connect refuses its requests"
        return advice("connections", seen, why, "Run `redis-cli CONFIG SET maxclients <more>`")
    return Finding("connections", seen)


def _privileges(server: ServerInfo) -> Finding:
    if server.denied is None:
        return Finding("privileges", "not checked: ACL DRYRUN is not available")
    if server.denied:
        rule = acl_rule("<prefix>")
        return unsafe(
            "privileges",
            server.denied[0],
            "what needs it fails",
            f"Run `redis-cli ACL SETUSER <user> {rule}`",
        )
    return Finding("privileges", "all that is needed")
