"""Requests that wait for a record to change: how many there may be."""

from __future__ import annotations

import threading

from oncekey._core.policy import Policy


class Waiters:
    """How many requests wait for a record now. Bounded, for one key and in all."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._by_id: dict[bytes, int] = {}
        self.total = 0

    def enter(self, record_id: bytes, policy: Policy) -> bool:
        """Whether there is room for one more."""
        with self._mutex:
            here = self._by_id.get(record_id, 0)
            if here >= policy.waiters_per_key_max or self.total >= policy.waiters_max:
                return False
            self._by_id[record_id] = here + 1
            self.total += 1
            return True

    def leave(self, record_id: bytes) -> None:
        with self._mutex:
            self.total -= 1
            left = self._by_id[record_id] - 1
            if left:
                self._by_id[record_id] = left
            else:
                del self._by_id[record_id]
