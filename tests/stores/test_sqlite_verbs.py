"""The SQL of the SQLite store: its two clocks, and that nothing reads through the whole table."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncekey.clock import FakeClock
from oncekey.core import lifecycle
from oncekey.core.record import Answer, Record
from oncekey.core.verbs import Done, Due, Find, Insert, Inserted, Peek, Refused, Sweep
from oncekey.stores import sqlite_verbs
from oncekey.stores.gather import Gatherer
from oncekey.stores.sqlite import SqliteStore
from tests.stores.sqlite_worker import HOUR_S, claim

DAY_S = 24 * HOUR_S
ANSWER = Answer(201, (), b"created")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture
def gatherer(path: Path, clock: FakeClock) -> Iterator[Gatherer]:
    gatherer = Gatherer(SqliteStore(path, clock=clock))
    yield gatherer
    gatherer.close()


def begin(gatherer: Gatherer, name: str) -> Record:
    attempt = claim(name)
    assert isinstance(gatherer.ask(Insert(attempt)), Inserted)
    return find(gatherer, attempt.id)


def complete(gatherer: Gatherer, record: Record) -> Record:
    held = lifecycle.Held(record.id, record.fence, record.token)
    outcome = gatherer.ask(lifecycle.complete(held, ANSWER, retention_s=HOUR_S))
    assert isinstance(outcome, Done)
    return find(gatherer, record.id)


def find(gatherer: Gatherer, record_id: bytes) -> Record:
    record = gatherer.ask(Find(record_id))
    assert isinstance(record, Record)
    return record


# ------------------------------------------------------------------------------ two clocks


@pytest.mark.parametrize("step_s", [400 * DAY_S, -400 * DAY_S], ids=["ahead", "back"])
def test_p8_a_step_of_the_wall_clock_changes_no_lease(
    gatherer: Gatherer, clock: FakeClock, step_s: float
) -> None:
    record = begin(gatherer, "order-1")
    clock.step_wall(step_s)
    found = find(gatherer, record.id)
    assert found.lease_left_s == record.lease_left_s
    assert gatherer.ask(Peek(record.id)).lease_left_s == record.lease_left_s
    assert (found.lapsed, found.overlong, found.expired) == (False, False, False)
    assert gatherer.ask(Due(10)) == []


@pytest.mark.parametrize("take", ["take over", "start over"])
def test_p8_a_live_lease_is_not_taken_whatever_the_wall_clock_says(
    gatherer: Gatherer, clock: FakeClock, take: str
) -> None:
    record = begin(gatherer, "order-1")
    clock.step_wall(400 * DAY_S)
    expires_in_s = {"take over": 1.0, "start over": -1.0}[take]
    believed = dataclasses.replace(record, lease_left_s=-1.0, expires_in_s=expires_in_s)
    swap = lifecycle.take(believed, claim("order-1"))
    assert isinstance(gatherer.ask(swap), Refused)
    assert find(gatherer, record.id).token == record.token


def test_p10_a_live_lease_is_not_swept_whatever_the_wall_clock_says(
    gatherer: Gatherer, clock: FakeClock
) -> None:
    running = begin(gatherer, "order-1")
    ended = complete(gatherer, begin(gatherer, "order-2"))
    clock.step_wall(400 * DAY_S)
    assert gatherer.ask(Sweep(10)) == 1
    assert gatherer.ask(Find(ended.id)) is None
    clock.advance(HOUR_S)
    assert find(gatherer, running.id).lapsed
    assert gatherer.ask(Sweep(10)) == 1


def test_p8_a_wall_clock_that_was_set_back_does_not_prolong_a_lease(
    gatherer: Gatherer, clock: FakeClock
) -> None:
    record = begin(gatherer, "order-1")
    clock.step_wall(-DAY_S)
    clock.advance(HOUR_S)
    assert gatherer.ask(Due(10)) == [record.id]
    swap = lifecycle.take(find(gatherer, record.id), claim("order-1"))
    assert gatherer.ask(swap) == Done(record.fence + 1)


def test_p6_what_ran_when_the_machine_went_down_is_lapsed_when_it_is_back(
    gatherer: Gatherer, clock: FakeClock
) -> None:
    """Its boot clock starts again at 0, so the old deadline lies far ahead and means nothing."""
    record = begin(gatherer, "order-1")
    clock.reboot()
    found = find(gatherer, record.id)
    assert (found.lapsed, found.overlong, found.expired) == (True, False, False)
    assert gatherer.ask(Due(10)) == [record.id]
    assert gatherer.ask(Sweep(10)) == 0
    swap = lifecycle.take(found, claim("order-1"))
    assert gatherer.ask(swap) == Done(record.fence + 1)
    assert find(gatherer, record.id).lease_left_s == HOUR_S


def test_an_owner_that_survived_a_suspend_may_still_complete(
    gatherer: Gatherer, clock: FakeClock
) -> None:
    record = begin(gatherer, "order-1")
    clock.advance(DAY_S)
    assert complete(gatherer, record).answer == ANSWER


def test_retention_goes_on_over_a_reboot(gatherer: Gatherer, clock: FakeClock) -> None:
    record = complete(gatherer, begin(gatherer, "order-1"))
    clock.advance(HOUR_S / 2)
    clock.reboot()
    assert find(gatherer, record.id).expires_in_s == pytest.approx(HOUR_S / 2)
    clock.advance(HOUR_S / 2)
    assert find(gatherer, record.id).expired
    assert gatherer.ask(Sweep(10)) == 1


def test_what_waits_longest_is_due_first_by_whichever_clock(
    gatherer: Gatherer, clock: FakeClock
) -> None:
    """What a reboot cut off comes before all else: how long ago that was, nobody knows."""
    ended = complete(gatherer, begin(gatherer, "order-1"))
    cut_off = begin(gatherer, "order-2")
    clock.advance(HOUR_S / 2)
    clock.reboot()
    lapsed = begin(gatherer, "order-3")
    clock.advance(HOUR_S)
    assert gatherer.ask(Due(10)) == [cut_off.id, ended.id, lapsed.id]
    assert gatherer.ask(Due(2)) == [cut_off.id, ended.id]


# ------------------------------------------------------------------------------ bounded work

PLANS = {
    "_DUE": {"oncekey_claims_running", "oncekey_claims_ended"},
    "_EXPIRED": {"oncekey_claims_running", "oncekey_claims_ended"},
    "_PURGEABLE": {"oncekey_claims_purgeable"},
    "_FIND": {"sqlite_autoindex_oncekey_claims_1"},
    "_SCAN": {"sqlite_autoindex_oncekey_claims_1"},
    "_STEPS": {"sqlite_autoindex_oncekey_claims_1", "sqlite_autoindex_oncekey_steps_1"},
}


@pytest.mark.parametrize("name", PLANS)
def test_p11_no_verb_reads_through_the_table(gatherer: Gatherer, path: Path, name: str) -> None:
    begin(gatherer, "order-1")
    statement: str = getattr(sqlite_verbs, name)
    with contextlib.closing(sqlite3.connect(path)) as db:
        parameters = [1] * statement.count("?")
        plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
    touched = [line for line in plan if "oncekey_claims" in line or "oncekey_steps" in line]
    for line in touched:
        assert any(f"INDEX {index}" in line for index in PLANS[name]), plan
    for index in PLANS[name]:
        assert any(index in line for line in touched), plan
