"""The sweeper: removes what has expired, in bounded batches, and writes counters behind."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from oncekey._core.record import Claim
from oncekey._core.verbs import Count, Find, Insert, Sweep
from oncekey._engine import sweeper as sweepers
from oncekey._engine.counters import TallyCounters
from oncekey._engine.sweeper import Sweeper
from oncekey._system.clock import FakeClock, SystemClock
from oncekey.errors import StoreUnavailable
from oncekey.stores import connection
from oncekey.stores.batching import Gatherer
from oncekey.stores.connection import StoreConnection
from oncekey.stores.memory import MemoryStore


class Watched(MemoryStore):
    """Notes what it is asked, and can be switched off."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.sweeps: list[int] = []
        self.down = False
        self.tries = 0

    def perform(self, verbs: Any) -> Any:
        self.tries += 1
        if self.down:
            raise StoreUnavailable("no answer")
        self.sweeps += [verb.limit for verb in verbs if isinstance(verb, Sweep)]
        return (yield from super().perform(verbs))


def filled(count: int) -> tuple[FakeClock, Watched]:
    clock = FakeClock()
    store = Watched(clock)
    gatherer = Gatherer(store)
    for n in range(count):
        gatherer.ask(Insert(Claim(n.to_bytes(32), b"t" * 16, "acme", "POST /", "k", b"", 1, 10, 5)))
    return clock, store


def left(store: MemoryStore) -> int:
    return int(sum(Gatherer(store).ask(Count()).values()))


def test_p10_nothing_live_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweepers, "SWEEP_PAUSE_S", 0.0)
    clock, store = filled(25)
    sweeper = Sweeper(store, rows_max=10)
    clock.advance(14.9)
    assert sweeper.round(StoreConnection(store)) == 0
    assert left(store) == 25
    clock.advance(0.1)
    assert sweeper.round(StoreConnection(store)) == 25
    assert left(store) == 0
    assert store.sweeps == [10] * 5  # one that found nothing; three batches, and one to be sure


def test_a_store_that_is_down_does_not_end_the_sweeper() -> None:
    clock, store = filled(3)
    clock.advance(100)
    sweeper = Sweeper(store)
    store.down = True
    assert sweeper.round(StoreConnection(store)) == 0
    store.down = False
    assert sweeper.round(StoreConnection(store)) == 3


def test_a_store_that_stays_down_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once that it is back."""
    monkeypatch.setattr(connection, "QUIET_S", 0.0)
    _, store = filled(3)
    sweeper = Sweeper(store)
    for down in (True, True, True, False, False):
        store.down = down
        sweeper.round(StoreConnection(store))
        sweeper.do(Reading(), StoreConnection(store))
    assert caplog.messages == [
        "sweeping stopped early, and is tried again: no answer",
        "reading stopped early, and is tried again: no answer",
        "sweeping goes on",
        "reading goes on",
    ]


def test_a_chore_backs_off_while_the_store_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    _, store = filled(3)
    reading = Reading()
    reading.every_s = 1.0
    sweeper, passing = Sweeper(store, chores=[reading]), Passing(ends_at=100.0)
    monkeypatch.setattr(SystemClock, "monotonic", staticmethod(lambda: passing.now))
    sweeper._stopping = cast("threading.Event", passing)
    store.down = True
    sweeper._run()
    assert store.tries <= 30, "of a hundred seconds"


class Passing:
    """An event that nobody sets: waiting for it lets time pass, until there is no more."""

    def __init__(self, ends_at: float) -> None:
        self.now = 0.0
        self._ends_at = ends_at

    def wait(self, wait_s: float) -> bool:
        self.now += wait_s
        return self.is_set()

    def is_set(self) -> bool:
        return self.now >= self._ends_at


class Reading:
    """A chore."""

    every_s = 30.0

    def work(self, line: StoreConnection, pause: Any) -> None:
        line.perform([Count()])

    def finish(self, line: StoreConnection) -> None:
        pass


def test_counters_are_written_behind() -> None:
    _, store = filled(1)
    tallies = TallyCounters()
    record_id = bytes(32)
    for _ in range(3):
        tallies.count(tallies.replays, record_id)
    tallies.count(tallies.conflicts, record_id)
    Sweeper(store, tallies).round(StoreConnection(store))
    Sweeper(store, tallies).round(StoreConnection(store))
    record = Gatherer(store).ask(Find(record_id))
    assert (record.replays, record.conflicts) == (3, 1)


def test_p11_counters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TallyCounters, "IDS_MAX", 2)
    tallies = TallyCounters()
    for n in (1, 2, 3, 1):
        tallies.count(tallies.replays, bytes([n]))
    assert tallies.take() == ({b"\x01": 2, b"\x02": 1}, {})
    assert tallies.take() == ({}, {})


def test_the_thread_writes_what_is_counted_when_it_stops() -> None:
    _, store = filled(1)
    tallies = TallyCounters()
    sweeper = Sweeper(store, tallies, every_s=3600)
    sweeper.start()
    sweeper.start()
    tallies.count(tallies.replays, bytes(32))
    sweeper.stop()
    assert Gatherer(store).ask(Find(bytes(32))).replays == 1


def test_a_round_that_fails_in_a_way_nobody_foresaw_is_not_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, store = filled(3)
    clock.advance(100)
    sweeper = Sweeper(store)
    with monkeypatch.context() as broken:
        broken.setattr(store, "perform", lambda verbs: 1 / 0)
        assert sweeper.round(StoreConnection(store)) == 0
    assert sweeper.round(StoreConnection(store)) == 3


def test_what_was_taken_does_not_change_under_the_hands_of_whoever_writes_it() -> None:
    tallies = TallyCounters()
    counting = tallies.replays  # a thread that has read it and not yet counted
    replays, _ = tallies.take()
    tallies.count(counting, bytes(32))
    assert replays == {}
