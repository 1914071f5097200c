"""The server's clock, from the `Date` header of its responses. Pure except for the injected clock.

Conditions in DynamoDB cannot read a clock, but every response has a date. Retention is measured by
that date and by the host's monotonic clock, so wall clocks do not matter, neither skewed ones nor
ones that are set. Leases do not use it: see `leases`.

A response dated D was made in [D, D + 1 s), after it was requested and before it arrived. That
bounds the difference between the two clocks from both sides, and every response may narrow it.
"""

from __future__ import annotations

import math
import threading
from email.utils import parsedate_to_datetime

from oncekey._system.clock import Clock
from oncekey.errors import StoreUnfit

_MICROS = 1_000_000


class ServerClock:
    """The time at the server. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._header = ""
        self._low = self._high = 0.0
        self._last = 0

    @property
    def is_known(self) -> bool:
        return self._high != 0.0

    def monotonic(self) -> float:
        """Read the clock before a request, for `learn`."""
        return self._clock.monotonic()

    def learn(self, header: str | None, asked_at: float) -> None:
        """Learn from the date of a response."""
        if header is None or header == self._header:  # it changes once a second
            return
        heard_at = self._clock.monotonic()
        try:
            date = parsedate_to_datetime(header).timestamp()
        except ValueError:
            return
        with self._mutex:
            self._header = header
            low, high = date - heard_at, date + 1 - asked_at
            if max(low, self._low) > min(high, self._high):  # the first date, or a clock was set
                self._low, self._high = low, high
            else:
                self._low, self._high = max(low, self._low), min(high, self._high)

    def now(self) -> int:
        """Return microseconds since 1970, never ahead of the server, so that nothing expires too
        early.
        """
        self._must_be_known()
        return math.floor((self._clock.monotonic() + self._low) * _MICROS)

    def latest(self) -> int:
        """Return the same, never behind the server: new expiries count from here."""
        self._must_be_known()
        return math.ceil((self._clock.monotonic() + self._high) * _MICROS)

    def _must_be_known(self) -> None:
        if not self.is_known:
            raise StoreUnfit(
                "the endpoint's responses have no date: something in between drops the Date header"
            )

    def fence(self, above: int = 0) -> int:
        """Return a number above any returned before: in this process, and by the server's date in
        others.
        """
        with self._mutex:
            self._last = max(self._last + 1, above + 1, self.now())
            return self._last
