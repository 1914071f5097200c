"""An outage: told to the log once when it begins, with its reason, and once when it is over.

Whoever is refused meanwhile learns that the store does not answer, and not why: that is for the
operator, and a line for every request would bury it.

A store that can be read and not written to, since its disk is full, say, answers every replay
between the claims that fail. So it is over when nothing has failed for a while.
"""

from __future__ import annotations

import logging

from oncekey.clock import Clock, SystemClock
from oncekey.core.printable import printable
from oncekey.errors import StoreUnavailable

_log = logging.getLogger("oncekey")
REASON_CHARS_MAX = 1000
QUIET_S = 5.0
"""How long nothing must have failed."""


class Outage:
    """Whether one connection's questions are answered."""

    __slots__ = ("_clock", "_failed_at", "_who")

    def __init__(self, who: str = "the store", clock: Clock | None = None) -> None:
        self._who = who
        self._clock = clock or SystemClock()
        self._failed_at: float | None = None
        """When it was last noticed, while it lasts."""

    def noticed(self, error: StoreUnavailable) -> None:
        began, self._failed_at = self._failed_at is None, self._clock.monotonic()
        if began:
            reason = printable(" ".join(str(error).split()), REASON_CHARS_MAX)
            _log.warning("%s does not answer: %s", self._who, reason)

    def over(self) -> None:
        failed_at = self._failed_at
        if failed_at is not None and self._clock.monotonic() - failed_at >= QUIET_S:
            self._failed_at = None
            _log.warning("%s answers again", self._who)
