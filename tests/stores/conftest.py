"""The table of our stores: each as a subject for the contract, empty for every test."""

from __future__ import annotations

import pytest

from oncekey.clock import FakeClock
from oncekey.stores.memory import MemoryStore
from oncekey.testing.contract import Subject


@pytest.fixture
def memory() -> Subject:
    clock = FakeClock()
    return Subject(MemoryStore(clock), elapse=clock.advance)


STORES = ("memory",)


@pytest.fixture(params=STORES)
def subject(request: pytest.FixtureRequest) -> Subject:
    """Each of our stores in turn."""
    subject: Subject = request.getfixturevalue(request.param)
    return subject
