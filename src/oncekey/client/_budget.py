"""The retry budget of a host: many clients must not overload a failing server.

Backoff limits one request's retries, but not a thousand requests that fail and retry together. So
all retries to one host share a token bucket: a retry takes one token, each new request adds a
fraction, and time adds a few, so that a quiet client can retry too.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass

from oncekey.errors import Misuse

HOSTS_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudget:
    """How many retries go to one host."""

    tokens_max: float = 20.0
    """How many retries may happen in a burst."""
    tokens_per_request: float = 0.2
    """In the long run one retry per five requests, plus those that time allows."""
    tokens_per_s: float = 0.5

    def __post_init__(self) -> None:
        for name in self.__slots__:
            given: object = getattr(self, name)
            least = 1 if name == "tokens_max" else 0
            if not isinstance(given, int | float) or not least <= given < math.inf:
                raise Misuse(f"RetryBudget({name}={given!r}): must be a number, at least {least}")


class Buckets:
    """The token buckets of recently retried hosts; thread-safe.

    A host without retries has a full bucket and is not stored, so requests cost nothing while
    `short` is empty.
    """

    def __init__(self, budget: RetryBudget, hosts_max: int = HOSTS_MAX) -> None:
        self._budget = budget
        self._hosts_max = hosts_max
        self.short: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By host: its tokens, and when they were counted."""
        self._lock = threading.Lock()

    def earn(self, host: str, now: float) -> None:
        """Add the tokens of a new request to this host."""
        with self._lock:
            if host not in self.short:
                return
            tokens = self._tokens(host, now) + self._budget.tokens_per_request
            if tokens < self._budget.tokens_max:
                self.short[host] = tokens, now
            else:
                del self.short[host]

    def spend(self, host: str, now: float) -> bool:
        """Take a token for one retry; return False if there is none."""
        with self._lock:
            tokens = self._tokens(host, now)
            may = tokens >= 1.0
            self.short[host] = tokens - may, now
            self.short.move_to_end(host)
            if len(self.short) > self._hosts_max:
                self.short.popitem(last=False)
            return may

    def _tokens(self, host: str, now: float) -> float:
        most = self._budget.tokens_max
        tokens, counted = self.short.get(host, (most, now))
        return min(most, tokens + max(0.0, now - counted) * self._budget.tokens_per_s)
