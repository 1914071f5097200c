"""The retry budget of a host: a crowd of clients must not storm a server that is sick.

Backoff bounds what one request does; it does nothing against a thousand requests that all fail and
all come back. So the retries to one host share a bucket of tokens: a retry takes one, each new
request brings a part of one, and time brings a few, so that a quiet client can retry as well.
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
    """How many retries one host gets."""

    tokens_max: float = 20.0
    """How many retries may follow each other at once."""
    tokens_per_request: float = 0.2
    """In the long run one retry for five requests, beside those that time allows."""
    tokens_per_s: float = 0.5

    def __post_init__(self) -> None:
        for name in self.__slots__:
            given: object = getattr(self, name)
            least = 1 if name == "tokens_max" else 0
            if not isinstance(given, int | float) or not least <= given < math.inf:
                raise Misuse(f"RetryBudget({name}={given!r}): must be a number, at least {least}")


class Buckets:
    """The tokens of every host that was retried lately; for all threads.

    A host that never was has all its tokens, and a request adds nothing to them: as long as none is
    `short` of any, there is nothing to count.
    """

    def __init__(self, budget: RetryBudget, hosts_max: int = HOSTS_MAX) -> None:
        self._budget = budget
        self._hosts_max = hosts_max
        self.short: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By host: tokens, and when they were counted."""
        self._alone = threading.Lock()

    def earn(self, host: str, now: float) -> None:
        """A new request goes to this host."""
        with self._alone:
            if host not in self.short:
                return
            tokens = self._tokens(host, now) + self._budget.tokens_per_request
            if tokens < self._budget.tokens_max:
                self.short[host] = tokens, now
            else:
                del self.short[host]

    def spend(self, host: str, now: float) -> bool:
        """Take the token for one retry; False if there is none."""
        with self._alone:
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
