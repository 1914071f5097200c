"""A sealed store in memory, and records in it."""

from __future__ import annotations

from typing import Any

import pytest

from oncekey._core import lifecycle
from oncekey._core.record import Answer, Claim
from oncekey._core.verbs import Done, Insert, Inserted, Swap
from oncekey._system.clock import FakeClock
from oncekey.stores.memory import MemoryStore
from oncekey.stores.sealed.store import SealedStore
from oncekey.testing.contract.subject import new_claim
from tests.stores.sealed.kit import SECRET, ask

ANSWER = Answer(201, ((b"location", b"/orders/1"),), b"created")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def inner(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def store(inner: MemoryStore) -> SealedStore:
    return SealedStore(inner, [SECRET])


def claim(**changes: Any) -> Claim:
    return new_claim(**{"field_digests": {"amount": "ab12"}, **changes})


def complete(claimed: Claim, fence: int = 1, answer: Answer = ANSWER) -> Swap:
    held = lifecycle.Held(claimed.id, fence, claimed.token)
    return lifecycle.complete(held, answer, retention_s=600.0, resource_id="order_1")


def insert_completed(store: Any, **changes: Any) -> Claim:
    """A claim whose record is completed."""
    claimed = claim(**changes)
    [inserted] = ask(store, Insert(claimed))
    assert isinstance(inserted, Inserted)
    assert ask(store, complete(claimed, inserted.fence)) == [Done(inserted.fence)]
    return claimed
