"""A connection that is made anew: what is known about verbs when it fails, what the log says about
an outage, and one timer for many deadlines, with the loop's clock and timers driven here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from oncekey._core.verbs import Find, Verb
from oncekey._system.clock import FakeClock
from oncekey.errors import CorruptRecord, StoreUnavailable, StoreUnfit
from oncekey.stores import connection
from oncekey.stores.base import AGAIN
from oncekey.stores.batching import AsyncGatherer, Gatherer
from oncekey.stores.connection import (
    PAUSE_S_MAX,
    QUIET_S,
    AnswerTimer,
    AsyncStoreConnection,
    Outage,
    StoreConnection,
)
from oncekey.stores.memory import MemoryStore
from oncekey.stores.sql_batch import Denied
from tests.stores.scripted import Scripted, find, ids

A, B, C = map(find, "abc")
TOLD = ["the store does not answer: refused is it running?", "the store answers again"]


class Closing(MemoryStore):
    """A store that hangs up while it is being checked."""

    def prepare(self) -> Any:
        yield from ()
        raise StoreUnavailable("hung up", sent=True)


def test_verbs_that_wait_for_a_connection_were_not_sent() -> None:
    with pytest.raises(StoreUnavailable) as failed:
        StoreConnection(Closing()).perform([Find(bytes(32))])
    assert failed.value.sent is False


@pytest.mark.anyio
async def test_verbs_that_wait_for_an_async_connection_were_not_sent() -> None:
    with pytest.raises(StoreUnavailable) as failed:
        await AsyncStoreConnection(Closing()).perform([Find(bytes(32))])
    assert failed.value.sent is False


@pytest.mark.parametrize("failure", [StoreUnavailable("hung up"), StoreUnfit("too old")])
async def test_p11_a_connection_that_fails_its_checks_is_closed(failure: Exception) -> None:
    """Each beat tries again: a server that is not fit yet would run out of connections."""

    def unfit() -> None:
        raise failure

    store = Scripted()
    store.unfit = unfit
    with pytest.raises(type(failure)):
        StoreConnection(store).perform([A])
    with pytest.raises(type(failure)):
        await AsyncStoreConnection(store).perform([A])
    assert store.closed == [True, True]


async def test_what_was_denied_is_asked_over_a_new_connection_but_not_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To MySQL those rights count that there were when a connection was made."""

    def deny(verbs: Sequence[Verb]) -> list[Any]:
        raise Denied("INSERT command denied")

    for is_sync in (True, False):
        monkeypatch.setattr(connection, "DENIED_S", 60.0)
        store = Scripted(deny)
        made: Any = StoreConnection(store) if is_sync else AsyncStoreConnection(store)

        async def perform(made: Any = made, is_sync: bool = is_sync) -> Any:
            return made.perform([A]) if is_sync else await made.perform([A])

        for _ in range(3):
            with pytest.raises(Denied):
                await perform()
        assert store.closed == [False]
        monkeypatch.setattr(connection, "DENIED_S", 0.0)
        made._privileges = connection._Privileges()
        with pytest.raises(Denied):
            await perform()
        store.answer = ids
        for _ in range(3):
            assert await perform() == [A.id]
        assert store.closed == [True, False]


def test_a_record_that_nobody_can_read_keeps_no_other_from_being_served() -> None:
    def answer(verbs: Sequence[Verb]) -> list[Any]:
        if B in verbs:
            raise CorruptRecord("sealed by another secret")
        return ids(verbs)

    store = Scripted(answer)
    assert StoreConnection(store).perform_all([A, B, C]) == [b"a", AGAIN, b"c"]


def test_verbs_of_several_groups_are_answered_in_the_order_in_which_they_were_asked() -> None:
    store = Scripted()
    store.group_of = lambda verb: verb in (A, C)
    assert StoreConnection(store).perform_all([A, B, C]) == [b"a", b"b", b"c"]
    assert store.asked == [[A, C], [B]]


# ----------------------------------------------------------------------------------- outages


def refuse() -> None:
    raise StoreUnavailable("refused\n\tis it running?", sent=False)


def lose(verbs: Sequence[Verb]) -> list[Any]:
    raise StoreUnavailable("refused\n\tis it running?", sent=True)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for whether it fails again."""
    monkeypatch.setattr(connection, "QUIET_S", 0.0)


def test_a_store_that_can_only_be_read_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """As on a full disk: replays are answered between the claims that fail."""
    clock = FakeClock()
    watched = Outage(clock=clock)
    for _ in range(3):
        watched.record_failure(StoreUnavailable("its disk is full", sent=False))
        clock.advance(QUIET_S - 0.1)
        watched.record_success()
    assert caplog.messages == ["the store does not answer: its disk is full"]
    clock.advance(0.2)
    watched.record_success()
    watched.record_success()
    assert caplog.messages[1:] == ["the store answers again"]


@pytest.mark.usefixtures("at_once")
def test_threads_an_outage_is_told_once_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    store = Scripted()
    gatherer = Gatherer(store)
    gatherer.ask(find("before"))
    for _ in range(2):
        caplog.clear()
        store.answer = lose
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
        watched.record_failure(StoreUnavailable("no answer", sent=False))
        pauses.append(watched.pause_s(0.1))
    assert pauses[:8] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, PAUSE_S_MAX, PAUSE_S_MAX]
    assert max(pauses) == PAUSE_S_MAX
    assert watched.pause_s(60.0) == 60.0
    watched.record_success()
    assert watched.pause_s(0.1) == 0.1


def test_an_error_that_nobody_foresaw_is_told_once_with_where_it_came_from(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also in the middle of an outage, whose reason it is not."""
    watched = Outage("the outbox", fails="cannot be read")
    for error in (StoreUnavailable("no answer", sent=False), ZeroDivisionError("by zero")) * 3:
        watched.record_failure(error)
    assert caplog.messages == [
        "the outbox cannot be read: no answer",
        "the outbox cannot be read: by zero",
    ]
    assert [record.exc_info is not None for record in caplog.records] == [False, True]


# ------------------------------------------------------------------------------- time limits


class Timers(asyncio.SelectorEventLoop):
    """A loop whose clock stands still until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.handles: list[asyncio.TimerHandle] = []

    def time(self) -> float:
        return self.now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[[], object], *, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, (), self, context)
        self.handles.append(handle)
        return handle

    def go_on(self, seconds: float) -> None:
        """Time passes, and what is due rings."""
        self.now += seconds
        for handle in [handle for handle in self.pending if handle.when() <= self.now]:
            self.handles.remove(handle)
            handle._run()

    @property
    def pending(self) -> list[asyncio.TimerHandle]:
        return [handle for handle in self.handles if not handle.cancelled()]


class Waiting:
    """Someone who gives up."""

    def __init__(self) -> None:
        self.loop = Timers()
        self.gave_up = 0
        self.timer = self.loop.run_until_complete(self._make())

    async def _make(self) -> AnswerTimer:
        return AnswerTimer(self._give_up)

    def _give_up(self) -> None:
        self.gave_up += 1


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    waiting = Waiting()
    yield waiting
    waiting.loop.close()


def test_p11_who_is_not_answered_in_time_gives_up_once(waiting: Waiting) -> None:
    waiting.timer.begin(5.0)
    waiting.loop.go_on(4.9)
    assert waiting.gave_up == 0
    waiting.loop.go_on(0.1)
    assert waiting.gave_up == 1
    waiting.timer.end()
    waiting.loop.go_on(60.0)
    assert waiting.gave_up == 1


def test_who_is_answered_does_not_give_up_and_leaves_no_timer_behind(waiting: Waiting) -> None:
    waiting.timer.begin(5.0)
    waiting.timer.end()
    waiting.loop.go_on(5.0)
    assert (waiting.gave_up, waiting.loop.pending) == (0, [])


def test_each_question_has_all_of_its_time_though_one_timer_serves_them(waiting: Waiting) -> None:
    waiting.timer.begin(5.0)
    timers = waiting.loop.pending
    waiting.loop.go_on(3.0)
    waiting.timer.end()
    waiting.timer.begin(5.0)
    assert waiting.loop.pending == timers
    waiting.loop.go_on(4.9)
    assert waiting.gave_up == 0
    waiting.loop.go_on(0.1)
    assert waiting.gave_up == 1


def test_a_shorter_wait_is_not_held_up_by_a_longer_one_before_it(waiting: Waiting) -> None:
    waiting.timer.begin(60.0)
    waiting.timer.end()
    waiting.timer.begin(5.0)
    waiting.loop.go_on(5.0)
    assert waiting.gave_up == 1


def test_after_a_rest_the_time_is_measured_anew(waiting: Waiting) -> None:
    waiting.timer.begin(5.0)
    waiting.timer.end()
    waiting.loop.go_on(600.0)
    waiting.timer.begin(5.0)
    waiting.loop.go_on(4.9)
    assert waiting.gave_up == 0
    waiting.loop.go_on(0.1)
    assert waiting.gave_up == 1


def test_closed_it_leaves_no_timer_behind(waiting: Waiting) -> None:
    waiting.timer.close()
    waiting.timer.begin(5.0)
    waiting.timer.close()
    assert waiting.loop.pending == []
