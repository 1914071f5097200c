"""Virtual time, and processes that can be paused and killed.

There is no event loop and no thread: a heap of what is going to happen, and a clock that jumps from
one event to the next. Everything that happens belongs to a process. While a process is paused its
events wait for it, as after SIGSTOP; what a killed process still had to do never happens, and no
`finally` of it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

EVENTS_MAX = 20_000
"""A schedule that needs more does not come to rest."""


class Restless(Exception):
    """A schedule went on beyond `EVENTS_MAX`."""


class Process:
    """Something that can stop and die. `life` tells one incarnation from the next."""

    __slots__ = ("life", "name", "paused_until")

    def __init__(self, name: str) -> None:
        self.name = name
        self.life = 0
        self.paused_until = 0.0


Event = tuple[float, int, Process, int, Callable[..., None], tuple[Any, ...]]


class Kernel:
    """What is going to happen, in the order in which it will."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._heap: list[Event] = []
        self._count = 0

    def at(self, when: float, process: Process, act: Callable[..., None], *args: Any) -> None:
        """Let `process` do something at a point of virtual time."""
        self._count += 1
        heappush(self._heap, (when, self._count, process, process.life, act, args))

    def post(self, delay_s: float, process: Process, act: Callable[..., None], *args: Any) -> None:
        """The same, where the moment is open: messages, handlers, pauses. The exhaustive mode tries
        them in every order.
        """
        self._count += 1
        heappush(self._heap, (self.now + delay_s, self._count, process, process.life, act, args))

    def run(self, until: float) -> None:
        """Let everything happen that happens before `until`."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            event = heappop(heap)
            when, _, process, life, act, args = event
            if process.life != life:
                continue
            if process.paused_until > when:
                heappush(heap, (process.paused_until, *event[1:]))
                continue
            self.now = when
            self.events += 1
            if self.events > EVENTS_MAX:
                raise Restless(f"{EVENTS_MAX} events, and no end")
            act(*args)
