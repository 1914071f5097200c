"""Places: how many deliveries a courier sends at once, and to whom. Pure; it is told what happens.

An endpoint has a few. An account never has more than it leaves to all others: if whatever it has
hangs, it holds half of the places, a second such account half of the rest, and who has none yet
finds one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class DeliverySlots:
    """Those of one courier."""

    count: int
    per_endpoint_max: int
    _accounts: Counter[str] = field(default_factory=Counter)
    _endpoints: Counter[str] = field(default_factory=Counter)

    @property
    def free(self) -> int:
        return self.count - self._accounts.total()

    def has_one(self, account: str, endpoint: str) -> bool:
        """Whether there is one for them."""
        of_endpoint = self._endpoints[endpoint]
        return self._accounts[account] < self.free and of_endpoint < self.per_endpoint_max

    def take(self, account: str, endpoint: str) -> bool:
        """Take one, if there is one for them."""
        if not self.has_one(account, endpoint):
            return False
        self._accounts[account] += 1
        self._endpoints[endpoint] += 1
        return True

    def give_back(self, account: str, endpoint: str) -> None:
        """One that was taken."""
        self._accounts -= Counter([account])  # drops those at zero
        self._endpoints -= Counter([endpoint])

    def copy(self) -> DeliverySlots:
        """The same places, to try out what could be taken."""
        return DeliverySlots(
            self.count, self.per_endpoint_max, Counter(self._accounts), Counter(self._endpoints)
        )
