"""What a worker does while its rounds fail: it says so once, waits longer each time, and says once
when they succeed again.
"""

from __future__ import annotations

import logging

log = logging.getLogger("payments")

PAUSE_S_MAX = 5.0
_DOUBLINGS_MAX = 10


class Outage:
    """Whether the rounds of one worker succeed. For one thread."""

    def __init__(self, fails: str, works: str) -> None:
        self._fails = fails
        self._works = works
        self._failures = 0
        """In a row."""
        self._told: set[type[Exception]] = set()

    def failed(self, error: Exception, *, is_known: bool = False) -> None:
        """A round did. What `is_known` says enough by its text, and needs no traceback."""
        self._failures = min(self._failures + 1, _DOUBLINGS_MAX)
        if type(error) not in self._told:
            self._told.add(type(error))
            log.warning("%s: %s", self._fails, error, exc_info=None if is_known else error)

    def succeeded(self) -> None:
        if self._failures:
            self._failures = 0
            self._told.clear()
            log.warning("%s", self._works)

    def pause_s(self, usual_s: float) -> float:
        """How long to wait before the next round."""
        return max(usual_s, min(usual_s * 2.0**self._failures, PAUSE_S_MAX))
