"""Fading: the content of an answer goes when its retention is over, its tombstone stays."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from oncekey import Policy, Runtime, once, open_store
from oncekey._core.record import Answer, Record, State
from oncekey._core.retention import answer_left_s
from oncekey._core.verbs import Find, Scan
from oncekey._engine.guard import Guard
from oncekey._engine.sweeper import Sweeper
from oncekey._engine.tombstones import LOOK_BACK_S, MARGIN_S, OPERATION, SPAN_S, Tombstones
from oncekey._system.chance import random_token
from oncekey._system.clock import FakeClock
from oncekey.errors import NotKept
from oncekey.stores.base import Store
from oncekey.stores.batching import Gatherer
from oncekey.stores.connection import StoreConnection
from oncekey.stores.sealed.store import SealedStore
from tests.engine.test_expiry import RETENTION_S, World
from tests.stores.sealed.kit import SECOND, SECRET
from tests.stores.unreliable import Failing

DUE_S = RETENTION_S + SPAN_S + MARGIN_S
"""After this, content must be gone."""
TOMB_S = 10 * LOOK_BACK_S


def go_on() -> bool:
    return False


class Fader(World):
    """A world with tombstones, whose processes do their chores when they are told to."""

    def __init__(self, store: Store | None = None) -> None:
        super().__init__(tombstone_s=TOMB_S)
        self.store = store or self.store  # type: ignore[assignment]

    def restart(self) -> None:
        self.guard = Guard(clock=self.clock)

    def chore(self) -> None:
        self.guard.ownership.tombstones.work(StoreConnection(self.store), go_on)

    def keys(self, count: int) -> list[Any]:
        calls = [self.call(f"k{number}") for number in range(count)]
        for call in calls:
            self.done(call)
        return calls

    def content_of(self, call: Any) -> tuple[str, bytes | None]:
        record = self.found(call)
        assert record is not None
        assert record.answer is not None
        return record.key, record.answer.body

    def lists(self) -> list[Record]:
        records: list[Record] = Gatherer(self.store).ask(Scan(1000, tenant="oncekey"))
        assert {record.operation for record in records} <= {OPERATION}
        return records


KEPT, BLANK = ("k0", b"created"), ("", None)


def test_content_goes_when_its_retention_is_over_and_not_before() -> None:
    world = Fader()
    [call] = world.keys(1)
    world.chore()
    world.clock.advance(RETENTION_S - 1)
    world.chore()
    assert world.content_of(call) == KEPT
    world.clock.advance(DUE_S - RETENTION_S + 1)
    world.chore()
    assert world.content_of(call) == BLANK
    assert world.refused(call) == "key-expired"


def test_the_key_goes_too_where_no_body_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tests.engine.test_expiry.ANSWER", Answer(201, ((b"location", b"/1"),), None)
    )
    world = Fader()
    [call] = world.keys(1)
    world.chore()
    assert world.content_of(call) == ("k0", None)
    world.clock.advance(DUE_S)
    world.chore()
    assert world.content_of(call) == BLANK


def test_the_tombstone_ends_when_it_would_have() -> None:
    world = Fader()
    [call] = world.keys(1)
    world.chore()
    world.clock.advance(DUE_S)
    world.chore()
    record = world.found(call)
    assert record is not None
    assert record.expires_in_s == pytest.approx(RETENTION_S + TOMB_S - DUE_S)


def test_another_process_finds_what_one_has_listed() -> None:
    """It begins to look when it has completed something of its own."""
    world = Fader()
    calls = world.keys(50)
    world.guard.ownership.tombstones.finish(StoreConnection(world.store))
    world.restart()
    world.clock.advance(DUE_S)
    world.chore()
    assert world.content_of(calls[0]) == KEPT
    world.done(world.call("mine"))
    world.chore()
    assert {world.content_of(call) for call in calls} == {BLANK}


def test_processes_do_not_overwrite_each_others_lists() -> None:
    world = Fader()
    calls = world.keys(1)
    world.chore()
    world.restart()
    other = world.call("other")
    world.done(other)
    world.chore()
    world.clock.advance(DUE_S)
    world.chore()
    assert [world.content_of(call) for call in (*calls, other)] == [BLANK, BLANK]


def test_a_list_is_worked_off_once_and_then_blank_itself() -> None:
    world = Fader()
    world.keys(3)
    world.chore()
    [listed] = world.lists()
    world.clock.advance(DUE_S)
    world.chore()
    [worked_off] = world.lists()
    assert (worked_off.state, worked_off.key) == (State.COMPLETED, "")
    assert worked_off.expires_in_s == pytest.approx(listed.expires_in_s - DUE_S)
    assert Gatherer(world.store).ask(Find(listed.id)).answer == Answer(200, (), None)


def test_what_is_not_over_by_the_stores_clock_is_left_and_listed_again() -> None:
    """The process's clock went ahead of the store's."""
    world = Fader()
    [call] = world.keys(1)
    world.chore()
    world.clock.step_wall(DUE_S)
    world.chore()
    assert world.content_of(call) == KEPT
    world.chore()
    world.clock.advance(DUE_S)
    world.chore()
    assert world.content_of(call) == BLANK


def test_what_was_listed_and_is_no_tombstone_is_left_alone() -> None:
    """Rolled back, or run anew since."""
    world = Fader()
    running, kept = world.call("running"), world.call("kept")
    attempt = world.begin(running).attempt
    world.guard.ownership.tombstones.note(attempt.held.id, 0.0)
    world.guard.ownership.tombstones.note(bytes(32), 0.0)
    world.policy = Policy().settled()
    world.done(kept)
    record = world.found(kept)
    assert record is not None
    world.guard.ownership.tombstones.note(record.id, 0.0)
    for _ in range(2):
        world.clock.advance(SPAN_S + MARGIN_S)
        world.chore()
    assert world.found(running) is not None
    assert world.content_of(kept) == ("kept", b"created")


@pytest.mark.parametrize("batches", range(8))
def test_a_store_that_fails_meanwhile_only_delays_it(batches: int) -> None:
    world = Fader()
    store = world.store = Failing(world.clock)
    calls = world.keys(50)
    for advance in (0.0, DUE_S):
        world.clock.advance(advance)
        store.left = batches
        Sweeper(store).do(world.guard.ownership.tombstones, StoreConnection(store))
        store.left = math.inf
    for _ in range(3):
        world.chore()
        world.clock.advance(SPAN_S + MARGIN_S)
    assert {world.content_of(call) for call in calls} == {BLANK}


@pytest.mark.parametrize("is_listed_before", [True, False])
def test_what_a_lost_secret_sealed_keeps_nothing_else_from_fading(is_listed_before: bool) -> None:
    """Its list cannot be read, or what a list of others names cannot."""
    world = Fader()
    kept = world.store
    world.store = SealedStore(kept, SECRET)  # type: ignore[assignment]
    world.done(world.call("lost"))
    if is_listed_before:
        world.chore()
    world.store = SealedStore(kept, [SECOND, SECRET])  # type: ignore[assignment]
    calls = world.keys(3)
    world.chore()
    world.store = SealedStore(kept, SECOND)  # type: ignore[assignment]
    world.clock.advance(DUE_S)
    world.chore()
    assert {world.content_of(call) for call in calls} == {BLANK}


def test_it_stops_when_it_is_told_to_and_goes_on_later() -> None:
    world = Fader()
    calls = world.keys(50)
    world.chore()
    world.clock.advance(DUE_S)
    world.guard.ownership.tombstones.work(StoreConnection(world.store), lambda: True)
    assert {world.content_of(call)[1] for call in calls} == {b"created", None}
    world.chore()
    assert {world.content_of(call) for call in calls} == {BLANK}


def test_content_goes_although_the_clock_was_ahead_and_is_set_right() -> None:
    world = Fader()
    world.clock.step_wall(30 * LOOK_BACK_S)
    world.keys(1)
    world.chore()
    world.clock.step_wall(-30 * LOOK_BACK_S)
    call = world.call("another")
    world.done(call)
    world.chore()
    world.clock.advance(DUE_S)
    world.chore()
    assert world.content_of(call) == BLANK


def test_p11_a_clock_that_is_set_ahead_by_years_costs_no_look_at_each_of_them() -> None:
    """As where a machine has none of its own, and asks for the time after it has begun."""
    world, looks = Fader(), list[Any]()
    world.keys(1)
    world.chore()

    class Counting(StoreConnection):
        def perform(self, verbs: Any) -> list[Any]:
            looks.extend(verbs)
            return super().perform(verbs)

    world.clock.step_wall(3_650 * 86_400.0)
    world.guard.ownership.tombstones.work(Counting(world.store), go_on)
    assert 0 < len(looks) <= LOOK_BACK_S / SPAN_S + 1


def test_p11_what_is_noted_is_bounded_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("oncekey._engine.tombstones.NOTED_MAX", 2)
    world = Fader()
    calls = world.keys(3)
    world.chore()
    assert "1 answers were completed faster than they could be listed" in caplog.text
    world.clock.advance(DUE_S)
    world.chore()
    assert [world.content_of(call) for call in calls] == [BLANK, BLANK, ("k2", b"created")]
    assert world.refused(calls[2]) == "key-expired"


def test_p11_a_long_list_becomes_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncekey._engine.tombstones.LIST_IDS_MAX", 2)
    world = Fader()
    calls = world.keys(5)
    world.chore()
    assert len(world.lists()) == 3
    world.clock.advance(DUE_S)
    world.chore()
    assert {world.content_of(call) for call in calls} == {BLANK}


def test_who_has_no_tombstones_looks_for_none() -> None:
    world = Fader()
    world.policy = Policy().settled()
    world.keys(1)
    store = world.store = Failing(world.clock)
    store.left = 0
    world.chore()


# ------------------------------------------------------------------------------- in a runtime


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Store:
    return open_store(f"sqlite:///{tmp_path}/keys.db")


def test_the_chore_of_a_runtime_writes_its_lists_when_it_stops(sqlite_store: Store) -> None:
    runtime = Runtime(sqlite_store)

    @once(runtime, key="{order}", policy=Policy(retention_s=1e-6, tombstone_s=60))
    def pay(order: str) -> str:
        return order

    pay("o1")
    with pytest.raises(NotKept, match="so long ago"):
        pay("o1")
    runtime.close()
    line = StoreConnection(sqlite_store)
    [listed] = line.perform([Scan(10, tenant="oncekey")])
    assert [record.operation for record in listed] == [OPERATION]
    clock = FakeClock(runtime.clock.wall() + SPAN_S + MARGIN_S)
    later = Tombstones(clock, random_token)
    later.note(bytes(32), 1.0)
    later.work(line, go_on)
    [records] = line.perform([Scan(10)])
    [paid] = [record for record in records if record.tenant != "oncekey"]
    assert (paid.key, paid.answer.status, answer_left_s(paid) <= 0) == ("", 200, True)
    line.close()
