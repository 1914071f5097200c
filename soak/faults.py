"""What goes wrong, and when: planned from a seed, then inflicted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from soak.place import Place
from soak.workers import Worker

_EVERY_S = 0.8
_SHORT_OR_LONG_S = (0.2, 0.5, 1.0, 2.0, 2.5, 4.0)
"""Within a lease of 1.5 s, and beyond it."""

OF_WORKERS = {"worker killed": 3, "worker frozen": 4}
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


@dataclass(frozen=True, slots=True)
class Fault:
    """`seconds` is how long it lasts, `which` the worker, `count` how many messages it loses."""

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


def plan(seed: int, seconds: float, engine: str, workers: int) -> list[Fault]:
    """The same seed plans the same faults. How the machine interleaves them it does not plan."""
    chance = Random(seed)
    likely = OF_WORKERS | (OF_FILES if engine == "sqlite" else OF_SERVERS)
    faults: list[Fault] = []
    at_s = chance.uniform(0, 2 * _EVERY_S)
    while at_s < seconds:
        (what,) = chance.choices(list(likely), list(likely.values()))
        lasts_s, which = chance.choice(_SHORT_OR_LONG_S), chance.randrange(workers)
        faults.append(Fault(at_s, what, lasts_s, which, chance.choice((1, 1, 2, 4))))
        at_s += chance.uniform(0, 2 * _EVERY_S)
    return faults


async def inflict_all(
    faults: Sequence[Fault], place: Place, workers: Sequence[Worker], befallen: list[Befell]
) -> None:
    """One after the other, some at once. At the end everything is well again."""
    began = time.monotonic()
    async with asyncio.TaskGroup() as under_way:
        for fault in faults:
            await asyncio.sleep(began + fault.after_s - time.monotonic())
            worker = workers[fault.which]
            befallen.append(Befell(time.monotonic(), fault, worker.pid))
            under_way.create_task(inflict(fault, place, worker))
    place.heal()


async def inflict(fault: Fault, place: Place, worker: Worker) -> None:
    match fault.what:
        case "worker killed":
            worker.kill()
            worker.start()
        case "worker frozen":
            worker.freeze()
            await asyncio.sleep(fault.seconds)
            worker.thaw()
        case "file occupied":
            await place.occupy(fault.seconds)
        case "replies swallowed":
            place.proxy.replies_lost += fault.count
        case "questions eaten":
            place.proxy.questions_lost += fault.count
        case "connections reset":
            place.proxy.reset()
        case "bytes held":
            place.proxy.flowing.clear()
            await asyncio.sleep(fault.seconds)
            place.proxy.flowing.set()
        case "server killed":
            await place.crash(fault.seconds)
        case "server frozen":
            await place.stand_still(fault.seconds)
