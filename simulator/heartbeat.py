"""The real heartbeat, its thread's loop turned into events."""

from __future__ import annotations

import threading
from typing import Any

from oncekey._core.verbs import Swap
from oncekey._engine.attempt import Attempt
from oncekey._engine.heartbeat import RETRY_S, Heartbeat


class Heart(Heartbeat):
    """Whom to renew, when, and what an outcome means is decided by the inherited code; only the
    waiting and the asking is the simulator's.
    """

    def _start(self) -> None:
        self._thread = threading.current_thread()  # believed to run; never started, never joined
        self._wakes_at = float("inf")

    def next_at(self) -> float | None:
        return self._schedule.next_at()

    def due(self) -> list[tuple[Attempt, Swap]]:
        """Who is to be renewed now, with the verb that does it."""
        now = self._clock.monotonic()
        alive = self._renewable(self._schedule.take(now), now)
        return [(attempt, self._ownership.renewal(attempt)) for attempt in alive]

    def _still_running(self, attempt: Attempt) -> bool:
        return attempt.ports is not None and attempt.ports.still_running(attempt)

    def left_alone(self) -> list[tuple[Attempt, Swap | None]]:
        """Whose last thread has ended, with the verb that gives the record back."""
        return self._left_alone()

    def give_back(self, attempt: Attempt, outcome: object) -> None:
        self._give_back(attempt, outcome)

    def beaten(self, attempts: list[Attempt], outcomes: list[Any], asked_at: float) -> None:
        self._settle(zip(attempts, outcomes, strict=True), asked_at)

    def missed(self, attempts: list[Attempt]) -> None:
        self._again(attempts, RETRY_S)
