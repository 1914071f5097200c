"""Stores in memory that fail when a test says so."""

from __future__ import annotations

import math
from typing import Any

from oncekey.errors import StoreUnavailable
from oncekey.stores.memory import MemoryStore


class Unreachable(MemoryStore):
    """No connection to it is ever made, so nothing is ever sent."""

    def connect(self) -> Any:
        raise StoreUnavailable("no route to it", sent=False)

    async def aconnect(self) -> Any:
        raise StoreUnavailable("no route to it", sent=False)


class Failing(MemoryStore):
    """Answers so many more batches, and none while it is down."""

    left = math.inf
    down = False

    def perform(self, verbs: Any) -> Any:
        if self.down or self.left <= 0:
            raise StoreUnavailable("no answer")
        self.left -= 1
        return (yield from super().perform(verbs))
