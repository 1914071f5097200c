"""The memory store, where it is more than the contract asks, or less."""

from __future__ import annotations

import asyncio

import pytest

from oncekey._core.op import arun, run
from oncekey._core.record import State
from oncekey._core.verbs import Count, Insert
from oncekey._system.clock import FakeClock
from oncekey.stores.batching import AsyncGatherer, Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import SyncFace


def case_of(clock: FakeClock) -> Case:
    subject = Subject(MemoryStore(clock), elapse=clock.advance)
    return Case(subject, SyncFace(subject.store))


def test_it_promises_to_survive_nothing() -> None:
    kept = MemoryStore().durability
    assert (kept.process_crash, kept.store_crash, kept.power_loss) == (False, False, False)


def test_p8_setting_the_wall_clock_changes_nothing() -> None:
    clock = FakeClock()
    case = case_of(clock)
    before = case.begin()
    for seconds in (86_400.0, -2 * 86_400.0):
        clock.step_wall(seconds)
        assert case.find(before.id) == before


def test_a_deadline_is_over_at_that_moment_and_not_before() -> None:
    """With a clock that stands still, what other stores can only be asked to come near."""
    clock = FakeClock(start=0.0)
    case = case_of(clock)
    record = case.begin(case.claim(lease_s=8.0, retention_s=16.0))
    assert (record.lease_left_s, record.expires_in_s, record.age_s) == (8.0, 24.0, 0.0)
    clock.advance(7.875)
    assert not case.find(record.id).lapsed
    clock.advance(0.125)
    assert case.find(record.id).lapsed
    assert case.find(record.id).lease_left_s == 0.0
    clock.advance(15.875)
    assert not case.find(record.id).expired
    clock.advance(0.125)
    assert case.find(record.id).expired


def test_there_is_nothing_to_connect_to_and_nothing_to_migrate() -> None:
    store = MemoryStore()
    connection = store.connect()
    run(store.prepare(), connection.ask)
    assert run(store.migrate(), connection.ask) == []
    with pytest.raises(AssertionError, match="asks nothing"):
        connection.ask("anything")
    connection.close()


async def test_there_is_nothing_to_await_either() -> None:
    store = MemoryStore()
    connection = await store.aconnect()
    assert await arun(store.migrate(), connection.ask) == []
    with pytest.raises(AssertionError, match="asks nothing"):
        await connection.ask("anything")
    await connection.close()


def test_its_records_are_shared_by_all_who_hold_it() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    claim = Case(Subject(store, elapse=clock.advance), SyncFace(store)).claim()
    Gatherer(store).ask(Insert(claim))

    async def count() -> dict[State, int]:
        counts: dict[State, int] = await AsyncGatherer(store).ask(Count())
        return counts

    assert asyncio.run(count())[State.RUNNING] == 1
    assert Gatherer(MemoryStore(clock)).ask(Count())[State.RUNNING] == 0
