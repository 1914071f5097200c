"""No cache can cause a second run or a wrong response: flushed, forged, full, down or stale."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis import Redis as Client

from oncekey._core import lifecycle
from oncekey._core.record import Record, State
from oncekey._core.verbs import Count, Find, Found, Insert, Inserted, Purge, Scan, Swap
from oncekey.errors import StoreUnavailable
from oncekey.stores.redis.store import open_url as open_redis
from oncekey.stores.sealed.store import SealedStore
from oncekey.stores.tiered.cache import MARGIN_S
from oncekey.stores.tiered.connection import PAUSE_S
from oncekey.stores.tiered.store import STOP_S
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import ANSWER, Face
from tests.servers import start_redis
from tests.stores import elapse
from tests.stores.sealed.kit import SECRET
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
from tests.stores.wire import Wire

__all__ = ["case", "face", "tiers"]

pytestmark = pytest.mark.slow
CACHE_S_MAX = 0.2


# --------------------------------------------------------------------------------- hostile caches


def test_a_cache_that_was_flushed_only_costs_time(case: Case, tiers: Tiers) -> None:
    record = cache_record(case, tiers)
    tiers.client.delete(*tiers.client.keys(f"{tiers.prefix}:*"))
    assert_replayed(case, record)
    assert [type(verb) for verb in tiers.take_questions()] == [Insert]


def test_p12_an_entry_whose_epoch_was_forgotten_is_not_believed(case: Case, tiers: Tiers) -> None:
    """A purge may have been lost with the epoch. The entry makes room for one of a known epoch."""
    record = cache_record(case, tiers)
    tiers.client.delete(*tiers.client.keys(f"{tiers.prefix}:tiered:epoch:*"))
    assert_replayed(case, record)
    assert [type(verb) for verb in tiers.take_questions()] == [Insert]
    for _ in range(3):
        assert_replayed(case, record)
    tiers.take_questions()
    assert_replayed(case, record)
    assert tiers.take_questions() == []


@pytest.mark.parametrize("forgery", ["garbage", "empty", "cut", "one bit", "hash", "extended"])
def test_a_forged_entry_is_not_believed(case: Case, tiers: Tiers, forgery: str) -> None:
    record = cache_record(case, tiers)
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
    assert_replayed(case, record)
    assert [type(verb) for verb in tiers.take_questions()] == [Insert]


def test_every_bit_of_an_entry_counts(case: Case, tiers: Tiers) -> None:
    record = cache_record(case, tiers)
    key, entry = tiers.entry(record), tiers.client.get(tiers.entry(record))
    for at in range(0, len(entry), 7):
        tiers.client.set(key, entry[:at] + bytes([entry[at] ^ 4]) + entry[at + 1 :])
        assert_replayed(case, record)
        assert tiers.take_questions() != []


def test_p5_an_entry_of_another_id_is_not_believed(case: Case, tiers: Tiers) -> None:
    one, other = cache_record(case, tiers), cache_record(case, tiers)
    swapped = [tiers.client.get(tiers.entry(record)) for record in (other, one)]
    for record, entry in zip((one, other), swapped, strict=True):
        tiers.client.set(tiers.entry(record), entry)
    for record in (one, other):
        assert_replayed(case, record)
    fresh = case.claim()
    tiers.client.set(f"{tiers.prefix}:tiered:{fresh.id.hex()}", swapped[0])
    assert isinstance(case.ask(Insert(fresh)), Inserted)


def test_p3_an_old_entry_that_comes_back_is_not_believed(case: Case, tiers: Tiers) -> None:
    """The record expired and ran again; then the cache is restored from an old backup."""
    record = cache_record(case, tiers)
    kept = {key: tiers.client.get(key) for key in tiers.client.keys(f"{tiers.prefix}:*")}
    case.expire()
    second = replace(ANSWER, body=b"second")
    again = case.done(case.take(case.find(record.id)))
    again = case.done(case.complete(again, second))
    for key, value in kept.items():
        tiers.client.set(key, value)  # no expiry
    assert assert_replayed(case, again).answer == second


def test_an_entry_ends_before_its_record(case: Case, tiers: Tiers) -> None:
    record = cache_record(case, tiers)
    ttl_s = tiers.client.ttl(tiers.entry(record))
    assert 0 < ttl_s <= record.expires_in_s - MARGIN_S
    tiers.client.persist(tiers.entry(record))  # a cache that keeps entries for too long
    tiers.elapse(record.expires_in_s - MARGIN_S)
    found = case.ask(Insert(case.rival(record)))
    assert isinstance(found, Found)
    assert [type(verb) for verb in tiers.take_questions()] == [Insert]


def test_a_cache_that_is_down_only_costs_time(tiers: Tiers, face: Any) -> None:
    with open_case(tiers, tiers.store(unreachable(tiers)), face) as case:
        record = case.stage(State.COMPLETED)
        for _ in range(3):
            assert_replayed(case, record)


def test_p11_a_cache_that_does_not_answer_is_waited_for_once(
    tiers: Tiers, redis_url: str, face: Any
) -> None:
    with Wire(int(urlsplit(redis_url).port or 0)) as wire:
        endpoint = tiers.endpoint.at(("127.0.0.1", wire.port)).with_timeout(CACHE_S_MAX)
        with open_case(tiers, tiers.store(endpoint), face) as case:
            record = cache_record(case, tiers)
            wire.hold_replies()
            began = time.monotonic()
            for _ in range(20):  # the fake clock stands still, so the cache stays paused
                assert_replayed(case, record)
            assert time.monotonic() - began < 20 * CACHE_S_MAX
            assert len(tiers.take_questions()) == 20
            wire.pass_all()
            tiers.elapse(PAUSE_S)
            flush(case)
            tiers.take_questions()
            assert_replayed(case, record)
            assert tiers.take_questions() == []


def test_a_cache_whose_memory_is_full_only_costs_time(tiers: Tiers, face: Any) -> None:
    with start_redis() as server, Client.from_url(server.url) as client:
        client.config_set("maxmemory", 1)
        endpoint = open_redis(server.url).endpoint
        with open_case(tiers, tiers.store(endpoint), face) as case:
            record = case.stage(State.COMPLETED)
            for _ in range(3):
                assert_replayed(case, record)
            with pytest.raises(StoreUnavailable, match="must be updated first, and refuses"):
                case.ask(Purge("acct_1", 10))


# -------------------------------------------------------------------------------- dropped entries


def test_p12_a_purge_ends_all_entries_of_its_tenant(case: Case, tiers: Tiers) -> None:
    record, other = cache_record(case, tiers), cache_record(case, tiers)
    assert case.ask(Purge("acct_1", 10)) == 2
    for purged in (record, other):
        found = case.ask(Insert(case.rival(purged)))
        assert isinstance(found, Found)
        assert found.record.answer is not None
        assert not found.record.answer.body
        assert found.record.resource_id is None


def test_a_purge_leaves_the_entries_of_other_tenants(case: Case, tiers: Tiers) -> None:
    record = cache_record(case, tiers)
    case.ask(Purge("acct_2", 10))
    tiers.take_questions()
    assert_replayed(case, record)
    assert tiers.take_questions() == []


def test_a_record_that_was_read_before_a_purge_is_not_put_back(
    case: Case, tiers: Tiers, face: Any
) -> None:
    flush(case)
    record = case.stage(State.COMPLETED)
    other = tiers.store()
    with contextlib.closing(face(other)) as beside:
        found = beside.ask(Insert(case.rival(record)))  # its copy is queued
        assert found.record.answer == record.answer
        case.ask(Purge("acct_1", 10))
        for _ in range(3):
            beside.ask(Insert(case.claim()))
            found = beside.ask(Insert(case.rival(record)))
            assert not found.record.answer.body


def test_while_the_cache_cannot_be_told_nothing_is_purged(
    case: Case, tiers: Tiers, face: Any
) -> None:
    record = cache_record(case, tiers)
    with open_case(tiers, tiers.store(unreachable(tiers)), face) as blind:
        with pytest.raises(StoreUnavailable) as caught:
            blind.ask(Purge("acct_1", 10))
        assert not caught.value.sent
    assert case.find(record.id).answer == ANSWER


SECOND = replace(ANSWER, body=b"second")


@contextlib.contextmanager
def _with_a_late_copy(case: Case, tiers: Tiers, face: Any) -> Iterator[tuple[Record, Face]]:
    """Return a completed record, and another process with a queued copy of it."""
    record = cache_record(case, tiers)
    with contextlib.closing(face(tiers.store())) as beside:
        tiers.client.delete(tiers.entry(record))
        beside.ask(Insert(case.rival(record)))
        yield record, beside


def test_p3_what_runs_again_although_it_completed_is_not_replayed(
    case: Case, tiers: Tiers, face: Any
) -> None:
    """Stored under another schema version, where the policy says to run it again."""
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
    """A process that asks nothing in between sends its copies much later."""
    with _with_a_late_copy(case, tiers, face) as (record, beside):
        again = case.done(_run_anew(case, record))
        case.done(case.complete(again, SECOND))
        tiers.elapse(STOP_S + 1)
        tiers.client.delete(tiers.entry(record))  # the stop has expired
        for _ in range(2):
            beside.ask(Insert(case.claim()))
            assert beside.ask(Insert(case.rival(record))).record.answer == SECOND


def test_threads_that_ask_at_once_share_what_waits(case: Case, tiers: Tiers) -> None:
    class Shared(deque[Any]):
        def popleft(self) -> Any:
            taken = super().popleft()
            self.clear()  # another thread took the rest
            return taken

    record = cache_record(case, tiers)
    store: Any = case.subject.store
    store._waiting = Shared([(tiers.clock.monotonic(), ("PING",))] * 2)
    assert_replayed(case, record)


def test_while_the_cache_cannot_be_told_nothing_that_completed_runs_again(
    case: Case, tiers: Tiers, face: Any
) -> None:
    record = cache_record(case, tiers)
    with open_case(tiers, tiers.store(unreachable(tiers)), face) as blind:
        with pytest.raises(StoreUnavailable) as caught:
            blind.ask(_run_anew(case, record))
        assert not caught.value.sent
    assert_replayed(case, record)


def _run_anew(case: Case, record: Record) -> Swap:
    return lifecycle.take(record, case.rival(record, schema_version=2))


def test_an_operator_may_ask_the_truth_of_a_sealed_one(tiers: Tiers, face: Any) -> None:
    """The MAC key is stored there unsealed, perhaps before the key ring exists."""
    with contextlib.closing(face(tiers.store())) as first:
        first.ask(Count())
    truth, sealed = SealedStore(tiers.truth, SECRET), SealedStore(tiers.store(), SECRET)
    with contextlib.closing(face(truth)) as asked, contextlib.closing(face(sealed)) as beside:
        assert asked.ask(Scan(10)) == []
        record = Case(Subject(sealed, elapse=elapse.never), beside).stage(State.COMPLETED)
        [shown] = asked.ask(Scan(1))
        assert asked.ask(Find(shown.id)).state is State.COMPLETED
        assert asked.ask(Find(record.id)).answer == ANSWER
