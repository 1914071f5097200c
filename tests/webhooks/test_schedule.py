"""The schedule of retries."""

from __future__ import annotations

import doctest
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey.errors import Misuse
from oncekey.webhooks import RETRIES_S, Schedule
from oncekey.webhooks import _schedule as schedule
from tests.docs.pages import TEXTS, rows


def test_the_examples_in_the_documentation() -> None:
    assert doctest.testmod(schedule).failed == 0


def test_waits_grow_and_end_after_three_days() -> None:
    assert all(earlier < later for earlier, later in pairwise(RETRIES_S))
    assert 3 * 86_400 < sum(RETRIES_S) < 3.5 * 86_400
    assert Schedule().attempts_max == 12


def test_the_documented_schedule_is_the_real_one() -> None:
    units = {"s": 1.0, "min": 60.0, "h": 3_600.0}
    [shown] = [row[1:] for row in rows(TEXTS["docs/webhooks.md"]) if row[0] == "wait"]
    waits = [cell.split() for cell in shown]
    assert tuple(int(count) * units[unit] for count, unit in waits) == RETRIES_S


@given(st.integers(1, 11), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_lengthened_by_chance_and_never_shortened(attempts: int, chance: float) -> None:
    wait_s = Schedule().delay_s(attempts, chance)
    assert wait_s is not None
    assert RETRIES_S[attempts - 1] <= wait_s <= RETRIES_S[attempts - 1] * 1.2


def test_the_receiver_may_ask_for_more_time_not_for_less() -> None:
    plan = Schedule(retries_s=(10.0, 20.0))
    assert plan.delay_s(1, 0.0, asked_s=60.0) == 60.0
    assert plan.delay_s(1, 0.0, asked_s=1.0) == 10.0
    assert plan.delay_s(3, 0.0, asked_s=60.0) is None


@pytest.mark.parametrize("wrong", [{"retries_s": (0.0,)}, {"spread": -0.1}, {"spread": "1"}])
def test_schedules_that_are_none(wrong: dict[str, object]) -> None:
    with pytest.raises(Misuse):
        Schedule(**wrong)  # type: ignore[arg-type]
