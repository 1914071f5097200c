"""A thorough look at a Redis server: what `oncekey doctor` tells beyond what refuses it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from oncekey._core.op import Op
from oncekey._core.values import value
from oncekey.stores.checks import Examination, Finding, Level, Size, advice, schema, unsafe
from oncekey.stores.redis import checks as fitness
from oncekey.stores.redis.verbs import Command

FULL_SHARE = 0.8
_SETTINGS = ("appendfsync", "no-appendfsync-on-rewrite", "maxclients")
_NEEDED: tuple[Command, ...] = (
    ("EVALSHA", "0" * 40, 1, "{key}"),
    ("SCRIPT", "LOAD", "return 1"),
    *(("HSET", "{key}", "f", "v"), ("HMGET", "{key}", "f"), ("ZADD", "{key}", 1, "m")),
    *(("PEXPIREAT", "{key}", 1), ("UNLINK", "{key}"), ("SET", "{key}", "v"), ("SCAN", 0)),
    *(("TIME",), ("WAIT", 0, 0)),
)


@value
class Looked:
    """What one server was found to be."""

    info: Mapping[str, str]
    settings: Mapping[str, str]
    """As far as they may be read."""
    denied: list[str] | None
    """What the user may not do, in the server's words; None if that cannot be asked."""


def look(prefix: str) -> Op[Looked]:
    """Ask a server for all that it may tell; what is denied is left out."""
    questions: list[Command] = [("CONFIG", "GET", name) for name in _SETTINGS]
    info, user, *settings = yield [("INFO",), ("ACL", "WHOAMI"), *questions]
    told = [reply for reply in settings if not isinstance(reply, Exception)]
    return Looked(
        {} if isinstance(info, Exception) else fitness.read_info(info),
        dict(pair for reply in told for pair in _pairs(reply)),
        None if isinstance(user, Exception) else (yield from _denied(user, prefix)),
    )


def _pairs(reply: Any) -> Iterator[tuple[str, str]]:
    """A dictionary in RESP3, else a list."""
    flat = [each for pair in reply.items() for each in pair] if isinstance(reply, dict) else reply
    for name, text in zip(flat[::2], flat[1::2], strict=True):
        yield name.decode(), text.decode()


def _denied(user: Any, prefix: str) -> Op[list[str] | None]:
    """What ACL DRYRUN says of each command that the store needs."""
    key = f"{prefix}:{'0' * 64}"
    tried = [
        ("ACL", "DRYRUN", user, *(key if word == "{key}" else word for word in command))
        for command in _NEEDED
    ]
    replies = yield tried
    if any(isinstance(reply, Exception) for reply in replies):  # not allowed either, or too old
        return None
    return [reply.decode() for reply in replies if reply != b"OK"]


# ---------------------------------------------------------------------------------------- findings


def examination(
    nodes: Sequence[tuple[str, Looked]],
    noted: tuple[int, int] | None,
    wait_replicas: int,
    address: str,
) -> Examination:
    """Of one server, or of all nodes of a cluster, each by its name."""
    findings: list[Finding] = []
    for name, looked in nodes:
        for found in findings_of(looked, wait_replicas):
            if name and found.level is not Level.FINE:
                found = replace(found, what=f"{found.what} of {name}")
            if found not in findings:
                findings.append(found)
    findings.append(_schema(noted, address))
    about = fitness.product(nodes[0][1].info)
    if nodes[0][0]:
        about += f", {len(nodes)} nodes that hold keys"
    used = [int(looked.info["used_memory"]) for _, looked in nodes if "used_memory" in looked.info]
    note = "all that the server has in memory, whoever put it there"
    readable = noted is None or noted[1] <= fitness.SCHEMA
    return Examination(about, findings, Size(sum(used) or None, None, note), readable)


def _schema(noted: tuple[int, int] | None, address: str) -> Finding:
    """An older one is brought up to date by the first use."""
    if noted is None:
        return Finding("schema", "none yet: the first use notes it")
    version, oldest_reader = noted
    if version < fitness.SCHEMA:
        return Finding("schema", f"schema {version}: the first use makes it {fitness.SCHEMA}")
    return schema(version, oldest_reader, fitness.SCHEMA, address)


def findings_of(looked: Looked, wait_replicas: int) -> Iterator[Finding]:
    """All that one server's words tell."""
    info = looked.info
    if not info:
        yield advice(
            "access",
            "INFO is not allowed",
            "version, role, eviction, durability and size cannot be looked at, here and at a start",
            "Run `redis-cli ACL SETUSER <user> +info`",
        )
        return
    for found in fitness.findings(info):
        synced = found.what == "durability" and found.level is Level.FINE
        yield _synced(looked) if synced else found
    yield fitness.role(info)
    yield _replication(info, wait_replicas)
    yield _memory(info)
    yield _evicted(info)
    yield _writing(info)
    yield _connections(info, looked.settings)
    yield _privileges(looked)


def _synced(looked: Looked) -> Finding:
    appendfsync = looked.settings.get("appendfsync", "not told")
    seen = f"appendonly yes, appendfsync {appendfsync}"
    if appendfsync != "always":
        return advice(
            "durability",
            seen,
            "a loss of power forgets the last seconds, and retries of them run again",
            "Run `redis-cli CONFIG SET appendfsync always`, if that must not happen",
        )
    if looked.settings.get("no-appendfsync-on-rewrite") == "yes":
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
            "every write waits in vain, and is told as a failure",
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


def _evicted(info: Mapping[str, str]) -> Finding:
    evicted = int(info.get("evicted_keys", 0))
    if evicted:
        return advice(
            "evicted",
            f"evicted_keys {evicted:,} since the server's start",
            "records may be among them, and their requests may have run a second time",
            "Compare with the time at which maxmemory-policy was changed",
        )
    return Finding("evicted", "evicted_keys 0 since the server's start")


def _writing(info: Mapping[str, str]) -> Finding:
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
    seen = f"{open_now} of maxclients {most or 'not told'}"
    if most and open_now > FULL_SHARE * most:
        why = "a process that cannot connect refuses its requests"
        return advice("connections", seen, why, "Run `redis-cli CONFIG SET maxclients <more>`")
    return Finding("connections", seen)


def _privileges(looked: Looked) -> Finding:
    if looked.denied is None:
        return Finding("privileges", "not looked at: ACL DRYRUN cannot be asked here")
    if looked.denied:
        rule = fitness.acl_rule("<prefix>")
        return unsafe(
            "privileges",
            looked.denied[0],
            "what needs it fails",
            f"Run `redis-cli ACL SETUSER <user> {rule}`",
        )
    return Finding("privileges", "all that is needed")
