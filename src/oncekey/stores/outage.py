"""An outage: told to the log once when it begins, with its reason, and once when it is over.

Whoever is refused meanwhile learns that the store does not answer, and not why: that is for the
operator, and a line for every request would bury it. A worker whose rounds fail pauses longer each
time, up to `PAUSE_S_MAX`.

A store that can be read and not written to, since its disk is full, say, answers every replay
between the claims that fail. So it is over when nothing has failed for a while.
"""

from __future__ import annotations

import logging

from oncekey._core.printable import printable
from oncekey._system.clock import Clock, SystemClock
from oncekey.errors import StoreError

_log = logging.getLogger("oncekey")
REASON_CHARS_MAX = 1000
QUIET_S = 5.0
"""How long nothing must have failed."""
PAUSE_S_MAX = 5.0
_DOUBLINGS_MAX = 10


class Outage:
    """Whether one connection's questions are answered, or one worker's rounds succeed."""

    __slots__ = ("_clock", "_ended", "_failed", "_failed_at", "_failures", "_level", "_told")

    def __init__(
        self,
        who: str = "the store",
        clock: Clock | None = None,
        *,
        fails: str = "does not answer",
        works: str = "answers again",
        level: int = logging.ERROR,
    ) -> None:
        self._failed, self._ended = f"{who} {fails}", f"{who} {works}"
        self._level = level
        self._clock = clock or SystemClock()
        self._failed_at: float | None = None
        """When it was last noticed, while it lasts."""
        self._failures = 0
        """In a row."""
        self._told: set[type[Exception]] = set()

    def noticed(self, error: Exception) -> None:
        self._failed_at = self._clock.monotonic()
        self._failures = min(self._failures + 1, _DOUBLINGS_MAX)
        is_ours = isinstance(error, StoreError)  # it says all there is to know
        kind = StoreError if is_ours else type(error)
        if kind not in self._told:
            self._told.add(kind)
            reason = printable(" ".join(str(error).split()), REASON_CHARS_MAX)
            told = None if is_ours else error
            _log.log(self._level, "%s: %s", self._failed, reason, exc_info=told)

    def over(self) -> None:
        failed_at, self._failures = self._failed_at, 0
        if failed_at is not None and self._clock.monotonic() - failed_at >= QUIET_S:
            self._failed_at = None
            self._told.clear()
            _log.warning("%s", self._ended)

    @property
    def failures(self) -> int:
        """How many in a row; many are counted as a few."""
        return self._failures

    def pause_s(self, usual_s: float) -> float:
        """How long a worker is to wait before its next round."""
        if not self._failures:
            return usual_s
        return max(usual_s, min(usual_s * 2.0**self._failures, PAUSE_S_MAX))
