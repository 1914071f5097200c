"""Another clock for an engine that is already built."""

from __future__ import annotations

from oncekey._engine.guard import Guard
from oncekey._system.clock import Clock


def set_clock(guard: Guard, clock: Clock) -> None:
    """Let every part of an engine go by this clock."""
    for part in (guard, guard.calls, guard.ownership, guard.admission):
        part._clock = clock
