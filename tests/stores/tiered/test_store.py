"""A tiered store: the contract, and which replays come from the cache."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from oncekey._core.record import State
from oncekey._core.verbs import Count, Done, Found, Insert, Scan
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.stores import transactions
from oncekey.stores.postgres.verbs import Question
from oncekey.stores.tiered.store import ENTRY_BYTES_MAX, WAITING_MAX, TieredStore
from oncekey.stores.urls import open_store
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
from oncekey.testing.contract.subject import ANSWER, FACES
from tests.stores import elapse
from tests.stores.test_against_memory import compare
from tests.stores.tiered.kit import (
    Tiers,
    assert_replayed,
    cache_record,
    case,
    face,
    flush,
    open_case,
    tiers,
    unreachable,
)

__all__ = ["case", "face", "tiers"]

pytestmark = pytest.mark.slow


# ---------------------------------------------------------------------------------------- contract


class TestTiered(StoreContract):
    """With an available cache."""

    @pytest.fixture
    def subject(self, tiers: Tiers) -> Subject:
        return Subject(tiers.store(), elapse=tiers.elapse)


class TestOverPostgres(InsertContract, SwapContract, RepeatContract, PurgeContract, RaceContract):
    """With a database as the truth, which has its own clock."""

    @pytest.fixture
    def subject(self, postgres: Subject, tiers: Tiers) -> Subject:
        def elapse(seconds: float) -> None:
            postgres.elapse(seconds)
            tiers.elapse(seconds)

        store = TieredStore(postgres.store, tiers.endpoint, prefix=tiers.prefix, clock=tiers.clock)
        return Subject(store, elapse=elapse)


class TestWithoutCache(InsertContract, WatchContract, SweepContract, RaceContract):
    """With an unreachable cache: slower, and correct."""

    @pytest.fixture
    def subject(self, tiers: Tiers) -> Subject:
        return Subject(tiers.store(unreachable(tiers)), elapse=tiers.elapse)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("colour", FACES)
def test_it_behaves_like_memory(tiers: Tiers, colour: str) -> None:
    compare(Subject(tiers.store(), elapse=tiers.elapse), colour, examples=40)


# ----------------------------------------------------------------------------------------- replays


def test_a_replay_does_not_touch_the_truth(case: Case, tiers: Tiers) -> None:
    record = cache_record(case, tiers)
    for _ in range(3):
        assert_replayed(case, record)
    assert tiers.take_questions() == []


def test_a_copy_serves_every_process(case: Case, tiers: Tiers, face: Any) -> None:
    record = cache_record(case, tiers)
    with open_case(tiers, tiers.store(), face) as beside:
        flush(beside)
        tiers.take_questions()
        assert_replayed(beside, record)
        assert tiers.take_questions() == []


def test_a_mismatch_is_judged_by_the_copy(case: Case, tiers: Tiers) -> None:
    """P5: the engine compares fingerprints, so the copy must have the right one."""
    record = cache_record(case, tiers)
    found = case.ask(Insert(case.rival(record, fingerprint=b"other" * 4)))
    assert isinstance(found, Found)
    assert found.record.fingerprint == record.fingerprint


@pytest.mark.parametrize("state", [State.RUNNING, State.RELEASED, State.UNKNOWN])
def test_only_what_completed_is_copied(case: Case, tiers: Tiers, state: State) -> None:
    flush(case)
    record = case.begin() if state is State.RUNNING else case.stage(state)
    for _ in range(3):
        assert isinstance(case.ask(Insert(case.rival(record))), Found)
    assert tiers.entries() == []


def test_large_answers_are_left_to_the_truth(case: Case, tiers: Tiers) -> None:
    flush(case)
    large = replace(ANSWER, body=b"x" * ENTRY_BYTES_MAX)
    record = case.done(case.complete(case.begin(), large))
    for _ in range(2):
        assert_replayed(case, record)
        flush(case)
    assert tiers.entries() == []


def test_the_truth_may_be_down_while_answers_are_replayed(
    case: Case, tiers: Tiers, face: Any
) -> None:
    record = cache_record(case, tiers)
    tiers.truth.down = True
    assert_replayed(case, record)
    replay, fresh = Insert(case.rival(record)), Insert(case.claim())
    caught = case.together([replay, fresh])
    assert isinstance(caught[0], Found)
    assert isinstance(caught[1], StoreUnavailable)


def test_a_completion_that_is_rolled_back_was_never_copied(
    postgres: Subject, postgres_url: str, tiers: Tiers, face: Any
) -> None:
    store = TieredStore(postgres.store, tiers.endpoint, prefix=tiers.prefix)
    with contextlib.closing(face(store)) as asked, psycopg.connect(postgres_url) as db:
        case = Case(Subject(store, elapse=tiers.elapse), asked)
        flush(case)
        record = case.begin()
        for end in (db.rollback, db.commit):
            [outcome] = transactions.perform(store, db, [case.complete(record)])
            assert isinstance(outcome, Done)
            flush(case)
            found = case.ask(Insert(case.rival(record)))
            assert found.record.state is State.RUNNING
            assert tiers.entries() == []
            end()
        assert_replayed(case, case.find(record.id))
        flush(case)
        assert tiers.client.exists(tiers.entry(record))


def test_records_of_the_store_itself_are_not_shown(case: Case) -> None:
    assert case.ask(Count())[State.COMPLETED] == 0
    record = case.stage(State.COMPLETED)
    assert [shown.id for shown in case.ask(Scan(1))] == [record.id]
    assert case.ask(Count())[State.COMPLETED] == 1


def test_p11_what_waits_to_be_copied_is_bounded(tiers: Tiers, face: Any) -> None:
    store = tiers.store(unreachable(tiers))
    with open_case(tiers, store, face) as case:
        for _ in range(WAITING_MAX // 64 + 2):
            records = [case.claim() for _ in range(64)]
            case.together([Insert(claim) for claim in records])
    assert len(store._waiting) <= WAITING_MAX


# ------------------------------------------------------------------------------------------- URLs


def test_a_url_names_both_tiers(redis_url: str, tmp_path: Path) -> None:
    cache = quote(f"{redis_url}?prefix=mine", safe="")
    store = open_store(f"tiered+sqlite:///{tmp_path}/keys.db?timeout_s=2&cache={cache}")
    assert isinstance(store, TieredStore)
    assert store.name == "sqlite"
    assert store.durability.power_loss
    with contextlib.closing(FACES["sync"](store)) as face:
        case = Case(Subject(store, elapse=elapse.never), face)
        record = case.stage(State.COMPLETED)
        assert case.find(record.id).answer == ANSWER


def test_each_tier_reads_its_options_in_its_own_way(postgres_url: str) -> None:
    """A space is `%20` for libpq, and a `+` in a password is a `+`."""
    given = "allow=unsafe-durability&options=-c%20statement_timeout%3D5000"
    cache = "cache=redis://:pass+word@127.0.0.1:6379/0"
    store = open_store(f"tiered+{postgres_url}?{given}&{cache}")
    assert isinstance(store, TieredStore)
    assert store._cache.endpoint.options["password"] == "pass+word"
    with contextlib.closing(store.truth.connect()) as connection:
        [[caught]] = connection.ask(Question("SHOW statement_timeout"))
    assert caught == "5s"


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("", "needs a cache"),
        ("cache=redis%2Bcluster://h1,h2", "is one server"),
        ("cache=redis+cluster://h1,h2", "is one server"),
        ("cache=redis://h&cache_timeout_s=soon", "cannot be read"),
    ],
)
def test_what_is_no_cache_is_refused(query: str, why: str) -> None:
    with pytest.raises(Misuse, match=why):
        open_store(f"tiered+sqlite:///keys.db?{query}")
