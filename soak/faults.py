"""Faults and when they happen: planned from a seed, then inflicted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from soak.engines import REPLICATED
from soak.environment import Environment, ServerSite
from soak.ledger import now
from soak.proxy import Proxy
from soak.workers import Worker

_EVERY_S = 0.8
_SHORT_OR_LONG_S = (0.2, 0.5, 1.0, 2.0, 2.5, 4.0)
"""Within a lease of 1.5 s, and beyond it."""

WORKER_FAULTS = {"worker killed": 3, "worker replaced": 2, "worker frozen": 4}
CLOCK_FAULTS = {"clock set": 2}
"""A worker's wall clock, by hours. Not on SQLite, which measures retention by it."""
FILE_FAULTS = {"file occupied": 2}
SERVER_FAULTS = {
    "replies swallowed": 2,
    "questions eaten": 1,
    "connections reset": 2,
    "bytes held": 1,
    "server killed": 1,
    "server frozen": 1,
}
"""The weight of each."""
REPLICA_FAULTS = {"server killed": 1, "server frozen": 1}
"""There is no proxy, because the servers announce each other's addresses. Only one fails at a time:
another can take over.
"""
_WHICH_MAX = 12
IMPOSSIBLE_FAULTS = {("server killed", "dynamodb")}
"""The emulator stores everything in memory."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A planned fault: `which` worker or server it hits, `count` of messages it loses."""

    after_s: float
    what: str
    seconds: float
    which: int
    count: int


@dataclass(frozen=True, slots=True)
class InflictedFault:
    """A fault that was inflicted, and the worker's pid."""

    at: float
    fault: Fault
    pid: int


def plan(seed: int, seconds: float, engine: str, *, beside: bool = False) -> list[Fault]:
    """Plan faults: the same seed gives the same ones, though they interleave differently.

    `beside`: there is a server beside the store.
    """
    chance = Random(seed)
    likely = WORKER_FAULTS | store_faults(engine) | ({} if engine == "sqlite" else CLOCK_FAULTS)
    likely |= SERVER_FAULTS if beside else {}
    faults: list[Fault] = []
    at_s = chance.uniform(0, 2 * _EVERY_S)
    while at_s < seconds:
        (what,) = chance.choices(list(likely), list(likely.values()))
        lasts_s, which = chance.choice(_SHORT_OR_LONG_S), chance.randrange(_WHICH_MAX)
        faults.append(Fault(at_s, what, lasts_s, which, chance.choice((1, 1, 2, 4))))
        at_s += chance.uniform(0, 2 * _EVERY_S)
    return faults


def store_faults(engine: str) -> dict[str, int]:
    """Return the faults of an engine's servers."""
    if engine == "sqlite":
        return FILE_FAULTS
    if engine in REPLICATED:
        return REPLICA_FAULTS
    return {what: n for what, n in SERVER_FAULTS.items() if (what, engine) not in IMPOSSIBLE_FAULTS}


async def inflict_all(
    faults: Sequence[Fault],
    environment: Environment,
    workers: Sequence[Worker],
    inflicted: list[InflictedFault],
) -> None:
    """Inflict the faults at their times, overlapping; heal everything at the end."""
    began = now()
    async with asyncio.TaskGroup() as under_way:
        for fault in faults:
            await asyncio.sleep(began + fault.after_s - now())
            worker = workers[fault.which % len(workers)]
            if fault.what in WORKER_FAULTS and not worker.up:
                continue  # else a slow machine would never serve
            inflicted.append(InflictedFault(now(), fault, worker.pid))
            under_way.create_task(inflict(fault, environment, worker))
    environment.heal()


async def inflict(fault: Fault, environment: Environment, worker: Worker) -> None:
    match fault.what:
        case "worker killed":
            worker.kill()
            worker.start()
        case "worker replaced":
            await asyncio.to_thread(worker.replace, fault.seconds)
        case "worker frozen":
            worker.freeze()
            await asyncio.sleep(fault.seconds)
            worker.thaw()
        case "clock set":
            worker.clock.set_offset(3600 * fault.seconds * (1 if fault.count > 1 else -1))
        case "file occupied":
            await environment.occupy(fault.seconds)
        case _:
            await _inflict_on(
                environment.sites[fault.which % len(environment.sites)], fault, environment
            )


async def _inflict_on(site: ServerSite, fault: Fault, environment: Environment) -> None:
    match fault.what:
        case "server killed":
            await environment.crash(site, fault.seconds)
        case "server frozen":
            await environment.freeze(site, fault.seconds)
        case _ if site.proxy is not None:
            await _inflict_on_proxy(site.proxy, fault)


async def _inflict_on_proxy(proxy: Proxy, fault: Fault) -> None:
    match fault.what:
        case "replies swallowed":
            proxy.replies_lost += fault.count
        case "questions eaten":
            proxy.requests_lost += fault.count
        case "connections reset":
            proxy.reset()
        case "bytes held":
            proxy.flowing.clear()
            await asyncio.sleep(fault.seconds)
            proxy.flowing.set()
