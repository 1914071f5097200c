"""Intents grow old: no key is sent that its server may have forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncekey._core.http_dates import http_date
from oncekey._core.profiles import PROFILES
from oncekey._system.clock import FakeClock
from oncekey.client import Client, Journal, outcome_of
from oncekey.errors import Unknown
from tests.client.journal_fixtures import DAY_S, PAY, QUICK, changes, clock, journal, path, server
from tests.client.scripted_server import ScriptedServer

__all__ = ["clock", "journal", "path", "server"]


def test_a_key_that_the_server_has_forgotten_is_refused(journal: Journal, clock: FakeClock) -> None:
    key = journal.key(PAY)
    clock.advance(DAY_S - 121)
    assert journal.key(PAY) == key
    clock.advance(1)

    with pytest.raises(Unknown, match=r"over 24.0 hours ago.*could do it twice.*Find out") as no:
        journal.key(PAY)

    assert not no.value.retryable
    assert [intent.name for intent in journal.unsettled()] == [PAY], "still to be looked at"
    journal.settle(PAY)
    assert journal.key(PAY) != key


def test_how_long_a_server_remembers_may_be_said_with_the_intent(
    journal: Journal, clock: FakeClock
) -> None:
    journal.key(PAY, origin="https://api.test", retention_s=600.0)
    with journal.intent("in a block", origin="https://api.test", note="as the others"):
        found = journal.find("in a block")
        assert found is not None
        assert (found.origin, found.note) == ("https://api.test:443", "as the others")
        clock.advance(600)
        with pytest.raises(Unknown):
            journal.key(PAY)
        with pytest.raises(Unknown):
            journal.key("in a block")


def test_how_long_a_server_remembers_is_learnt_from_its_answers(
    path: Path, clock: FakeClock, server: ScriptedServer
) -> None:
    expires = {"Idempotency-Expires": http_date(clock.wall() + 600).decode()}
    server.script = [(201, expires), 201]
    with (
        Journal(path, clock=clock) as journal,
        Client(base_url=server.url, journal=journal, clock=clock) as api,
    ):
        api.post("/charges", intent="first")
        api.post("/charges", intent="second")
        other = journal.key("elsewhere", origin="https://other.test:443")
        clock.advance(601)

        with pytest.raises(Unknown):
            api.post("/charges", intent="second")
        assert journal.key("elsewhere", origin="https://other.test:443") == other

    assert len(server.seen) == 2, "nothing was sent under a key that is forgotten"
    with Journal(path, clock=clock) as restarted, pytest.raises(Unknown):
        restarted.key("second")


def test_of_what_the_routes_of_a_server_say_the_shortest_counts(
    path: Path, clock: FakeClock, server: ScriptedServer
) -> None:
    """Or what one of them has forgotten would be sent again, as long as another remembers it."""

    def remembering(seconds: float) -> tuple[int, dict[str, str]]:
        return 201, {"Idempotency-Expires": http_date(clock.wall() + seconds).decode()}

    server.script = [remembering(600), remembering(DAY_S), 503, 503]
    with (
        Journal(path, clock=clock) as journal,
        Journal(path, clock=clock) as another,
        Client(base_url=server.url, journal=journal, clock=clock, retries=QUICK) as api,
    ):
        assert another.unsettled() == []  # it has the file open, and knows nothing yet
        for name in ("first", "second", PAY):
            api.post("/charges", intent=name)
        another.learn(server.url, DAY_S)
        clock.advance(600)
        with pytest.raises(Unknown, match="could do it twice"):
            api.post("/charges", intent=PAY)

    assert len(server.seen) == 4, "nothing was sent under a key that is forgotten"


def test_how_long_it_remembers_is_read_by_the_server_s_own_clock(
    path: Path, clock: FakeClock, server: ScriptedServer
) -> None:
    """That clock is ten hours ahead: by ours, the key would count ten hours too long."""
    there = clock.wall() + 36_000
    dates = {"Date": http_date(there).decode()}
    server.script = [(201, {**dates, "Idempotency-Expires": http_date(there + 600).decode()})]
    with (
        Journal(path, clock=clock) as journal,
        Client(base_url=server.url, journal=journal, clock=clock) as api,
    ):
        api.post("/charges", intent=PAY)
        [found] = journal.unsettled()

    assert found.until == found.begun + 540


def test_an_answer_is_not_lost_because_the_journal_cannot_be_written(
    path: Path, clock: FakeClock, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    expires = {"Idempotency-Expires": http_date(clock.wall() + 600).decode()}
    with (
        Journal(path, clock=clock) as journal,
        Client(base_url=server.url, journal=journal, clock=clock) as api,
    ):

        def answered(_: object) -> object:
            journal._open_db().execute("PRAGMA query_only = 1")
            return 201, expires

        server.otherwise = answered
        assert api.post("/charges", intent=PAY).status_code == 201

        assert "could not record how long" in caplog.text
        assert [intent.name for intent in journal.unsettled()] == [PAY]


def test_what_was_written_down_for_one_server_is_not_sent_to_another_unnoticed(
    path: Path, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    with Journal(path) as journal, Client(base_url=server.url, journal=journal) as api:
        api.post("/charges", intent="at home")
        assert not caplog.records
        journal.key(PAY, origin="https://old.test")
        api.post("/charges", intent=PAY)

    assert f"begun for https://old.test:443 and is sent to {server.url}" in caplog.text


def test_no_retry_leaves_after_the_server_has_forgotten_the_key(
    path: Path, clock: FakeClock, server: ScriptedServer
) -> None:
    """Asked to come back, and within the time for all attempts: but the key counts for less."""
    server.script = [(503, {"Retry-After": "20"})] * 2
    with (
        Journal(path, clock=clock, retention_s=100.0) as journal,
        Client(base_url=server.url, journal=journal, clock=clock, retries=QUICK) as api,
    ):
        journal.key(PAY)
        clock.advance(89)
        told = outcome_of(api.post("/charges", intent=PAY))

    assert len(server.seen) == 1
    assert told is not None
    assert "forgotten its key by now" in (told.gave_up or "")


def test_an_intent_that_is_sent_as_a_key_grows_old_as_well(
    path: Path, clock: FakeClock, server: ScriptedServer
) -> None:
    with (
        Journal(path, clock=clock) as journal,
        Client(base_url=server.url, clock=clock) as api,
    ):
        journal.key(PAY)
        [intent] = journal.unsettled()
        assert outcome_of(api.post("/charges", key=intent)) is not None
        clock.advance(DAY_S)
        with pytest.raises(Unknown, match="could do it twice"):
            api.post("/charges", key=intent)

    assert server.keys == [intent.key]


def test_what_is_resumed_was_first_sent_when_it_was_begun(
    path: Path, clock: FakeClock, server: ScriptedServer
) -> None:
    begun = http_date(clock.wall()).decode()
    with (
        Journal(path, clock=clock) as journal,
        Client(base_url=server.url, journal=journal, clock=clock, profile="azure") as api,
    ):
        for _ in range(2):
            api.post("/sms", intent=PAY)
            clock.advance(60)

    assert [seen.headers["repeatability-first-sent"] for seen in server.seen] == [begun] * 2


@pytest.mark.parametrize("profile", PROFILES)
def test_how_long_a_provider_remembers_is_known_before_it_says_so(
    path: Path, clock: FakeClock, server: ScriptedServer, profile: str
) -> None:
    known_s = PROFILES[profile].relied_s
    with (
        Journal(path, clock=clock) as journal,
        Client(base_url=server.url, journal=journal, clock=clock, profile=profile) as api,
    ):
        journal.unsettled()  # opens the file
        before = changes(path)
        api.post("/charges", json={"amount": 1}, intent=PAY)
        assert changes(path) - before == 1, "still one durable write"
        clock.advance(known_s - min(120.0, known_s / 10) - 1)
        api.post("/charges", json={"amount": 1}, intent=PAY)
        clock.advance(1)
        with pytest.raises(Unknown, match="could do it twice"):
            api.post("/charges", json={"amount": 1}, intent=PAY)

    assert len(server.seen) == 2, "nothing was sent under a key that is forgotten"
    with Journal(path, clock=clock) as restarted:
        assert restarted.unsettled()[0].until <= clock.wall()


def test_a_derived_profile_counts_on_what_its_parent_does(
    path: Path, clock: FakeClock, server: ScriptedServer
) -> None:
    ours = PROFILES["paypal"].derive(name="ours")
    with (
        Journal(path, clock=clock) as journal,
        Client(base_url=server.url, journal=journal, clock=clock, profile=ours) as api,
    ):
        api.post("/charges", json={"amount": 1}, intent=PAY)
        clock.advance(3 * 3600.0)
        with pytest.raises(Unknown, match="could do it twice"):
            api.post("/charges", json={"amount": 1}, intent=PAY)

    assert len(server.seen) == 1


def test_one_s_own_setting_goes_before_what_is_known_of_a_provider(
    path: Path, clock: FakeClock
) -> None:
    with Journal(path, clock=clock, retention_s=10_000.0) as journal:
        key = journal.key(PAY, origin="https://api.test", retention_s=600.0)
        clock.advance(9_000)
        assert journal.key(PAY) == key


def test_what_one_process_was_told_counts_for_all_that_have_the_file_open(
    path: Path, clock: FakeClock
) -> None:
    """Or one that was idle meanwhile would send again what its server has forgotten."""
    api = "https://api.test"
    with Journal(path, clock=clock) as idle, Journal(path, clock=clock) as journal:
        assert idle.unsettled() == []
        journal.key(PAY, origin=api, retention_s=DAY_S)
        journal.learn(api, 600.0)
        [found] = idle.unsettled()
        idle.key("another", origin=api, retention_s=DAY_S)
        clock.advance(600)

        for each in (idle, journal):
            with pytest.raises(Unknown, match="could do it twice"):
                each.key(PAY)

    assert found.until == found.begun + 540
    with Journal(path, clock=clock) as restarted, pytest.raises(Unknown):
        restarted.key("another")


def test_who_opens_it_without_the_setting_counts_on_the_same(path: Path, clock: FakeClock) -> None:
    """`oncekey intents` knows nothing of the application that wrote the file."""
    with Journal(path, clock=clock, retention_s=600.0) as journal:
        journal.unsettled()  # opens the file
        before = changes(path)
        journal.key(PAY, origin="https://api.test")
        assert changes(path) - before == 1, "still one durable write"
    with Journal(path, clock=clock) as restarted:
        [found] = restarted.unsettled()
        clock.advance(601)
        with pytest.raises(Unknown):
            restarted.key(PAY)

    assert found.until == found.begun + 540


def test_a_server_s_word_is_written_down_once(
    path: Path, clock: FakeClock, server: ScriptedServer
) -> None:
    expires = {"Idempotency-Expires": http_date(clock.wall() + 600).decode()}
    server.script = [(201, expires)] * 3
    with (
        Journal(path, clock=clock) as journal,
        Client(base_url=server.url, journal=journal, clock=clock) as api,
    ):
        journal.unsettled()
        writes = []
        for number in range(3):
            before = changes(path)
            api.post("/charges", intent=f"order-{number}/pay")
            writes.append(changes(path) - before)

    assert writes == [2, 1, 1]
