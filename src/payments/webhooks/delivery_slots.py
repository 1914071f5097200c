"""Delivery slots: how many deliveries a worker sends at once, and to whom. Pure.

An endpoint gets a few slots. An account never has more than it leaves free for others: if all its
endpoints hang, it holds half of the slots, a second such account half of the rest, and an account
without any still finds one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class DeliverySlots:
    """The slots of one worker."""

    count: int
    per_endpoint_max: int
    _accounts: Counter[str] = field(default_factory=Counter)
    _endpoints: Counter[str] = field(default_factory=Counter)

    @property
    def free(self) -> int:
        return self.count - self._accounts.total()

    def has_free(self, account: str, endpoint: str) -> bool:
        """Whether there is a slot for this account and endpoint."""
        of_endpoint = self._endpoints[endpoint]
        return self._accounts[account] < self.free and of_endpoint < self.per_endpoint_max

    def take(self, account: str, endpoint: str) -> bool:
        """Take a slot, if there is one."""
        if not self.has_free(account, endpoint):
            return False
        self._accounts[account] += 1
        self._endpoints[endpoint] += 1
        return True

    def release(self, account: str, endpoint: str) -> None:
        """Release a slot."""
        self._accounts -= Counter([account])  # drops those at zero
        self._endpoints -= Counter([endpoint])

    def copy(self) -> DeliverySlots:
        """Return a copy, to try out what could be taken."""
        return DeliverySlots(
            self.count, self.per_endpoint_max, Counter(self._accounts), Counter(self._endpoints)
        )
