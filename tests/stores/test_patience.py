"""Patience: one timer for many deadlines. The loop's clock and timers are driven here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncekey.stores.patience import Patience


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
        self.patience = self.loop.run_until_complete(self._make())

    async def _make(self) -> Patience:
        return Patience(self._give_up)

    def _give_up(self) -> None:
        self.gave_up += 1


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    waiting = Waiting()
    yield waiting
    waiting.loop.close()


def test_p11_who_is_not_answered_in_time_gives_up_once(waiting: Waiting) -> None:
    waiting.patience.begin(5.0)
    waiting.loop.go_on(4.9)
    assert waiting.gave_up == 0
    waiting.loop.go_on(0.1)
    assert waiting.gave_up == 1
    waiting.patience.end()
    waiting.loop.go_on(60.0)
    assert waiting.gave_up == 1


def test_who_is_answered_does_not_give_up_and_leaves_no_timer_behind(waiting: Waiting) -> None:
    waiting.patience.begin(5.0)
    waiting.patience.end()
    waiting.loop.go_on(5.0)
    assert (waiting.gave_up, waiting.loop.pending) == (0, [])


def test_each_question_has_all_of_its_time_though_one_timer_serves_them(waiting: Waiting) -> None:
    waiting.patience.begin(5.0)
    timers = waiting.loop.pending
    waiting.loop.go_on(3.0)
    waiting.patience.end()
    waiting.patience.begin(5.0)
    assert waiting.loop.pending == timers
    waiting.loop.go_on(4.9)
    assert waiting.gave_up == 0
    waiting.loop.go_on(0.1)
    assert waiting.gave_up == 1


def test_a_shorter_wait_is_not_held_up_by_a_longer_one_before_it(waiting: Waiting) -> None:
    waiting.patience.begin(60.0)
    waiting.patience.end()
    waiting.patience.begin(5.0)
    waiting.loop.go_on(5.0)
    assert waiting.gave_up == 1


def test_after_a_rest_the_time_is_measured_anew(waiting: Waiting) -> None:
    waiting.patience.begin(5.0)
    waiting.patience.end()
    waiting.loop.go_on(600.0)
    waiting.patience.begin(5.0)
    waiting.loop.go_on(4.9)
    assert waiting.gave_up == 0
    waiting.loop.go_on(0.1)
    assert waiting.gave_up == 1


def test_closed_it_leaves_no_timer_behind(waiting: Waiting) -> None:
    waiting.patience.close()
    waiting.patience.begin(5.0)
    waiting.patience.close()
    assert waiting.loop.pending == []
