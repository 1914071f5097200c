"""What the session of a simulated request runs on, in place of a runtime's threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncekey._core.record import Claim
from oncekey._engine.attempt import Attempt
from oncekey._engine.ownership import Ownership

if TYPE_CHECKING:
    from simulator.task import Task


class TaskPorts:
    """The engine and the heartbeat of a task's process; claims are forgotten in tasks beside it."""

    __slots__ = ("_task", "heartbeat", "ownership")

    def __init__(self, task: Task) -> None:
        self._task = task
        self.ownership: Ownership = task.worker.guard.ownership
        self.heartbeat: Any = self

    def add(self, attempt: Attempt) -> None:
        """From here on the lease is renewed."""
        self._task.worker.add_beat(self._task, attempt)

    def drop(self, attempt: Attempt) -> None:
        self._task.worker.heart.drop(attempt)

    def linger(self, attempt: Attempt) -> None:
        """A thread of its handler goes on: the lease is renewed until that ends."""
        self._task.worker.linger(self._task, attempt)

    @property
    def is_draining(self) -> bool:
        """Whether its process takes no more requests, and is about to stop."""
        return self._task.worker.draining

    def still_running(self, attempt: Attempt) -> bool:
        """Whether the handler left a thread behind that has not ended."""
        return self._task.leftover_until > self._task.worker.kernel.now

    def forget(self, claim: Claim) -> None:
        """Release a claim that may have been granted unheard, unless the process has died."""
        task = self._task
        if task.life == task.worker.life and not task.worker.world.over:
            op = task.worker.guard.ownership.forget(claim)
            task.worker.spawn_aside("forget", task, claim, op)
