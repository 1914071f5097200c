"""Patience: how long to wait for the answer to one question after another, by a single timer.

An event loop takes longer to set up and take down a timer than a store needs for all else on this
side of a question. So one timer runs on from question to question: when it rings it looks whether
the deadline of that moment has passed, and if not is set anew for what is left of it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Patience:
    """Calls `give_up` when a question has waited for its answer longer than it may."""

    def __init__(self, give_up: Callable[[], None]) -> None:
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._deadline = math.inf
        self._rings = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, seconds: float) -> None:
        """A question is asked."""
        self._deadline = self._loop.time() + seconds
        if self._deadline < self._rings:
            self._set()

    def end(self) -> None:
        """It is answered."""
        self._deadline = math.inf

    def close(self) -> None:
        """There will be no more questions."""
        self.end()
        if self._timer is not None:
            self._timer.cancel()

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings = self._deadline
        self._timer = self._loop.call_at(self._deadline, self._ring)

    def _ring(self) -> None:
        self._timer, self._rings = None, math.inf
        if self._deadline <= self._loop.time():
            self._give_up()
        elif self._deadline < math.inf:
            self._set()
