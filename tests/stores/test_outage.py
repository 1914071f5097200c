"""What the log is told when the store does not answer, by both gatherers."""

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

from oncekey._core.verbs import Verb
from oncekey._system.clock import FakeClock
from oncekey.errors import StoreUnavailable
from oncekey.stores import outage
from oncekey.stores.batching import AsyncGatherer, Gatherer
from oncekey.stores.outage import PAUSE_S_MAX, QUIET_S, Outage
from tests.stores.scripted import Scripted, find

TOLD = ["the store does not answer: refused is it running?", "the store answers again"]


def refuse() -> None:
    raise StoreUnavailable("refused\n\tis it running?", sent=False)


def lost(verbs: Sequence[Verb]) -> list[Any]:
    raise StoreUnavailable("refused\n\tis it running?", sent=True)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for whether it fails again."""
    monkeypatch.setattr(outage, "QUIET_S", 0.0)


def test_a_store_that_can_only_be_read_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """As on a full disk: replays are answered between the claims that fail."""
    clock = FakeClock()
    watched = Outage(clock=clock)
    for _ in range(3):
        watched.noticed(StoreUnavailable("its disk is full", sent=False))
        clock.advance(QUIET_S - 0.1)
        watched.over()
    assert caplog.messages == ["the store does not answer: its disk is full"]
    clock.advance(0.2)
    watched.over()
    watched.over()
    assert caplog.messages[1:] == ["the store answers again"]


@pytest.mark.usefixtures("at_once")
def test_threads_an_outage_is_told_once_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    store = Scripted()
    gatherer = Gatherer(store)
    gatherer.ask(find("before"))
    for _ in range(2):
        caplog.clear()
        store.answer = lost
        for _ in range(3):
            with contextlib.suppress(StoreUnavailable):
                gatherer.ask(find("meanwhile"))
        store.answer = lambda verbs: [None] * len(verbs)
        for _ in range(3):
            gatherer.ask(find("after"))
        assert caplog.messages == TOLD


@pytest.mark.usefixtures("at_once")
async def test_event_loops_an_outage_is_told_once_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Scripted()
    gatherer = AsyncGatherer(store)
    store.refuse = refuse
    for _ in range(3):
        with contextlib.suppress(StoreUnavailable):
            await gatherer.ask(find("meanwhile"))
    store.refuse = lambda: None
    for _ in range(3):
        await gatherer.ask(find("after"))
    assert caplog.messages == TOLD


def test_p11_who_works_in_rounds_pauses_longer_each_time_up_to_a_limit() -> None:
    watched = Outage(clock=FakeClock())
    pauses = [watched.pause_s(0.1)]
    for _ in range(100):
        watched.noticed(StoreUnavailable("no answer", sent=False))
        pauses.append(watched.pause_s(0.1))
    assert pauses[:8] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, PAUSE_S_MAX, PAUSE_S_MAX]
    assert max(pauses) == PAUSE_S_MAX
    assert watched.pause_s(60.0) == 60.0
    watched.over()
    assert watched.pause_s(0.1) == 0.1


def test_an_error_that_nobody_foresaw_is_told_once_with_where_it_came_from(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also in the middle of an outage, whose reason it is not."""
    watched = Outage("the outbox", fails="cannot be read")
    for error in (StoreUnavailable("no answer", sent=False), ZeroDivisionError("by zero")) * 3:
        watched.noticed(error)
    assert caplog.messages == [
        "the outbox cannot be read: no answer",
        "the outbox cannot be read: by zero",
    ]
    assert [record.exc_info is not None for record in caplog.records] == [False, True]
