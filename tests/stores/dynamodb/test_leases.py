"""Observed leases: one lease of watching, never less, however little is remembered."""

from __future__ import annotations

from oncekey._system.clock import FakeClock
from oncekey.stores.dynamodb.leases import Sightings, sightings_of

ID, TOKEN = b"id", b"token"
LEASE_S = 30.0


def test_p8_whoever_looks_first_sees_a_whole_lease() -> None:
    clock = FakeClock()
    sightings = Sightings(clock)
    assert sightings.look(ID, 1, 0, TOKEN, LEASE_S) == LEASE_S
    clock.advance(10)
    assert sightings.look(ID, 1, 0, TOKEN, LEASE_S) == LEASE_S - 10
    assert sightings.lapsed(ID, 1, TOKEN) is None


def test_p8_what_did_not_change_for_one_lease_has_lapsed_at_its_beat() -> None:
    clock = FakeClock()
    sightings = Sightings(clock)
    sightings.look(ID, 1, 4, TOKEN, LEASE_S)
    clock.advance(LEASE_S)
    assert sightings.look(ID, 1, 4, TOKEN, LEASE_S) == 0
    assert sightings.lapsed(ID, 1, TOKEN) == 4
    assert sightings.lapsed(ID, 2, TOKEN) is None
    assert sightings.lapsed(ID, 1, b"another") is None
    assert sightings.lapsed(b"never seen", 1, TOKEN) is None


def test_p8_a_beat_or_a_new_owner_begins_a_new_lease() -> None:
    clock = FakeClock()
    sightings = Sightings(clock)
    for fence, beat in ((1, 0), (1, 1), (2, 1)):
        assert sightings.look(ID, fence, beat, TOKEN, LEASE_S) == LEASE_S
        clock.advance(LEASE_S)
        assert sightings.lapsed(ID, fence, TOKEN) == beat


def test_a_late_look_through_an_index_changes_nothing() -> None:
    clock = FakeClock()
    sightings = Sightings(clock)
    sightings.look(ID, 1, 2, TOKEN, LEASE_S)
    clock.advance(20)
    assert sightings.look(ID, 1, 1, TOKEN, LEASE_S) == LEASE_S - 20
    clock.advance(10)
    assert sightings.lapsed(ID, 1, TOKEN) == 2


def test_p11_what_was_not_looked_at_for_longest_is_forgotten_and_only_delays() -> None:
    clock = FakeClock()
    sightings = Sightings(clock, sightings_max=2)
    for name in (b"a", b"b"):
        sightings.look(name, 1, 0, TOKEN, LEASE_S)
    clock.advance(LEASE_S)
    sightings.look(b"a", 1, 0, TOKEN, LEASE_S)
    sightings.look(b"c", 1, 0, TOKEN, LEASE_S)
    assert len(sightings) == 2
    assert sightings.lapsed(b"a", 1, TOKEN) == 0
    assert sightings.lapsed(b"b", 1, TOKEN) is None
    assert sightings.look(b"b", 1, 0, TOKEN, LEASE_S) == LEASE_S


def test_what_ended_is_forgotten() -> None:
    sightings = Sightings(FakeClock())
    sightings.look(ID, 1, 0, TOKEN, LEASE_S)
    sightings.forget(ID)
    sightings.forget(ID)
    assert len(sightings) == 0


def test_stores_of_one_place_share_what_this_process_saw() -> None:
    one, other = sightings_of("place-1"), sightings_of("place-2")
    assert one is sightings_of("place-1")
    assert one is not other


def test_a_renewal_for_longer_is_overlong_until_one_lease_is_left() -> None:
    clock = FakeClock()
    sightings = Sightings(clock)
    sightings.look(ID, 1, 3, TOKEN, LEASE_S * 3)
    assert sightings.overlong(ID, 1, TOKEN, LEASE_S) == 3
    assert sightings.overlong(ID, 2, TOKEN, LEASE_S) is None
    clock.advance(LEASE_S * 2)
    assert sightings.overlong(ID, 1, TOKEN, LEASE_S) is None


def test_one_observers_finding_is_everybodys_until_the_next_beat() -> None:
    clock = FakeClock()
    sightings = Sightings(clock)
    assert sightings.look(ID, 1, 0, TOKEN, LEASE_S, lapsed=True) <= 0
    assert sightings.lapsed(ID, 1, TOKEN) == 0
    assert sightings.look(ID, 1, 1, TOKEN, LEASE_S) == LEASE_S
    assert sightings.lapsed(ID, 1, TOKEN) is None


def test_what_lapsed_here_is_told_once() -> None:
    clock = FakeClock()
    sightings = Sightings(clock)
    for name in (b"a", b"b", b"c"):
        sightings.look(name, 1, 0, TOKEN, LEASE_S)
    assert sightings.untold(10) == []
    clock.advance(LEASE_S)
    sightings.look(b"c", 1, 1, TOKEN, LEASE_S)
    assert len(sightings.untold(1)) == 1
    for name, seen in sightings.untold(10):
        sightings.tell(name, seen)
    assert sightings.untold(10) == []
    assert sightings.lapsed(b"a", 1, TOKEN) == 0


def test_what_changed_meanwhile_is_not_taken_for_told() -> None:
    clock = FakeClock()
    sightings = Sightings(clock)
    sightings.look(ID, 1, 0, TOKEN, LEASE_S)
    clock.advance(LEASE_S)
    [(_, seen)] = sightings.untold(10)
    sightings.look(ID, 1, 1, TOKEN, LEASE_S)
    sightings.tell(ID, seen)
    clock.advance(LEASE_S)
    assert [name for name, _ in sightings.untold(10)] == [ID]
