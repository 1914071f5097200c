"""How long to wait before a retry. Randomness and time are arguments."""

from __future__ import annotations

import re

from oncekey._core.http_dates import parse_http_date

RETRY_AFTER_S_MAX = 3600.0
"""No client waits longer because a server said so: it retries in between."""
_DOUBLINGS_MAX = 40


def full_jitter(attempt: int, base_s: float, cap_s: float, chance: float) -> float:
    """Return a delay from 0 to a bound that doubles with every attempt, from 0, up to `cap_s`.

    `chance` is a random number in [0, 1). The whole delay is random, not only a part of it, so that
    clients that failed together do not come back together.

    >>> [full_jitter(attempt, 0.5, 3.0, 0.5) for attempt in range(4)]
    [0.25, 0.5, 1.0, 1.5]
    """
    return min(base_s * 2.0 ** min(attempt, _DOUBLINGS_MAX), cap_s) * chance


def retry_after(
    value: str | bytes, now_wall: float, *, cap_s: float = RETRY_AFTER_S_MAX
) -> float | None:
    """Return the seconds of a Retry-After header, from 0 to `cap_s`; None if it is malformed.

    Accepts whole seconds and HTTP dates, as in RFC 9110, and the fractions that some servers send.

    >>> retry_after("7", now_wall=0.0)
    7.0
    >>> retry_after("Thu, 01 Jan 1970 00:00:30 GMT", now_wall=10.0)
    20.0
    """
    text = (value.decode("latin-1") if isinstance(value, bytes) else value).strip(" \t")
    if _SECONDS.fullmatch(text):
        wait_s = float(text)
    elif (date := parse_http_date(text)) is not None:
        wait_s = date - now_wall
    else:
        return None
    return max(0.0, min(wait_s, cap_s))


_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")
