"""The server's date, from the `Date` of its answers. Pure but for the clock that it is given.

Conditions in DynamoDB know no time, but every answer says what time it is there. Retention is
measured by that and by the host's monotonic clock, so that nobody's wall clock matters: neither its
skew nor somebody who sets it. Leases are not measured by it at all: see `observed`.

An answer dated D was made in [D, D + 1 s), after it was asked and before it was heard. That bounds
the difference between the two clocks from both sides, and every answer may narrow it.
"""

from __future__ import annotations

import math
import threading
from email.utils import parsedate_to_datetime

from oncekey._system.clock import Clock
from oncekey.errors import StoreUnfit

_MICROS = 1_000_000


class Dates:
    """What time it is at the server. Safe for threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._header = ""
        self._low = self._high = 0.0
        self._last = 0

    @property
    def known(self) -> bool:
        return self._high != 0.0

    def clock(self) -> float:
        """To be read before a question is asked, for `heard`."""
        return self._clock.monotonic()

    def heard(self, header: str | None, asked_at: float) -> None:
        """An answer bore this date."""
        if header is None or header == self._header:  # one a second is enough
            return
        heard_at = self._clock.monotonic()
        try:
            date = parsedate_to_datetime(header).timestamp()
        except ValueError:
            return
        with self._mutex:
            self._header = header
            low, high = date - heard_at, date + 1 - asked_at
            if max(low, self._low) > min(high, self._high):  # the first, or a clock was set
                self._low, self._high = low, high
            else:
                self._low, self._high = max(low, self._low), min(high, self._high)

    def now(self) -> int:
        """Microseconds since 1970, never ahead of the server: what is judged by it is not over too
        early.
        """
        self._must_be_known()
        return math.floor((self._clock.monotonic() + self._low) * _MICROS)

    def latest(self) -> int:
        """The same, never behind the server: what is to last counts from here."""
        self._must_be_known()
        return math.ceil((self._clock.monotonic() + self._high) * _MICROS)

    def _must_be_known(self) -> None:
        if not self.known:
            raise StoreUnfit(
                "the endpoint's answers bear no date: something in between drops the Date header"
            )

    def fence(self, above: int = 0) -> int:
        """A number above any that was given before: here, and as far as dates tell elsewhere."""
        with self._mutex:
            self._last = max(self._last + 1, above + 1, self.now())
            return self._last
