"""The table of our stores: each as a subject for the contract, empty for every test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial

import pytest
from redis import Redis

from oncekey.clock import FakeClock
from oncekey.stores import redis as redis_store
from oncekey.stores.memory import MemoryStore
from oncekey.testing.contract import Subject
from tests.stores import elapse


@pytest.fixture
def memory() -> Subject:
    clock = FakeClock()
    return Subject(MemoryStore(clock), elapse=clock.advance)


@pytest.fixture
def redis(redis_url: str) -> Iterator[Subject]:
    prefix = f"oncekey-{uuid.uuid4().hex}"
    store = redis_store.open_url(f"{redis_url}?prefix={prefix}")
    yield Subject(store, elapse=partial(elapse.redis, redis_url, prefix))
    with Redis.from_url(redis_url) as client:
        for key in client.scan_iter(f"{prefix}:*"):
            client.unlink(key)


STORES = ("memory", "redis")


@pytest.fixture(params=STORES)
def subject(request: pytest.FixtureRequest) -> Subject:
    """Each of our stores in turn."""
    subject: Subject = request.getfixturevalue(request.param)
    return subject
