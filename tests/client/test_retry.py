"""Attempts in virtual time, where sending takes exactly as long as it is allowed to."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._core.op import Pause, run
from oncekey._core.profiles import PROFILES
from oncekey._system.clock import FakeClock
from oncekey.client._budget import RetryBudget
from oncekey.client._classify import NoResponse, WholeResponse
from oncekey.client._retry import (
    Delivery,
    DeliveryResult,
    FirstAttempt,
    Retries,
    RetryLoop,
    SendAgain,
)
from oncekey.errors import Misuse
from oncekey.events import Attempted

CALL = Delivery("POST", "api.test:443", "abc")
SICK = WholeResponse(503, {}, b"")
FINE = WholeResponse(201, {}, b"")


class Wire:
    """Answers in turn, each after so many seconds; what takes too long is a broken one."""

    def __init__(self, turns: list[tuple[float, WholeResponse | NoResponse]]) -> None:
        self.clock = FakeClock()
        self.turns = turns
        self.sent: list[float] = []
        self.events: list[Attempted] = []

    def ask(self, question: SendAgain | Pause) -> Any:
        if isinstance(question, Pause):
            return self.clock.advance(question.seconds)
        self.sent.append(self.clock.monotonic())
        seconds, response = self.turns.pop(0) if self.turns else (0.0, FINE)
        self.clock.advance(min(seconds, question.left_s))
        return NoResponse(TimeoutError()) if seconds > question.left_s else response

    def deliver(
        self, retries: Retries, chance: float = 0.5, call: Delivery = CALL
    ) -> DeliveryResult:
        rules = PROFILES["oncekey"], retries, RetryBudget(), self.clock
        attempts = RetryLoop(*rules, lambda: chance, self.events.append)
        sent_at, deadline = attempts.begin()
        first = FirstAttempt(sent_at, deadline, self.ask(SendAgain(deadline - sent_at)))
        return run(attempts.continue_delivery(call, first), self.ask)


turns = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.5, 3.0, 40.0, 1e6]),
        st.one_of(
            st.just(NoResponse(ConnectionError())),
            st.builds(
                WholeResponse,
                st.sampled_from([200, 400, 409, 425, 429, 503]),
                st.dictionaries(
                    st.just("retry-after"), st.sampled_from(["0", "2", "20", "100", "x"])
                ),
                st.just(b""),
            ),
        ),
    ),
    max_size=12,
)


@given(turns=turns, chance=st.floats(0, 1, exclude_max=True), budget_s=st.floats(0.1, 200))
def test_neither_the_time_nor_the_number_of_attempts_is_ever_exceeded(
    turns: list[tuple[float, WholeResponse | NoResponse]], chance: float, budget_s: float
) -> None:
    wire = Wire(list(turns))
    started = wire.clock.monotonic()

    ended = wire.deliver(Retries(attempts_max=7, budget_s=budget_s), chance)

    assert wire.clock.monotonic() - started <= budget_s + 1e-6
    assert ended.attempts == len(wire.sent) == len(wire.events) <= 7
    assert [event.attempt for event in wire.events] == list(range(1, ended.attempts + 1))
    assert [event.retry_in_s is None for event in wire.events] == [False] * (ended.attempts - 1) + [
        True
    ]


def test_pauses_double_up_to_a_bound() -> None:
    wire = Wire([(0.0, SICK)] * 7)

    wire.deliver(Retries(backoff_s=1.0, backoff_s_max=8.0, budget_s=120.0))

    assert [event.retry_in_s for event in wire.events] == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0, 4.0, None]


def test_what_the_server_asks_for_is_added_to_chance_so_that_a_crowd_does_not_return_as_one() -> (
    None
):
    wire = Wire([(0.0, WholeResponse(429, {"retry-after": "3"}, b""))])

    wire.deliver(Retries(backoff_s=1.0), chance=0.25)

    assert wire.events[0].retry_in_s == 3.25


def test_a_server_that_asks_for_more_time_than_is_left_is_not_asked_again() -> None:
    wire = Wire([(0.0, WholeResponse(503, {"retry-after": "91"}, b""))])

    ended = wire.deliver(Retries(budget_s=90.0))

    assert (ended.attempts, ended.response.status) == (1, 503)  # type: ignore[union-attr]
    assert ended.gave_up
    assert "asks to wait 91 s" in ended.gave_up


def test_what_must_not_be_sent_twice_is_not() -> None:
    wire = Wire([(0.0, NoResponse(ConnectionError()))])

    ended = wire.deliver(
        Retries(), call=Delivery("POST", "h", "k", no_retry="its body is a stream")
    )

    assert (ended.attempts, ended.gave_up) == (1, "its body is a stream")


@pytest.mark.parametrize(("earned", "made"), [(1.0, [2, 2]), (0.0, [2, 1])])
def test_each_request_earns_a_part_of_a_retry(earned: float, made: list[int]) -> None:
    wire = Wire([(0.0, SICK), (0.0, FINE), (0.0, SICK)])
    budget = RetryBudget(tokens_max=1.0, tokens_per_request=earned, tokens_per_s=0.0)
    rules = PROFILES["oncekey"], Retries(), budget, wire.clock
    attempts = RetryLoop(*rules, lambda: 0.5, wire.events.append)

    def deliver() -> int:
        sent_at, deadline = attempts.begin()
        first = FirstAttempt(sent_at, deadline, wire.ask(SendAgain(deadline - sent_at)))
        return run(attempts.continue_delivery(CALL, first), wire.ask).attempts

    assert [deliver(), deliver()] == made


def test_one_whose_computer_slept_sends_no_key_that_is_forgotten() -> None:
    """The clock that measures attempts may stand still meanwhile; the other tells."""
    wire = Wire([(1.0, SICK)])

    ask = wire.ask

    def slept(question: SendAgain | Pause) -> Any:
        if isinstance(question, Pause):
            wire.clock.step_wall(86_400)
        return ask(question)

    wire.ask = slept  # type: ignore[method-assign]
    call = dataclasses.replace(CALL, until=wire.clock.wall() + 3600)
    ended = wire.deliver(Retries(), call=call)
    assert (ended.attempts, len(wire.sent)) == (1, 1)
    assert "forgotten its key by now" in (ended.gave_up or "")


def test_one_who_wakes_up_late_sends_nothing() -> None:
    wire = Wire([(0.0, SICK)])
    ask = wire.ask

    def oversleeping(question: SendAgain | Pause) -> Any:
        return ask(Pause(1000.0) if isinstance(question, Pause) else question)

    wire.ask = oversleeping  # type: ignore[method-assign]
    ended = wire.deliver(Retries())

    assert len(wire.sent) == 1
    assert ended.gave_up == "the time for all attempts is over"


def test_the_default_is_between_five_and_ten_attempts_in_one_to_two_minutes() -> None:
    assert 5 <= Retries().attempts_max <= 10
    assert 60 <= Retries().budget_s <= 120


@pytest.mark.parametrize(
    "wrong",
    [
        *({"attempts_max": 0}, {"budget_s": 0.0}, {"backoff_s": -1.0}, {"budget_s": float("nan")}),
        *({"budget_s": "3"}, {"attempts_max": "3"}, {"attempts_max": 2.5}),
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match=next(iter(wrong))):
        Retries(**wrong)
