"""The only place that reads randomness, but for the stores that encrypt or cache."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable

_TOKEN_BYTES = 16
"""The length that every claim checks: `oncekey._core.record.TOKEN_BYTES`."""


random_token: Callable[[], bytes] = functools.partial(os.urandom, _TOKEN_BYTES)
"""Returns bytes that nobody can guess: the token of a claim, or the random part of a key."""

chance: Callable[[], float] = random.random
"""A number from 0 to 1, to spread retries. Not for secrets."""
