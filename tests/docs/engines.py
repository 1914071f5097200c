"""Engines side by side, as the code judges them and as they were measured: for docs/stores.md."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from oncekey.cli.costs import Cost, load_costs
from oncekey.cli.main import main
from oncekey.stores.checks import ACCEPTS, Finding, Level, Risk
from oncekey.stores.dynamodb import checks
from oncekey.stores.mysql import checks as mysql_fitness
from oncekey.stores.postgres import checks as postgres_fitness
from oncekey.stores.redis import checks as redis_checks
from oncekey.stores.sql import migrations
from oncekey.stores.sqlite import checks as sqlite_fitness
from oncekey.stores.urls import open_store

NAMES = {
    "sqlite": "SQLite",
    "postgres": "PostgreSQL",
    "mysql": "MySQL, MariaDB",
    "redis": "Redis, Valkey",
    "dynamodb": "DynamoDB",
}
_URLS = {
    "sqlite": "sqlite:///keys.db",
    "postgres": "postgresql://host/database",
    "mysql": "mysql://user@host/database",
    "redis": "redis://host/0",
    "dynamodb": "dynamodb://table?region=eu-central-1",
}
_KNOWN: dict[str, Iterable[Risk]] = {
    "sqlite": sqlite_fitness.RISKS,
    "postgres": postgres_fitness.RISKS,
    "mysql": mysql_fitness.RISKS,
    "redis": redis_checks.RISKS,
    "dynamodb": checks.RISKS,
}
ANSWER_BYTES = 800


def accepted() -> list[list[str]]:
    """Each name, where it is understood, and what somebody takes upon themselves by it."""
    return [
        [
            f"`allow={risk}`",
            "; ".join(NAMES[engine] for engine, known in _KNOWN.items() if risk in known),
            ACCEPTS[risk],
        ]
        for risk in Risk
    ]


def settings() -> list[tuple[str, Finding]]:
    """Servers with one setting each that can lose something, as they are judged."""
    return [
        (engine, found)
        for engine, findings in _judged()
        for found in findings
        if found.level is not Level.FINE
    ]


def _judged() -> Iterator[tuple[str, Iterable[Finding]]]:
    for synchronous in ("OFF", "NORMAL"):
        yield "sqlite", sqlite_fitness.findings("/keys.db", synchronous)
    yield "sqlite", [sqlite_fitness.place("nfs4")]
    newest = migrations("postgres")[-1].number
    fit = postgres_fitness.Server(
        180_000, False, False, "read committed", "UTF8", True, "on", None, newest, 1
    )
    losing: list[dict[str, Any]] = [
        *({"fsync": False}, {"synchronous_commit": "off"}, {"unlogged": "oncekey_claims"})
    ]
    for changes in losing:
        yield "postgres", replace(fit, **changes).findings("")
    yield "postgres", replace(fit, connections_max=2).findings("")
    server = mysql_fitness.Server("9.7.4", False, 1, True, 1, mysql_fitness.PACKET_BYTES, {})
    losing = [{"flush_log": 0}, {"flush_log": 2}, {"sync_binlog": 0}]
    losing += [{"packet_bytes_max": 1_048_576}, {"connections_max": 2}]
    for changes in losing:
        yield "mysql", replace(server, **changes).findings()
    yield from (("redis", findings) for findings in _redis())
    table = {**checks.definition("t"), "Replicas": [{"RegionName": "eu-west-1"}]}
    yield "dynamodb", checks.findings(table)


def _redis() -> Iterator[Iterable[Finding]]:
    info = {"redis_version": "8.0", "aof_enabled": "1", "maxmemory": "1"}
    always, everysec = {"appendfsync": "always"}, {"appendfsync": "everysec"}
    yield redis_checks.findings({**info, "aof_enabled": "0"})
    yield redis_checks.server_findings(redis_checks.ServerInfo(info, everysec, []), 0)
    followed = {**info, "connected_slaves": "1"}
    yield redis_checks.server_findings(redis_checks.ServerInfo(followed, always, []), 0)
    yield redis_checks.findings({**info, "maxmemory_policy": "allkeys-lru"})


def side_by_side() -> list[list[str]]:
    """Each engine: what it promises, what each setting can lose, what a record costs."""
    losing: dict[str, list[str]] = {engine: [] for engine in NAMES}
    for engine, found in settings():
        losing[engine].append(f"`{found.seen}`: {found.why} ({_at_the_start(found)})")
    return [
        [name, _promise(engine), "<br>".join(losing[engine]), _cost(engine)]
        for engine, name in NAMES.items()
    ]


def _promise(engine: str) -> str:
    if engine == "redis":
        told = redis_checks.durability({"aof_enabled": "1"}, "always")
        return f"with `appendfsync always`: {told.note}"
    return open_store(_URLS[engine]).durability.note


def _at_the_start(found: Finding) -> str:
    return f"refused unless `allow={found.risk}`" if found.risk else "not refused"


def _cost(engine: str) -> str:
    cost = load_costs().engines[engine].cost(ANSWER_BYTES)
    return "<br>".join(f"{name}: {told}" for name, told in _told(cost).items() if told)


def _told(cost: Cost) -> Mapping[str, str]:
    return {
        "stored": f"{cost.stored_bytes:,.0f} B",
        "log": "" if cost.log_bytes is None else f"{cost.log_bytes:,.0f} B",
        "server": "" if cost.server_cpu_us is None else f"{cost.server_cpu_us:.0f} µs of CPU",
        "client": "" if cost.client_cpu_us is None else f"{cost.client_cpu_us:.0f} µs of CPU",
        "write units": "" if cost.write_units is None else f"{cost.write_units:g}",
    }


def measured() -> str:
    """When, and on what."""
    costs = load_costs()
    versions = ", ".join(f"{each.version} ({each.settings})" for each in costs.engines.values())
    return (
        f"Measured {costs.measured} with oncekey {costs.oncekey} on {costs.machine}, by "
        f"`{costs.written_by}`: {versions}.\n"
    )


def plan() -> str:
    """What the command prints, for a load that takes more than a laptop."""
    words = ["plan", "--rps", "10000", "--retention", "24h", "--answer-bytes", "800"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main(words)
    return f"```\n$ oncekey {' '.join(words)}\n{printed.getvalue()}```\n"
