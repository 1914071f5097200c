"""Whether a Redis server can keep the promises, by what it says of itself. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from oncekey.errors import StoreUnavailable, StoreUnfit
from oncekey.stores.base import Durability
from oncekey.stores.checks import Finding, Risk, insist, schema, unsafe

SCHEMA, OLDEST_READER = 2, 1
MIGRATIONS = {1: "0001_record", 2: "0002_requests"}
VERSION_MIN = (6, 2)
RISKS = (Risk.EVICTION, Risk.DURABILITY)


def read_info(reply: bytes | str) -> dict[str, str]:
    """The lines of INFO."""
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else reply
    pairs = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {name: value.strip() for name, colon, value in pairs if colon}


# ---------------------------------------------------------------------------------------- at start


def check_server(info: Mapping[str, str], address: str, allowed: Collection[Risk]) -> None:
    """Raise if this server must not be used; the message names what helps."""
    if info.get("loading", "0") != "0":
        raise StoreUnavailable(f"{address} is still loading its data", sent=False)
    insist(findings(info), address, allowed)


def check_role(info: Mapping[str, str], address: str) -> None:
    """Raise if this server only follows another."""
    insist([role(info)], address, ())


def findings(info: Mapping[str, str]) -> Iterator[Finding]:
    """What decides whether a server may be used, but for its role and the schema."""
    yield _version(info)
    yield _eviction(info.get("maxmemory_policy", "noeviction"))
    yield _appends(info)


def _version(info: Mapping[str, str]) -> Finding:
    version = info.get("redis_version", "")  # Valkey says here which Redis it is like
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < VERSION_MIN:
        why = f"the oldest that will do is {'.'.join(map(str, VERSION_MIN))}"
        return unsafe("version", f"Redis {version}", why, "Upgrade the server, or use Valkey")
    return Finding("version", product(info))


def product(info: Mapping[str, str]) -> str:
    name = info.get("server_name", "redis")
    version = info.get(f"{name}_version") or info.get("redis_version", "of a version not told")
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
    return Finding("durability", "appendonly yes" if "aof_enabled" in info else "not told")


def role(info: Mapping[str, str]) -> Finding:
    """Whether the server may be written to."""
    told = info.get("role", "master")
    if told != "master":
        primary = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
        return unsafe(
            "role",
            "a replica",
            "it cannot be written to, and what it shows may be old",
            f"Connect to its primary, {primary}",
        )
    return Finding("role", "primary")


def check_cluster(info: Mapping[str, str], address: str) -> None:
    """Raise unless one node serves all keys; `info` is what CLUSTER INFO says."""
    nodes, state = info.get("cluster_size", "?"), info.get("cluster_state", "?")
    if nodes != "1" or state != "ok":
        raise StoreUnfit(
            f"{address} is a node of a Redis Cluster ({nodes} nodes hold keys, state {state}): "
            "write redis+cluster:// instead of redis://, with the addresses of some of its nodes"
        )


def check_schema(version: int, oldest_reader: int, address: str) -> None:
    """Raise if this code cannot work with what another release has written."""
    insist([schema(version, oldest_reader, SCHEMA, address)], address, ())


_COMMANDS = (
    "evalsha script|load hset hget hmget hkeys hdel hincrby zadd zrem zrangebyscore exists persist "
    "pexpireat unlink set scan time wait info select config|get cluster|info cluster|slots asking"
)


def acl_rule(prefix: str) -> str:
    """What a user must be allowed: these commands, on these keys."""
    return f"~{prefix}:* " + " ".join(f"+{command}" for command in _COMMANDS.split())


# -------------------------------------------------------------------------------------- durability

UNCERTAIN = Durability(True, False, False, "as the server is set, which could not be learnt yet")
_NOT_KEPT = Durability(
    process_crash=True,
    store_crash=False,
    power_loss=False,
    note="appendonly is off, so a restart of the server forgets what is newer than its snapshot",
)
_SYNCED = Durability(True, True, True, "append-only file, synced before every answer")
_NOT_SYNCED = Durability(
    process_crash=True,
    # It writes the file before it answers, except while a sync is under way: then seconds later.
    store_crash=False,
    power_loss=False,
    note="append-only file, synced later: a loss of power forgets the last seconds, a crash of the "
    "server what it had not written while a sync was under way; appendfsync always forgets nothing",
)


def durability(info: Mapping[str, str], appendfsync: str | None) -> Durability:
    """What this server survives, as far as it could be learnt."""
    match info.get("aof_enabled"):
        case None:
            return UNCERTAIN
        case "1":
            return _SYNCED if appendfsync == "always" else _NOT_SYNCED
        case _:
            return _NOT_KEPT


# ----------------------------------------------------------------------------------- while it runs

# What a server says when it carries a command out not at all, and what that means.
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
# A code is the first word; before Redis 7, an error inside a script stands within another one.
_CODE = re.compile(r"(?:^|-)([A-Z]{3,})\b")


def refusal(text: str, code: str | None) -> str | None:
    """Why the server carried nothing out; None if the error says something else."""
    found = _CODE.search(text)
    return _REFUSALS.get(code or "") or (_REFUSALS.get(found[1]) if found else None)
