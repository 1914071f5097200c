"""Another clock, or other notices, for an engine that is already built."""

from __future__ import annotations

from oncekey._engine.guard import Guard
from oncekey._engine.notices import Notices
from oncekey._system.clock import Clock


def set_clock(guard: Guard, clock: Clock) -> None:
    """Let every part of an engine go by this clock."""
    for part in (guard, guard.calls, guard.ownership, guard.admission):
        part._clock = clock


def set_notices(guard: Guard, notices: Notices | None) -> None:
    """Let every part of an engine look at these notices; None: at none."""
    guard.admission.notices = notices
