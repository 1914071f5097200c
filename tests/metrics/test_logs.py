"""Log lines: the level that an event deserves, and words that help."""

import logging

import pytest

from oncekey import events
from oncekey.metrics import LoggingHook
from tests.metrics.samples import HASH, KINDS, OPERATION, sample


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (sample(events.OutcomeUnknown), "ERROR"),
        (sample(events.Unprotected), "WARNING"),
        (sample(events.LeaseWasLost), "WARNING"),
        (sample(events.TakenOver), "WARNING"),
        (sample(events.Resolved), "INFO"),
        (sample(events.StoreAsked, error="lost"), "WARNING"),
        (sample(events.StoreAsked, error="not sent"), "WARNING"),
        (sample(events.Declined, reason="store-unavailable"), "WARNING"),
        (sample(events.Declined, reason="outcome-unknown"), "WARNING"),
        (sample(events.Declined, reason="mismatch"), "INFO"),
        (sample(events.Declined, reason="in-flight"), "INFO"),
        (sample(events.Replayed), "INFO"),
        (sample(events.Released, no_effect=False), "INFO"),
        (sample(events.Released, no_effect=True), "DEBUG"),
        (sample(events.Started), "DEBUG"),
        (sample(events.Completed), "DEBUG"),
        (sample(events.NotAtomic), "DEBUG"),  # the engine has warned itself
        (sample(events.StoreAsked), "DEBUG"),
        (sample(events.Attempted), "DEBUG"),
        (sample(events.Attempted, status=503, retry_in_s=1.0), "INFO"),
        (sample(events.Attempted, status=503, gave_up="8 attempts were made"), "WARNING"),
        (sample(events.Attempted, status=422, mismatch=True), "WARNING"),
    ],
)
def test_levels(caplog: pytest.LogCaptureFixture, event: events.Event, level: str) -> None:
    with caplog.at_level(logging.DEBUG, "oncekey"):
        LoggingHook()(event)

    [line] = caplog.records
    assert line.levelname == level
    assert line.name == "oncekey"
    assert line.oncekey == event  # type: ignore[attr-defined]


def test_a_request_whose_key_was_not_looked_up_has_no_hash(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "oncekey"):
        LoggingHook()(events.Declined(OPERATION, "", "invalid-key"))

    assert caplog.messages == [f"{OPERATION} key=-: refused: invalid-key"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_line_names_the_operation_and_the_hash(
    caplog: pytest.LogCaptureFixture, kind: type[events.Event]
) -> None:
    with caplog.at_level(logging.DEBUG, "oncekey"):
        LoggingHook()(sample(kind))

    [line] = caplog.messages
    where, _, said = line.partition(": ")
    assert where == f"{OPERATION} key={HASH}"
    assert len(said) > 10
    assert said != kind.__name__


def test_an_unknown_outcome_says_where_to_look(caplog: pytest.LogCaptureFixture) -> None:
    LoggingHook()(sample(events.OutcomeUnknown))

    assert "oncekey list --unknown" in caplog.text


def test_e13_a_path_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    LoggingHook()(sample(events.TakenOver, operation="POST /x\nERROR \x1b[31mall is lost"))

    [line] = caplog.messages
    assert line.isprintable()
    assert r"POST /x\nERROR \x1b[31mall is lost" in line


def test_a_logger_of_ones_own(caplog: pytest.LogCaptureFixture) -> None:
    LoggingHook(logging.getLogger("shop"))(sample(events.TakenOver))

    assert [line.name for line in caplog.records] == ["shop"]
