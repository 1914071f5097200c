"""What time it is: the one place of this package that asks the machine."""

from __future__ import annotations

import time


def now_s() -> int:
    """Whole seconds since 1970, as Stripe's objects carry them."""
    return int(time.time())


def wall() -> float:
    """Seconds since 1970, for deadlines that are kept in the database."""
    return time.time()


def monotonic() -> float:
    """Seconds that never jump, for measuring and waiting within this process."""
    return time.monotonic()
