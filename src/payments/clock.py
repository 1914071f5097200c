"""The clock: the only module of this package that reads the machine's time."""

from __future__ import annotations

import time


def now_s() -> int:
    """Return whole seconds since 1970, as in Stripe's objects."""
    return int(time.time())


def wall() -> float:
    """Return seconds since 1970, for deadlines stored in the database."""
    return time.time()


def monotonic() -> float:
    """Return seconds that never jump, to measure and wait within this process."""
    return time.monotonic()
