"""The retry schedule of failed deliveries, and when to give up."""

from __future__ import annotations

import math

from oncekey._core.validation import must_be_limits
from oncekey._core.values import value
from oncekey.errors import Misuse

MINUTE_S, HOUR_S = 60.0, 3_600.0
RETRIES_S = (
    *(5.0, 30.0, 2 * MINUTE_S, 10 * MINUTE_S, 30 * MINUTE_S),
    *(2 * HOUR_S, 5 * HOUR_S, 10 * HOUR_S, 14 * HOUR_S, 20 * HOUR_S, 24 * HOUR_S),
)
"""Waits after the first failure, the second, and so on: twelve attempts in a bit over 3 days."""
SPREAD = 0.2


@value
class Schedule:
    """Waits between attempts, with jitter, so that what failed together is not retried together.

    >>> Schedule().delay_s(1, chance=0.0), Schedule().delay_s(1, chance=0.5)
    (5.0, 5.5)
    >>> Schedule(retries_s=(1.0,)).delay_s(2, chance=0.0) is None
    True
    """

    retries_s: tuple[float, ...] = RETRIES_S
    spread: float = SPREAD
    """Jitter: a wait grows by at most this fraction of itself."""

    def __post_init__(self) -> None:
        for wait_s in self.retries_s:
            must_be_limits("Schedule", {"retries_s": wait_s})
        spread: object = self.spread
        if not isinstance(spread, int | float) or not 0 <= spread < math.inf:
            raise Misuse(f"Schedule(spread={spread!r}): must be a number, at least 0")

    @property
    def attempts_max(self) -> int:
        return len(self.retries_s) + 1

    def delay_s(
        self, attempts: int, chance: float, *, asked_s: float | None = None
    ) -> float | None:
        """Return how long to wait after this many failed attempts; None after the last.

        `chance` is a random number in [0, 1). `asked_s` is the receiver's Retry-After: no wait is
        shorter than that.
        """
        if not 0 < attempts < self.attempts_max:
            return None
        wait_s = self.retries_s[attempts - 1] * (1 + self.spread * chance)
        return max(wait_s, asked_s or 0.0)
