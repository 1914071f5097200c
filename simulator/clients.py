"""Clients: they retry with the same key until they have an answer, at whichever worker is up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncekey._core.problems import Kind
from simulator.faults import Fault
from simulator.scenario import Errand
from simulator.task import Task
from simulator.worker import Worker

if TYPE_CHECKING:
    from simulator.world import World

_RETRIED = {
    Kind.IN_FLIGHT.value: 6.5,
    Kind.STORE_UNAVAILABLE.value: 1.5,
    Kind.UNSETTLED.value: 6.5,
    "failed": 0.5,
    "killed": 0.1,
}
"""What is not the end, and how long a client waits then."""
_UNKNOWN = (Kind.OUTCOME_UNKNOWN.value, "failed, outcome unknown")
_NEWER_TRIES_MAX = 1
_COMES_BACK_S = 20.0
"""By then a worker that was replaced is up, and a retry is on its way to it."""
_HANG_UPS_MAX = 2
"""After that even the impatient wait for an answer."""


class Client:
    """Somebody who wants one thing done."""

    __slots__ = ("_hearing", "_newer", "done", "errand", "index", "name", "tries", "world")

    def __init__(self, world: World, index: int, errand: Errand) -> None:
        self.world = world
        self.index = index
        self.name = f"c{index}"
        self.errand = errand
        self.tries = 0
        self.done = ""
        """What it was told in the end."""
        self._hearing: Task | None = None
        self._newer = 0

    def send(self) -> None:
        """Try: a worker that is up takes the request."""
        world = self.world
        worker = world.route(self)
        if worker is None:
            self._later(1.0)
            return
        self.tries += 1
        world.kernel.post(world.faults.latency_s(), world.outside, self._arrive, worker, self.tries)
        if self.errand.patience_s and self.tries <= _HANG_UPS_MAX:
            at = world.kernel.now + self.errand.patience_s
            world.kernel.at(at, world.outside, self._lose_patience, self.tries)

    def _arrive(self, worker: Worker, number: int) -> None:
        if number != self.tries:  # given up before it was accepted
            return
        if not worker.up:
            self._later(_RETRIED["killed"])
            return
        if worker.paused_until > self.world.kernel.now:
            at = worker.paused_until
            self.world.kernel.at(at, self.world.outside, self._arrive, worker, number)
            return
        task = worker.task(f"{self.name}.{number}", self)
        self._hearing = task
        self.world.oracle.trace.append(self.index << 2 & 0xFF | worker.index)
        self.world.timeline.says(task, f"request {'/'.join(self.errand.intent)}")
        worker.begin(task)

    def told(self, task: Task, what: str) -> None:
        """An answer arrives."""
        if task is not self._hearing or self.done:
            return
        self._hearing = None
        if what in _RETRIED:
            self._later(_RETRIED[what])
        elif what == Kind.NEWER_RECORD.value and self._newer < self._newer_tries_max():
            self._newer += 1
            self._later(5.0)
        else:
            self.done = what
            if what in _UNKNOWN:
                self.world.call_operator(task)

    def _newer_tries_max(self) -> int:
        """While a release is rolled out, it comes to one that can tell."""
        until = max(self.world.scenario.upgrades_at, default=0.0) + _COMES_BACK_S
        return _NEWER_TRIES_MAX if self.world.kernel.now > until else self._newer + 1

    def lost(self, task: Task | None) -> None:
        """The worker died with the request in its hands."""
        if task is self._hearing and not self.done:
            self._hearing = None
            self._later(_RETRIED["killed"])

    def _later(self, seconds: float) -> None:
        world = self.world
        at = world.kernel.now + seconds * (0.4 + world.chance())
        world.kernel.at(at, world.outside, self.send)

    def _lose_patience(self, number: int) -> None:
        """Hang up and ask elsewhere. Some servers notice and drop what they have not begun."""
        if number != self.tries or self.done:
            return
        world, task = self.world, self._hearing
        self._hearing = None
        if task is not None and task.worker.life == task.life and not task.over:
            deciding = not task.ran
            if world.faults.cancels and deciding and task.worker.paused_until <= world.kernel.now:
                world.faults.injected[Fault.CANCEL] += 1
                world.timeline.says(task, "!! cancelled")
                task.worker.cancel(task)
            else:
                world.faults.injected[Fault.HANG_UP] += 1
                world.timeline.says(task, "!! its client hangs up")
        self.send()
