"""Observed leases: a process waits a whole lease, never less, however little it remembers."""

from __future__ import annotations

from oncekey._system.clock import FakeClock
from oncekey.stores.dynamodb.leases import LeaseObserver, observer_of

ID, TOKEN = b"id", b"token"
LEASE_S = 30.0


def test_p8_whoever_looks_first_sees_a_whole_lease() -> None:
    clock = FakeClock()
    observer = LeaseObserver(clock)
    assert observer.observe(ID, 1, 0, TOKEN, LEASE_S) == LEASE_S
    clock.advance(10)
    assert observer.observe(ID, 1, 0, TOKEN, LEASE_S) == LEASE_S - 10
    assert observer.lapsed_beat(ID, 1, TOKEN) is None


def test_p8_what_did_not_change_for_one_lease_has_lapsed_at_its_beat() -> None:
    clock = FakeClock()
    observer = LeaseObserver(clock)
    observer.observe(ID, 1, 4, TOKEN, LEASE_S)
    clock.advance(LEASE_S)
    assert observer.observe(ID, 1, 4, TOKEN, LEASE_S) == 0
    assert observer.lapsed_beat(ID, 1, TOKEN) == 4
    assert observer.lapsed_beat(ID, 2, TOKEN) is None
    assert observer.lapsed_beat(ID, 1, b"another") is None
    assert observer.lapsed_beat(b"never seen", 1, TOKEN) is None


def test_p8_a_beat_or_a_new_owner_begins_a_new_lease() -> None:
    clock = FakeClock()
    observer = LeaseObserver(clock)
    for fence, beat in ((1, 0), (1, 1), (2, 1)):
        assert observer.observe(ID, fence, beat, TOKEN, LEASE_S) == LEASE_S
        clock.advance(LEASE_S)
        assert observer.lapsed_beat(ID, fence, TOKEN) == beat


def test_a_late_look_through_an_index_changes_nothing() -> None:
    clock = FakeClock()
    observer = LeaseObserver(clock)
    observer.observe(ID, 1, 2, TOKEN, LEASE_S)
    clock.advance(20)
    assert observer.observe(ID, 1, 1, TOKEN, LEASE_S) == LEASE_S - 20
    clock.advance(10)
    assert observer.lapsed_beat(ID, 1, TOKEN) == 2


def test_p11_what_was_not_looked_at_for_longest_is_forgotten_and_only_delays() -> None:
    clock = FakeClock()
    observer = LeaseObserver(clock, observations_max=2)
    for name in (b"a", b"b"):
        observer.observe(name, 1, 0, TOKEN, LEASE_S)
    clock.advance(LEASE_S)
    observer.observe(b"a", 1, 0, TOKEN, LEASE_S)
    observer.observe(b"c", 1, 0, TOKEN, LEASE_S)
    assert len(observer) == 2
    assert observer.lapsed_beat(b"a", 1, TOKEN) == 0
    assert observer.lapsed_beat(b"b", 1, TOKEN) is None
    assert observer.observe(b"b", 1, 0, TOKEN, LEASE_S) == LEASE_S


def test_what_ended_is_forgotten() -> None:
    observer = LeaseObserver(FakeClock())
    observer.observe(ID, 1, 0, TOKEN, LEASE_S)
    observer.forget(ID)
    observer.forget(ID)
    assert len(observer) == 0


def test_stores_of_one_place_share_what_this_process_saw() -> None:
    one, other = observer_of("place-1"), observer_of("place-2")
    assert one is observer_of("place-1")
    assert one is not other


def test_a_renewal_for_longer_is_overlong_until_one_lease_is_left() -> None:
    clock = FakeClock()
    observer = LeaseObserver(clock)
    observer.observe(ID, 1, 3, TOKEN, LEASE_S * 3)
    assert observer.overlong_beat(ID, 1, TOKEN, LEASE_S) == 3
    assert observer.overlong_beat(ID, 2, TOKEN, LEASE_S) is None
    clock.advance(LEASE_S * 2)
    assert observer.overlong_beat(ID, 1, TOKEN, LEASE_S) is None


def test_one_observers_finding_is_everybodys_until_the_next_beat() -> None:
    clock = FakeClock()
    observer = LeaseObserver(clock)
    assert observer.observe(ID, 1, 0, TOKEN, LEASE_S, lapsed=True) <= 0
    assert observer.lapsed_beat(ID, 1, TOKEN) == 0
    assert observer.observe(ID, 1, 1, TOKEN, LEASE_S) == LEASE_S
    assert observer.lapsed_beat(ID, 1, TOKEN) is None


def test_what_lapsed_here_is_told_once() -> None:
    clock = FakeClock()
    observer = LeaseObserver(clock)
    for name in (b"a", b"b", b"c"):
        observer.observe(name, 1, 0, TOKEN, LEASE_S)
    assert observer.lapses_to_announce(10) == []
    clock.advance(LEASE_S)
    observer.observe(b"c", 1, 1, TOKEN, LEASE_S)
    assert len(observer.lapses_to_announce(1)) == 1
    for name, seen in observer.lapses_to_announce(10):
        observer.mark_announced(name, seen)
    assert observer.lapses_to_announce(10) == []
    assert observer.lapsed_beat(b"a", 1, TOKEN) == 0


def test_what_changed_meanwhile_is_not_taken_for_told() -> None:
    clock = FakeClock()
    observer = LeaseObserver(clock)
    observer.observe(ID, 1, 0, TOKEN, LEASE_S)
    clock.advance(LEASE_S)
    [(_, seen)] = observer.lapses_to_announce(10)
    observer.observe(ID, 1, 1, TOKEN, LEASE_S)
    observer.mark_announced(ID, seen)
    clock.advance(LEASE_S)
    assert [name for name, _ in observer.lapses_to_announce(10)] == [ID]
