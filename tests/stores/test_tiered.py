"""A tiered store: the contract, and that no cache can cause a second run or a wrong answer."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import pytest
from redis import Redis as Client

from oncekey.clock import FakeClock
from oncekey.core import lifecycle
from oncekey.core.record import Record, State
from oncekey.core.verbs import Count, Done, Find, Found, Insert, Inserted, Purge, Scan, Swap
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.stores import join
from oncekey.stores.memory import MemoryStore
from oncekey.stores.redis import open_url as open_redis
from oncekey.stores.redis_connection import Endpoint
from oncekey.stores.sealed import SealedStore
from oncekey.stores.tiered import ENTRY_BYTES_MAX, STOP_S, WAITING_MAX, TieredStore
from oncekey.stores.tiered_connection import REST_S
from oncekey.stores.tiered_entry import MARGIN_S
from oncekey.stores.url import open_store
from oncekey.testing.contract import (
    Case,
    InsertContract,
    PurgeContract,
    RaceContract,
    RepeatContract,
    StoreContract,
    Subject,
    SwapContract,
    SweepContract,
    WatchContract,
)
from oncekey.testing.contract.subject import ANSWER, FACES, Face, timeless
from tests.servers import start_redis
from tests.servers.process import free_port
from tests.stores.sealed_kit import SECRET
from tests.stores.test_against_memory import compare
from tests.stores.wire import Wire

pytestmark = pytest.mark.slow

CACHE_S_MAX = 0.2


class Truth(MemoryStore):
    """Counts what it is asked, and may be down."""

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

    def asked(self) -> list[Any]:
        """What the truth was asked since the last time."""
        asked, self.truth.asked = self.truth.asked, []
        return asked


@pytest.fixture
def tiers(redis_url: str) -> Iterator[Tiers]:
    clock, prefix = FakeClock(), f"oncekey-{uuid.uuid4().hex}"
    endpoint = open_redis(redis_url).endpoint.within(5.0)
    with Client.from_url(redis_url) as client:
        yield Tiers(Truth(clock), clock, prefix, client, endpoint)
        for key in client.scan_iter(f"{prefix}:*"):
            client.unlink(key)


@pytest.fixture(params=list(FACES))
def face(request: pytest.FixtureRequest) -> Any:
    return FACES[request.param]


@pytest.fixture
def case(tiers: Tiers, face: Any) -> Iterator[Case]:
    yield from _case(tiers, tiers.store(), face)


def _case(tiers: Tiers, store: TieredStore, face: Any) -> Iterator[Case]:
    with contextlib.closing(face(store)) as asked:
        yield Case(Subject(store, elapse=tiers.elapse), asked)


def _cached(case: Case, tiers: Tiers) -> Record:
    """A completed record that was replayed once, so that its copy is in the cache."""
    _flush(case)  # makes the tenant's epoch
    record = case.stage(State.COMPLETED)
    _replayed(case, record)
    _flush(case)
    assert tiers.client.exists(tiers.entry(record))
    tiers.asked()
    return record


def _flush(case: Case) -> None:
    """Ask for something else: copies travel with the next question to the cache."""
    for _ in range(2):
        assert isinstance(case.ask(Insert(case.claim())), Inserted)


def _replayed(case: Case, record: Record) -> Record:
    """What a retry is told: it must be the truth, and nothing may run."""
    found = case.ask(Insert(case.rival(record)))
    assert isinstance(found, Found)
    assert timeless(found.record) == timeless(record)
    assert found.record.expires_in_s == case.about(record.expires_in_s)
    assert found.record.age_s == case.about(record.age_s)
    return found.record


# ---------------------------------------------------------------------------------------- contract


class TestTiered(StoreContract):
    """With a cache that is there."""

    @pytest.fixture
    def subject(self, tiers: Tiers) -> Subject:
        return Subject(tiers.store(), elapse=tiers.elapse)


class TestOverPostgres(InsertContract, SwapContract, RepeatContract, PurgeContract, RaceContract):
    """With a database for the truth, whose clock is its own."""

    @pytest.fixture
    def subject(self, postgres: Subject, tiers: Tiers) -> Subject:
        def elapse(seconds: float) -> None:
            postgres.elapse(seconds)
            tiers.elapse(seconds)

        store = TieredStore(postgres.store, tiers.endpoint, prefix=tiers.prefix, clock=tiers.clock)
        return Subject(store, elapse=elapse)


class TestWithoutCache(InsertContract, WatchContract, SweepContract, RaceContract):
    """With a cache that nobody answers for: slower, and right."""

    @pytest.fixture
    def subject(self, tiers: Tiers) -> Subject:
        return Subject(tiers.store(_nowhere(tiers)), elapse=tiers.elapse)


def _nowhere(tiers: Tiers) -> Endpoint:
    return tiers.endpoint.at(("127.0.0.1", free_port()))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("colour", FACES)
def test_it_behaves_like_memory(tiers: Tiers, colour: str) -> None:
    compare(Subject(tiers.store(), elapse=tiers.elapse), colour, examples=40)


# ----------------------------------------------------------------------------------------- replays


def test_a_replay_does_not_touch_the_truth(case: Case, tiers: Tiers) -> None:
    record = _cached(case, tiers)
    for _ in range(3):
        _replayed(case, record)
    assert tiers.asked() == []


def test_a_copy_serves_every_process(case: Case, tiers: Tiers, face: Any) -> None:
    record = _cached(case, tiers)
    for beside in _case(tiers, tiers.store(), face):
        _flush(beside)
        tiers.asked()
        _replayed(beside, record)
        assert tiers.asked() == []


def test_a_mismatch_is_judged_by_the_copy(case: Case, tiers: Tiers) -> None:
    """P5: the engine compares fingerprints, so the copy must carry the right one."""
    record = _cached(case, tiers)
    found = case.ask(Insert(case.rival(record, fingerprint=b"other" * 4)))
    assert isinstance(found, Found)
    assert found.record.fingerprint == record.fingerprint


@pytest.mark.parametrize("state", [State.RUNNING, State.RELEASED, State.UNKNOWN])
def test_only_what_completed_is_copied(case: Case, tiers: Tiers, state: State) -> None:
    _flush(case)
    record = case.begin() if state is State.RUNNING else case.stage(state)
    for _ in range(3):
        assert isinstance(case.ask(Insert(case.rival(record))), Found)
    assert tiers.entries() == []


def test_large_answers_are_left_to_the_truth(case: Case, tiers: Tiers) -> None:
    _flush(case)
    large = replace(ANSWER, body=b"x" * ENTRY_BYTES_MAX)
    record = case.done(case.complete(case.begin(), large))
    for _ in range(2):
        _replayed(case, record)
        _flush(case)
    assert tiers.entries() == []


def test_the_truth_may_be_down_while_answers_are_replayed(
    case: Case, tiers: Tiers, face: Any
) -> None:
    record = _cached(case, tiers)
    tiers.truth.down = True
    _replayed(case, record)
    replay, fresh = Insert(case.rival(record)), Insert(case.claim())
    told = case.together([replay, fresh])
    assert isinstance(told[0], Found)
    assert isinstance(told[1], StoreUnavailable)


def test_a_completion_that_is_rolled_back_was_never_copied(
    postgres: Subject, postgres_url: str, tiers: Tiers, face: Any
) -> None:
    store = TieredStore(postgres.store, tiers.endpoint, prefix=tiers.prefix)
    with contextlib.closing(face(store)) as asked, psycopg.connect(postgres_url) as db:
        case = Case(Subject(store, elapse=tiers.elapse), asked)
        _flush(case)
        record = case.begin()
        for end in (db.rollback, db.commit):
            [outcome] = join.perform(store, db, [case.complete(record)])
            assert isinstance(outcome, Done)
            _flush(case)
            found = case.ask(Insert(case.rival(record)))
            assert found.record.state is State.RUNNING
            assert tiers.entries() == []
            end()
        _replayed(case, case.find(record.id))
        _flush(case)
        assert tiers.client.exists(tiers.entry(record))


def test_records_of_the_store_itself_are_not_shown(case: Case) -> None:
    assert case.ask(Count())[State.COMPLETED] == 0
    record = case.stage(State.COMPLETED)
    assert [shown.id for shown in case.ask(Scan(1))] == [record.id]
    assert case.ask(Count())[State.COMPLETED] == 1


def test_p11_what_waits_to_be_copied_is_bounded(tiers: Tiers, face: Any) -> None:
    store = tiers.store(_nowhere(tiers))
    for case in _case(tiers, store, face):
        for _ in range(WAITING_MAX // 64 + 2):
            records = [case.claim() for _ in range(64)]
            case.together([Insert(claim) for claim in records])
    assert len(store._waiting) <= WAITING_MAX


# --------------------------------------------------------------------------------- hostile caches


def test_a_cache_that_was_flushed_only_costs_time(case: Case, tiers: Tiers) -> None:
    record = _cached(case, tiers)
    tiers.client.delete(*tiers.client.keys(f"{tiers.prefix}:*"))
    _replayed(case, record)
    assert [type(verb) for verb in tiers.asked()] == [Insert]


@pytest.mark.parametrize("forgery", ["garbage", "empty", "cut", "one bit", "hash", "extended"])
def test_a_forged_entry_is_not_believed(case: Case, tiers: Tiers, forgery: str) -> None:
    record = _cached(case, tiers)
    key, entry = tiers.entry(record), tiers.client.get(tiers.entry(record))
    tiers.client.delete(key)
    match forgery:
        case "garbage":
            tiers.client.set(key, os.urandom(len(entry)))
        case "empty":
            tiers.client.set(key, b"")
        case "cut":
            tiers.client.set(key, entry[:-1])
        case "one bit":
            tiers.client.set(key, entry[:-1] + bytes([entry[-1] ^ 1]))
        case "hash":
            tiers.client.hset(key, "a", "b")
        case "extended":
            tiers.client.set(key, entry + b"x")
    _replayed(case, record)
    assert [type(verb) for verb in tiers.asked()] == [Insert]


def test_every_bit_of_an_entry_counts(case: Case, tiers: Tiers) -> None:
    record = _cached(case, tiers)
    key, entry = tiers.entry(record), tiers.client.get(tiers.entry(record))
    for at in range(0, len(entry), 7):
        tiers.client.set(key, entry[:at] + bytes([entry[at] ^ 4]) + entry[at + 1 :])
        _replayed(case, record)
        assert tiers.asked() != []


def test_p5_an_entry_of_another_id_is_not_believed(case: Case, tiers: Tiers) -> None:
    one, other = _cached(case, tiers), _cached(case, tiers)
    swapped = [tiers.client.get(tiers.entry(record)) for record in (other, one)]
    for record, entry in zip((one, other), swapped, strict=True):
        tiers.client.set(tiers.entry(record), entry)
    for record in (one, other):
        _replayed(case, record)
    fresh = case.claim()
    tiers.client.set(f"{tiers.prefix}:tiered:{fresh.id.hex()}", swapped[0])
    assert isinstance(case.ask(Insert(fresh)), Inserted)


def test_p3_an_old_entry_that_comes_back_is_not_believed(case: Case, tiers: Tiers) -> None:
    """The record expired and ran again; then the cache is restored from before."""
    record = _cached(case, tiers)
    kept = {key: tiers.client.get(key) for key in tiers.client.keys(f"{tiers.prefix}:*")}
    case.expire()
    second = replace(ANSWER, body=b"second")
    again = case.done(case.take(case.find(record.id)))
    again = case.done(case.complete(again, second))
    for key, value in kept.items():
        tiers.client.set(key, value)  # without an end
    assert _replayed(case, again).answer == second


def test_an_entry_ends_before_its_record(case: Case, tiers: Tiers) -> None:
    record = _cached(case, tiers)
    ttl_s = tiers.client.ttl(tiers.entry(record))
    assert 0 < ttl_s <= record.expires_in_s - MARGIN_S
    tiers.client.persist(tiers.entry(record))  # a cache that keeps what it should not
    tiers.elapse(record.expires_in_s - MARGIN_S)
    found = case.ask(Insert(case.rival(record)))
    assert isinstance(found, Found)
    assert [type(verb) for verb in tiers.asked()] == [Insert]


def test_a_cache_that_is_down_only_costs_time(tiers: Tiers, face: Any) -> None:
    for case in _case(tiers, tiers.store(_nowhere(tiers)), face):
        record = case.stage(State.COMPLETED)
        for _ in range(3):
            _replayed(case, record)


def test_p11_a_cache_that_does_not_answer_is_waited_for_once(
    tiers: Tiers, redis_url: str, face: Any
) -> None:
    with Wire(int(urlsplit(redis_url).port or 0)) as wire:
        endpoint = tiers.endpoint.at(("127.0.0.1", wire.port)).within(CACHE_S_MAX)
        for case in _case(tiers, tiers.store(endpoint), face):
            record = _cached(case, tiers)
            wire.hold_replies()
            began = time.monotonic()
            for _ in range(20):  # the fake clock stands still, so it rests
                _replayed(case, record)
            assert time.monotonic() - began < 20 * CACHE_S_MAX
            assert len(tiers.asked()) == 20
            wire.pass_all()
            tiers.elapse(REST_S)
            _flush(case)
            tiers.asked()
            _replayed(case, record)
            assert tiers.asked() == []


def test_a_cache_whose_memory_is_full_only_costs_time(tiers: Tiers, face: Any) -> None:
    with start_redis() as server, Client.from_url(server.url) as client:
        client.config_set("maxmemory", 1)
        endpoint = open_redis(server.url).endpoint
        for case in _case(tiers, tiers.store(endpoint), face):
            record = case.stage(State.COMPLETED)
            for _ in range(3):
                _replayed(case, record)
            with pytest.raises(StoreUnavailable, match="must be told first, and refuses"):
                case.ask(Purge("acct_1", 10))


# -------------------------------------------------------------------------------- dropped entries


def test_p12_a_purge_ends_all_entries_of_its_tenant(case: Case, tiers: Tiers) -> None:
    record, other = _cached(case, tiers), _cached(case, tiers)
    assert case.ask(Purge("acct_1", 10)) == 2
    for purged in (record, other):
        found = case.ask(Insert(case.rival(purged)))
        assert isinstance(found, Found)
        assert found.record.answer is not None
        assert not found.record.answer.body
        assert found.record.resource_id is None


def test_a_purge_leaves_the_entries_of_other_tenants(case: Case, tiers: Tiers) -> None:
    record = _cached(case, tiers)
    case.ask(Purge("acct_2", 10))
    tiers.asked()
    _replayed(case, record)
    assert tiers.asked() == []


def test_a_record_that_was_read_before_a_purge_is_not_put_back(
    case: Case, tiers: Tiers, face: Any
) -> None:
    _flush(case)
    record = case.stage(State.COMPLETED)
    other = tiers.store()
    with contextlib.closing(face(other)) as beside:
        found = beside.ask(Insert(case.rival(record)))  # its copy waits for the next question
        assert found.record.answer == record.answer
        case.ask(Purge("acct_1", 10))
        for _ in range(3):
            beside.ask(Insert(case.claim()))
            found = beside.ask(Insert(case.rival(record)))
            assert not found.record.answer.body


def test_while_the_cache_cannot_be_told_nothing_is_purged(
    case: Case, tiers: Tiers, face: Any
) -> None:
    record = _cached(case, tiers)
    for blind in _case(tiers, tiers.store(_nowhere(tiers)), face):
        with pytest.raises(StoreUnavailable) as told:
            blind.ask(Purge("acct_1", 10))
        assert not told.value.sent
    assert case.find(record.id).answer == ANSWER


SECOND = replace(ANSWER, body=b"second")


@contextlib.contextmanager
def _with_a_late_copy(case: Case, tiers: Tiers, face: Any) -> Iterator[tuple[Record, Face]]:
    """A completed record, and another process that holds a copy of it, not written yet."""
    record = _cached(case, tiers)
    with contextlib.closing(face(tiers.store())) as beside:
        tiers.client.delete(tiers.entry(record))
        beside.ask(Insert(case.rival(record)))
        yield record, beside


def test_p3_what_runs_again_although_it_completed_is_not_replayed(
    case: Case, tiers: Tiers, face: Any
) -> None:
    """Kept under another schema version, and the policy says: run it again."""
    with _with_a_late_copy(case, tiers, face) as (record, beside):
        again = case.done(_run_anew(case, record))
        beside.ask(Insert(case.claim()))  # its copy is written now
        running = case.ask(Insert(case.rival(record)))
        assert running.record.state is State.RUNNING
        again = case.done(case.complete(again, SECOND))
        for asked in (case.ask, beside.ask):
            assert asked(Insert(case.rival(record))).record.answer == SECOND


def test_p3_a_copy_that_waited_until_the_stop_was_over_is_not_written(
    case: Case, tiers: Tiers, face: Any
) -> None:
    """A process that asks for nothing in between takes its copies along much later."""
    with _with_a_late_copy(case, tiers, face) as (record, beside):
        again = case.done(_run_anew(case, record))
        case.done(case.complete(again, SECOND))
        tiers.elapse(STOP_S + 1)
        tiers.client.delete(tiers.entry(record))  # the stop, whose time was up
        for _ in range(2):
            beside.ask(Insert(case.claim()))
            assert beside.ask(Insert(case.rival(record))).record.answer == SECOND


def test_threads_that_ask_at_once_share_what_waits(case: Case, tiers: Tiers) -> None:
    class Shared(deque[Any]):
        def popleft(self) -> Any:
            taken = super().popleft()
            self.clear()  # another thread took the rest
            return taken

    record = _cached(case, tiers)
    store: Any = case.subject.store
    store._waiting = Shared([(tiers.clock.monotonic(), ("PING",))] * 2)
    _replayed(case, record)


def test_while_the_cache_cannot_be_told_nothing_that_completed_runs_again(
    case: Case, tiers: Tiers, face: Any
) -> None:
    record = _cached(case, tiers)
    for blind in _case(tiers, tiers.store(_nowhere(tiers)), face):
        with pytest.raises(StoreUnavailable) as told:
            blind.ask(_run_anew(case, record))
        assert not told.value.sent
    _replayed(case, record)


def _run_anew(case: Case, record: Record) -> Swap:
    return lifecycle.take(record, case.rival(record, schema_version=2))


def test_an_operator_may_ask_the_truth_of_a_sealed_one(tiers: Tiers, face: Any) -> None:
    """The key of the MACs stands there unsealed, perhaps before anybody opened the book."""
    with contextlib.closing(face(tiers.store())) as first:
        first.ask(Count())
    truth, sealed = SealedStore(tiers.truth, SECRET), SealedStore(tiers.store(), SECRET)
    with contextlib.closing(face(truth)) as asked, contextlib.closing(face(sealed)) as beside:
        assert asked.ask(Scan(10)) == []
        record = Case(Subject(sealed), beside).stage(State.COMPLETED)
        [shown] = asked.ask(Scan(1))
        assert asked.ask(Find(shown.id)).state is State.COMPLETED
        assert asked.ask(Find(record.id)).answer == ANSWER


# ------------------------------------------------------------------------------------------- URLs


def test_a_url_names_both_tiers(redis_url: str, tmp_path: Path) -> None:
    cache = quote(f"{redis_url}?prefix=mine", safe="")
    store = open_store(f"tiered+sqlite:///{tmp_path}/keys.db?timeout_s=2&cache={cache}")
    assert isinstance(store, TieredStore)
    assert store.name == "sqlite"
    assert store.durability.power_loss
    with contextlib.closing(FACES["sync"](store)) as face:
        case = Case(Subject(store), face)
        record = case.stage(State.COMPLETED)
        assert case.find(record.id).answer == ANSWER


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("", "needs a cache"),
        ("cache=redis%2Bcluster://h1,h2", "is one server"),
        ("cache=redis://h&cache_timeout_s=soon", "cannot be read"),
    ],
)
def test_what_is_no_cache_is_refused(query: str, why: str) -> None:
    with pytest.raises(Misuse, match=why):
        open_store(f"tiered+sqlite:///keys.db?{query}")
