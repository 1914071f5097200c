"""An engine whose questions a test may answer itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oncekey._core.fingerprint import Fingerprint
from oncekey._core.op import Op, Pause, run
from oncekey._core.policy import Policy
from oncekey._core.record import Claim, Record
from oncekey._core.verbs import Find, Verb
from oncekey._engine.decisions import Call, Execute
from oncekey._engine.guard import Guard
from oncekey._system.clock import FakeClock
from oncekey.errors import StoreUnavailable
from oncekey.stores.batching import Gatherer
from oncekey.stores.memory import MemoryStore

CALL = Call("acme", "POST /orders", "k1", Fingerprint(1, bytes(32)))
LEASE_S = 30.0
DOWN = StoreUnavailable("down", sent=False)


class World:
    """A guard whose questions are answered by the memory store, unless a test answers itself."""

    def __init__(self, **policy: Any) -> None:
        self.clock = FakeClock()
        self.guard = Guard(clock=self.clock, chance=lambda: 0.5)
        self.policy = Policy(**{"lease_s": LEASE_S, **policy}).settled()
        self.store = MemoryStore(self.clock)
        self.asked: list[Verb] = []

    def ask(self, question: Any) -> Any:
        if isinstance(question, Pause):
            self.clock.advance(question.seconds)
            return None
        self.asked.append(question)
        return Gatherer(self.store).ask(question)

    def begin(self, call: Call = CALL, claim: Claim | None = None) -> Any:
        return self.drive(self.guard.begin(call, self.policy, claim))

    def drive(self, op: Op[Any], ask: Callable[[Any], Any] | None = None) -> Any:
        return run(op, ask or self.ask)

    def execute(self, call: Call = CALL) -> Execute:
        decision = self.begin(call)
        assert isinstance(decision, Execute)
        return decision

    def found(self) -> Record:
        found = self.ask(Find(self.guard.claim(CALL, self.policy).id))
        assert isinstance(found, Record)
        return found


@pytest.fixture
def world() -> World:
    return World()
