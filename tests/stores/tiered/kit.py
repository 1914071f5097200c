"""A tiered store over a truth that counts its verbs, and helpers that fill its cache."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from redis import Redis as Client

from oncekey._core.record import Record, State
from oncekey._core.verbs import Found, Insert, Inserted
from oncekey._system.clock import FakeClock
from oncekey.errors import StoreUnavailable
from oncekey.stores.memory import MemoryStore
from oncekey.stores.redis.connection import Endpoint
from oncekey.stores.redis.store import open_url as open_redis
from oncekey.stores.tiered.store import TieredStore
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import FACES, timeless
from tests.servers.process import free_port


class Truth(MemoryStore):
    """Records the verbs that it performs, and may be down."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.asked: list[Any] = []
        self.down = False

    def perform(self, verbs: Any) -> Any:
        self.asked += verbs
        if self.down:
            raise StoreUnavailable("the truth is down", sent=False)
        return super().perform(verbs)


@dataclass
class Tiers:
    """A tiered store, and both of its tiers."""

    truth: Truth
    clock: FakeClock
    prefix: str
    client: Any
    endpoint: Endpoint

    def store(self, endpoint: Endpoint | None = None) -> TieredStore:
        """Another process's view of the same tiers."""
        return TieredStore(
            self.truth, endpoint or self.endpoint, prefix=self.prefix, clock=self.clock
        )

    def elapse(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def entries(self) -> list[bytes]:
        found = self.client.keys(f"{self.prefix}:tiered:*")
        return [key for key in found if b":epoch:" not in key]

    def entry(self, record: Record) -> str:
        return f"{self.prefix}:tiered:{record.id.hex()}"

    def take_questions(self) -> list[Any]:
        """Return the verbs that the truth performed since the last call."""
        asked, self.truth.asked = self.truth.asked, []
        return asked


@pytest.fixture
def tiers(redis_url: str) -> Iterator[Tiers]:
    clock, prefix = FakeClock(), f"oncekey-{uuid.uuid4().hex}"
    endpoint = open_redis(redis_url).endpoint.with_timeout(5.0)
    with Client.from_url(redis_url) as client:
        yield Tiers(Truth(clock), clock, prefix, client, endpoint)
        for key in client.scan_iter(f"{prefix}:*"):
            client.unlink(key)


@pytest.fixture(params=list(FACES))
def face(request: pytest.FixtureRequest) -> Any:
    return FACES[request.param]


@pytest.fixture
def case(tiers: Tiers, face: Any) -> Iterator[Case]:
    with open_case(tiers, tiers.store(), face) as case:
        yield case


@contextlib.contextmanager
def open_case(tiers: Tiers, store: TieredStore, face: Any) -> Iterator[Case]:
    with contextlib.closing(face(store)) as asked:
        yield Case(Subject(store, elapse=tiers.elapse), asked)


def cache_record(case: Case, tiers: Tiers) -> Record:
    """Complete a record and replay it once, so that its copy is in the cache."""
    flush(case)  # creates the tenant's epoch
    record = case.stage(State.COMPLETED)
    assert_replayed(case, record)
    flush(case)
    assert tiers.client.exists(tiers.entry(record))
    tiers.take_questions()
    return record


def flush(case: Case) -> None:
    """Ask for something else: copies travel with the next question to the cache."""
    for _ in range(2):
        assert isinstance(case.ask(Insert(case.claim())), Inserted)


def assert_replayed(case: Case, record: Record) -> Record:
    """Retry: the response must be the truth's, and nothing may run."""
    found = case.ask(Insert(case.rival(record)))
    assert isinstance(found, Found)
    assert timeless(found.record) == timeless(record)
    assert found.record.expires_in_s == case.about(record.expires_in_s)
    assert found.record.age_s == case.about(record.age_s)
    return found.record


def unreachable(tiers: Tiers) -> Endpoint:
    return tiers.endpoint.at(("127.0.0.1", free_port()))
