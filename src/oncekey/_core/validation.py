"""Check limits and names where they are written, not where they first matter."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from oncekey.errors import Misuse

_SECONDS = ("_s", "_s_min", "_s_max")


def must_be_seconds(given: Mapping[str, object]) -> None:
    """Raise `Misuse` unless each is a number of seconds, 0 or more and finite."""
    for name, seconds in given.items():
        if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise Misuse(f"{name}={seconds!r}: must be a number of seconds, 0 or more")


def must_be_limits(whose: str, given: Mapping[str, object]) -> None:
    """Raise `Misuse` unless each is a finite number above 0; a whole one unless its name says that
    it counts seconds.
    """
    for name, limit in given.items():
        number = limit if isinstance(limit, int | float) else math.nan
        if not 0 < number < math.inf:
            raise Misuse(f"{whose}({name}={limit!r}): must be a number, more than 0")
        if not name.endswith(_SECONDS) and not isinstance(limit, int):
            raise Misuse(f"{whose}({name}={limit!r}): must be a whole number")


TENANT_CHARS_MAX = 1_000
OPERATION_CHARS_MAX = 10_000
"""A request that matches no route template is named by its path, which not every server limits."""

# No store keeps these in a text column, and replacing them would make different names equal.
_UNREADABLE = re.compile("[\0\ud800-\udfff]")


def is_storable(name: object, chars_max: float = math.inf) -> bool:
    """Return whether every store can keep this name unchanged."""
    return isinstance(name, str) and len(name) <= chars_max and not _UNREADABLE.search(name)
