"""A recoverer in a schedule: it looks for what was abandoned, and takes it up as the real one does.

With one about, nothing that is resumed, or must not be repeated, stays abandoned for want of a
client (P6); and whatever it takes up has one owner like everything else (P1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncekey._core.op import Op
from oncekey._core.verbs import Due, Find, Requested
from simulator.ghost import RUNNING, Ghost
from simulator.scenario import HORIZON_S, STILL_AFTER_S, request_of
from simulator.task import Task
from simulator.upgrade import reads
from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.worker import Worker
    from simulator.world import World

EVERY_S = 7.0
ROWS_MAX = 100
LAST_S = HORIZON_S - 50.0
"""By then whatever was abandoned must have been taken up."""


class Recovering:
    """Looks every few seconds, in whichever process is up."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ghosts: dict[bytes, Ghost] = {}

    def knows(self, task: Task) -> None:
        """A request came by: this is what its record's id stands for."""
        self._ghosts[task.claim.id] = task.ghost

    def start(self) -> None:
        world = self._world
        world.kernel.at(EVERY_S * world.chance(), world.outside, self._round)

    def _round(self) -> None:
        world = self._world
        up = [worker for worker in world.workers if worker.up]
        if up:
            worker = up[-1]
            task = world.housekeeping(worker, "recoverer")
            task.op = self._look()
            world.kernel.at(world.kernel.now, worker, worker.begin, task)
        abandoned = any(ghost.state is RUNNING for ghost in world.oracle.ghosts.values())
        restless = world.kernel.now < STILL_AFTER_S  # something may still be on its way
        if world.kernel.now < LAST_S and (abandoned or restless or not world.settled):
            world.kernel.at(world.kernel.now + EVERY_S, world.outside, self._round)

    def _look(self) -> Op[None]:
        due: list[bytes] = yield Due(ROWS_MAX, abandoned=True)
        for record_id in due:
            ghost = self._ghosts[record_id]
            # One of another release could not read the request; there is a recoverer in each.
            for worker in self._world.workers:
                if worker.up and reads(worker.version, ghost.version):
                    worker.spawn_orphan(ghost, self._take_up)

    def _take_up(self, worker: Worker, task: Task) -> Op[None]:
        looked_at = worker.clock.monotonic()
        orphan = yield Find(task.claim.id)
        request = yield Requested(task.claim.id)
        if orphan is None or request is None:
            return
        yield from worker.application.take_up(task, orphan, looked_at)

    def check(self) -> None:
        """At the end nothing is left that it should have found. What has expired counts as gone."""
        now = self._world.store._now()
        for ghost in self._world.oracle.ghosts.values():
            if ghost.state is RUNNING and ghost.recovery != "rerun" and ghost.expires > now:
                raise Violation("P6", f"{ghost} was abandoned, and the recoverer left it alone")


# ---------------------------------------------------------------------------- at the store


def told(ghosts: list[Ghost], found: int, now: float) -> None:
    """The store said how many records are abandoned."""
    abandoned = [
        ghost
        for ghost in ghosts
        if ghost.state is RUNNING and ghost.lease_until <= now and ghost.recovery != "rerun"
    ]
    if found != len(abandoned):
        raise Violation("P6", f"{found} records are due where {len(abandoned)} are abandoned")


def requested(ghost: Ghost, task: Task, request: bytes | None) -> None:
    """The store gave the request that was kept with a claim."""
    kept = request_of(ghost.intent) if ghost.state is RUNNING and ghost.intent else None
    if request != kept:
        raise Violation("P5", f"{task} is given the request {request!r}; {ghost} has {kept!r}")
