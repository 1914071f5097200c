"""What goes wrong, and when: planned from a seed, then inflicted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from soak.engines import REPLICATED
from soak.ledger import now
from soak.place import Place, Site
from soak.proxy import Proxy
from soak.workers import Worker

_EVERY_S = 0.8
_SHORT_OR_LONG_S = (0.2, 0.5, 1.0, 2.0, 2.5, 4.0)
"""Within a lease of 1.5 s, and beyond it."""

OF_WORKERS = {"worker killed": 3, "worker replaced": 2, "worker frozen": 4}
OF_CLOCKS = {"clock set": 2}
"""A worker's wall clock, by hours. Not on SQLite: retention is measured by it there."""
OF_FILES = {"file occupied": 2}
OF_SERVERS = {
    "replies swallowed": 2,
    "questions eaten": 1,
    "connections reset": 2,
    "bytes held": 1,
    "server killed": 1,
    "server frozen": 1,
}
"""How likely each is, in proportion to the others."""
OF_REPLICAS = {"server killed": 1, "server frozen": 1}
"""There is no proxy: the servers tell where each other is. All stand in line for what befalls them,
so that there is somebody to take over.
"""
_WHICH_MAX = 12
SPARED = {("server killed", "dynamodb")}
"""The server that stands in for it keeps all in memory."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`seconds` is how long it lasts, `which` the worker or the server, `count` how many messages
    it loses.
    """

    after_s: float
    what: str
    seconds: float
    which: int
    count: int


@dataclass(frozen=True, slots=True)
class Befell:
    """A fault that was inflicted, and the worker that served then."""

    at: float
    fault: Fault
    pid: int


def plan(seed: int, seconds: float, engine: str, *, beside: bool = False) -> list[Fault]:
    """The same seed plans the same faults. How the machine interleaves them it does not plan.
    `beside`: there is a server beside the store.
    """
    chance = Random(seed)
    likely = OF_WORKERS | of_store(engine) | ({} if engine == "sqlite" else OF_CLOCKS)
    likely |= OF_SERVERS if beside else {}
    faults: list[Fault] = []
    at_s = chance.uniform(0, 2 * _EVERY_S)
    while at_s < seconds:
        (what,) = chance.choices(list(likely), list(likely.values()))
        lasts_s, which = chance.choice(_SHORT_OR_LONG_S), chance.randrange(_WHICH_MAX)
        faults.append(Fault(at_s, what, lasts_s, which, chance.choice((1, 1, 2, 4))))
        at_s += chance.uniform(0, 2 * _EVERY_S)
    return faults


def of_store(engine: str) -> dict[str, int]:
    """What can befall where the records are."""
    if engine == "sqlite":
        return OF_FILES
    if engine in REPLICATED:
        return OF_REPLICAS
    return {what: n for what, n in OF_SERVERS.items() if (what, engine) not in SPARED}


async def inflict_all(
    faults: Sequence[Fault], place: Place, workers: Sequence[Worker], befallen: list[Befell]
) -> None:
    """One after the other, some at once. At the end everything is well again."""
    began = now()
    async with asyncio.TaskGroup() as under_way:
        for fault in faults:
            await asyncio.sleep(began + fault.after_s - now())
            worker = workers[fault.which % len(workers)]
            if fault.what in OF_WORKERS and not worker.up:
                continue  # a slow machine would never come to serve
            befallen.append(Befell(now(), fault, worker.pid))
            under_way.create_task(inflict(fault, place, worker))
    place.heal()


async def inflict(fault: Fault, place: Place, worker: Worker) -> None:
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
            worker.wall.put(3600 * fault.seconds * (1 if fault.count > 1 else -1))
        case "file occupied":
            await place.occupy(fault.seconds)
        case _:
            await _inflict_on(place.sites[fault.which % len(place.sites)], fault, place)


async def _inflict_on(site: Site, fault: Fault, place: Place) -> None:
    match fault.what:
        case "server killed":
            await place.crash(site, fault.seconds)
        case "server frozen":
            await place.stand_still(site, fault.seconds)
        case _ if site.proxy is not None:
            await _inflict_on_way(site.proxy, fault)


async def _inflict_on_way(proxy: Proxy, fault: Fault) -> None:
    match fault.what:
        case "replies swallowed":
            proxy.replies_lost += fault.count
        case "questions eaten":
            proxy.questions_lost += fault.count
        case "connections reset":
            proxy.reset()
        case "bytes held":
            proxy.flowing.clear()
            await asyncio.sleep(fault.seconds)
            proxy.flowing.set()
