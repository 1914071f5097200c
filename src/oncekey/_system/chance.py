"""The only place that reads randomness, but for the stores that encrypt or cache."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

_TOKEN_BYTES = 16
"""The length that every claim checks: `oncekey._core.record.TOKEN_BYTES`."""


def random_token() -> bytes:
    """Return bytes that nobody can guess: the token of a claim, or the random part of a key."""
    return os.urandom(_TOKEN_BYTES)


chance: Callable[[], float] = random.random
"""A number from 0 to 1, to spread retries. Not for secrets."""
