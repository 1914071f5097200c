"""Limits as they are given: checked where somebody writes them, not where they count."""

from __future__ import annotations

import math
from collections.abc import Mapping

from oncekey.errors import Misuse

_SECONDS = ("_s", "_s_min", "_s_max")


def must_be_seconds(given: Mapping[str, object]) -> None:
    """`Misuse` unless each is a number of seconds, 0 or more and not infinite."""
    for name, seconds in given.items():
        if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise Misuse(f"{name}={seconds!r}: must be a number of seconds, 0 or more")


def must_be_limits(whose: str, given: Mapping[str, object]) -> None:
    """`Misuse` unless each is a number, more than 0 and not infinite. What does not count seconds,
    by its name, is a whole one.
    """
    for name, limit in given.items():
        number = limit if isinstance(limit, int | float) else math.nan
        if not 0 < number < math.inf:
            raise Misuse(f"{whose}({name}={limit!r}): must be a number, more than 0")
        if not name.endswith(_SECONDS) and not isinstance(limit, int):
            raise Misuse(f"{whose}({name}={limit!r}): must be a whole number")
