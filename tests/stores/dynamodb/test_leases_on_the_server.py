"""Observed leases on DynamoDB, which has no clock: processes that watch, and one that never did."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError

from oncekey._core.record import Record, State
from oncekey._core.verbs import Done, Due, Peek, Refused, Sweep
from oncekey._system.clock import FakeClock
from oncekey.stores.dynamodb.connection import CallAttempts, Driver
from oncekey.stores.dynamodb.server_date import ServerClock
from oncekey.stores.dynamodb.statements import ApiCall
from oncekey.stores.dynamodb.store import open_url
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import SyncFace
from tests.stores.dynamodb import kit
from tests.stores.dynamodb.cases import case

__all__ = ["case"]

pytestmark = pytest.mark.slow


@pytest.fixture
def other(dynamodb_url: str) -> Iterator[Case]:
    """Another process, which has observed nothing yet."""
    subject = kit.subject(dynamodb_url)
    face = SyncFace(subject.store)
    yield Case(subject, face)
    face.close()


def test_p6_another_process_needs_one_lease_of_its_own(case: Case, other: Case) -> None:
    """Two leases at most: one for the owner, one for the process that waits for it."""
    record = case.begin()
    case.lapse()
    assert case.find(record.id).lapsed
    first_look = other.find(record.id)
    assert first_look.lease_left_s == other.about(other.lease_s)
    other.refused(other.take(first_look), first_look)
    other.lapse()
    assert other.ask(Peek(record.id)).lease_left_s <= 0
    assert other.done(other.take(other.find(record.id))).attempt == 2
    assert isinstance(case.ask(case.complete(record)), Refused)


def test_p1_a_renewal_that_nobody_saw_defeats_a_take_over(case: Case, other: Case) -> None:
    record = case.begin()
    seen = other.find(record.id)
    case.done(case.renew(record))
    other.lapse()
    outcome = other.ask(other.take(seen))
    assert isinstance(outcome, Refused)
    assert outcome.record is not None
    assert (outcome.record.beat, outcome.record.token) == (1, record.token)
    assert outcome.record.lease_left_s == other.about(other.lease_s)


def test_p8_who_never_looked_takes_nothing_over(case: Case, other: Case) -> None:
    """Another machine's clock is no proof here."""
    record = case.begin()
    case.lapse()
    for move in (other.take(case.find(record.id)), other.doubt(case.find(record.id))):
        assert isinstance(other.ask(move), Refused)
    other.lapse()  # the refusal was its first read
    assert isinstance(other.ask(other.take(record)), Done)


@pytest.mark.parametrize("recovery", ["rerun", "resume"])
def test_p6_one_process_has_watched_for_all(
    case: Case, other: Case, dynamodb_url: str, recovery: str
) -> None:
    """Its sweep marks the record: a retry may reach any process, and recovery may have just
    started.
    """
    record = case.begin(case.claim(recovery=recovery))
    case.lapse()
    lapsed = case.find(record.id)
    assert case.ask(Sweep(10)) == 0
    case.same(case.find(record.id), lapsed)
    assert other.ask(Peek(record.id)).lease_left_s <= 0
    assert other.ask(Due(10, abandoned=True)) == ([record.id] if recovery == "resume" else [])
    assert other.done(other.take(other.find(record.id))).attempt == 2
    assert other.find(record.id).lease_left_s == other.about(other.lease_s)


def test_p1_a_renewal_makes_it_void_that_a_lease_was_seen_to_end(case: Case, other: Case) -> None:
    record = case.begin()
    case.lapse()
    assert case.ask(Sweep(10)) == 0
    assert other.find(record.id).lapsed
    case.done(case.renew(record))
    assert isinstance(other.ask(other.take(record)), Refused)
    assert other.find(record.id).lease_left_s == other.about(other.lease_s)


def test_p1_a_lease_that_was_renewed_unseen_is_not_said_to_have_ended(
    case: Case, other: Case
) -> None:
    record = case.begin()
    other.find(record.id)
    case.done(case.renew(record))
    other.lapse()
    assert other.ask(Sweep(10)) == 0
    assert case.find(record.id).lease_left_s == case.about(case.lease_s)


def test_a_recoverer_sees_what_is_abandoned_by_watching_it(case: Case, other: Case) -> None:
    record = case.begin(case.claim(recovery="resume"))
    plain = case.begin()
    assert other.ask(Due(10, abandoned=True)) == []
    other.lapse()
    assert other.ask(Due(10, abandoned=True)) == [record.id]
    assert other.ask(Due(10)) == [record.id]
    other.lapse()
    assert set(other.ask(Due(10))) == {record.id, plain.id}


def test_stores_by_one_url_watch_together(dynamodb: Subject, dynamodb_url: str) -> None:
    """Recovery and the application that it works for are two stores of one process."""
    one, two = open_url(dynamodb_url), open_url(dynamodb_url)
    assert one._verbs.observer is two._verbs.observer


def test_p8_retention_is_the_servers_not_the_hosts(dynamodb_url: str) -> None:
    """Dates come from the responses: all processes agree, however far their own clocks are
    ahead.
    """
    found: list[Record] = []
    for ahead_s in (0.0, 86_400.0):
        clock = kit.Ahead()
        clock.seconds = ahead_s
        subject = Subject(open_url(dynamodb_url, clock=clock))
        face = SyncFace(subject.store)
        case = Case(subject, face)
        record_id = found[0].id if found else case.stage(State.COMPLETED).id
        found.append(case.find(record_id))
        face.close()
    assert found[0].expires_in_s == pytest.approx(found[1].expires_in_s, abs=20)
    assert found[0].age_s == pytest.approx(found[1].age_s, abs=20)


def test_dates_are_asked_for_and_heard_by_one_clock() -> None:
    """Otherwise every response would look as if the server's clock had been set back."""
    clock, server_clock = kit.Ahead(), ServerClock(FakeClock(start=500.0))
    clock.seconds = 86_400.0
    driver = Driver("t", server_clock, clock, {}, timeout_s=1, connect_timeout_s=1, patience_s=1)
    tries = CallAttempts(driver, ApiCall("get_item", {}))
    assert tries.asked_at == 500.0
    busy = {"Error": {"Code": "ThrottlingException", "Message": "slow down"}}
    _, delay_s = tries.handle(ClientError(busy, "GetItem"))
    assert delay_s is not None
    assert tries.asked_at == 500.0 + delay_s
