"""The lease of an attempt: until when it owns its record, and in which phase of that it is.

A phase is changed by whoever drives the attempt, and only as `MOVES` allows. That the lease is lost
is no phase: any thread may find it out at any time, and what was begun still has to be ended.
"""

from __future__ import annotations

import enum

from oncekey._core.values import value
from oncekey._core.verbs import Swap


class Phase(enum.Enum):
    """What is going on while an attempt owns its record."""

    ASKING = "an earlier attempt died: the application is asked what became of it"
    RUNNING = "the handler runs"
    DROPPED = "nothing renews it: its response is in the caller's transaction, or it was cut off"
    LINGERING = "the handler has ended, and a thread of it still runs"
    ENDED = "it is over: the record was completed, given back, or left to lapse"


MOVES: dict[Phase, tuple[Phase, ...]] = {
    Phase.ASKING: (Phase.RUNNING, Phase.DROPPED, Phase.ENDED),
    Phase.RUNNING: (Phase.DROPPED, Phase.LINGERING, Phase.ENDED),
    Phase.DROPPED: (Phase.LINGERING, Phase.ENDED),
    Phase.LINGERING: (Phase.ENDED,),
    Phase.ENDED: (Phase.ENDED,),  # an end that was cut off is driven again
}
RENEWED = (Phase.ASKING, Phase.RUNNING, Phase.LINGERING)
"""The heartbeat keeps the lease alive."""
CONCLUDED = (Phase.LINGERING, Phase.ENDED)
"""The handler has ended, and what is to become of the record is decided."""


@value
class Leftover:
    """What is to be done with the record when the last thread of its handler has ended."""

    swap: Swap | None
    """None: it is left to lapse."""
    no_effect: bool


class Lease:
    """Until when an attempt owns its record, as this process knows it."""

    __slots__ = ("_unsignalled", "is_lost", "leftover", "phase", "until")

    def __init__(self, until: float, phase: Phase = Phase.RUNNING) -> None:
        self.until = until
        """By this process's monotonic clock, counted from before the claim was sent: never later
        than the store's own deadline.
        """
        self.phase = phase
        self.is_lost = False
        """The attempt does not own its record any more, or cannot know."""
        self.leftover: Leftover | None = None
        self._unsignalled = True

    def move(self, to: Phase) -> None:
        """Go on to another phase."""
        if to not in MOVES[self.phase]:
            raise AssertionError(f"{self.phase.name} is not followed by {to.name}")
        self.phase = to

    def lose(self) -> bool:
        """Note the loss. False if that was done before, or there is nothing left to lose."""
        if self.is_lost or self.phase is Phase.ENDED:
            return False
        try:
            del self._unsignalled  # which only one can: two threads may be here
        except AttributeError:
            return False
        self.is_lost = True
        return True
