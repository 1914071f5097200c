"""Stores in memory that fail when a test says so."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from typing import Any

from oncekey._core.op import Op
from oncekey._core.record import State
from oncekey._core.verbs import Insert, Swap, Verb
from oncekey._system.clock import Clock
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
    tries = 0

    def perform(self, verbs: Any) -> Any:
        self.tries += 1
        if self.down or self.left <= 0:
            raise StoreUnavailable("no answer")
        self.left -= 1
        return (yield from super().perform(verbs))


class Unheard(MemoryStore):
    """Carries claims out, of which nobody hears until it is told to be `heard`; and tells when one
    was given back.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.heard = False
        self.given_back = threading.Event()

    def perform(self, verbs: Any) -> Any:
        outcomes = yield from super().perform(verbs)
        if any(isinstance(verb, Swap) and verb.to is State.RELEASED for verb in verbs):
            self.given_back.set()
        if not self.heard and any(isinstance(verb, Insert) for verb in verbs):
            raise StoreUnavailable("no answer", sent=True)
        return outcomes


class Slow(MemoryStore):
    """Carries an insert out, and is in no hurry to say so."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.inserted = asyncio.Event()
        self.answers = asyncio.Event()

    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        outcomes = yield from super().perform(verbs)
        if any(isinstance(verb, Insert) for verb in verbs):
            yield "say so"
        return outcomes

    async def aconnect(self) -> Any:
        return self

    async def ask(self, question: Any) -> None:
        self.inserted.set()
        await self.answers.wait()

    async def close(self) -> None: ...
