"""Every schedule of a small world: two workers, one key, at most two faults."""

import pytest

from simulator.bugs import BUGS
from simulator.coverage import Marks
from simulator.exhaustive import CASES, Case, Choices, explore

EVERY_DAY = ("rerun", "block", "another request")


def test_choices_visit_every_path_once() -> None:
    choices, seen = Choices(), list[tuple[int, ...]]()
    while True:
        first = choices.choose(3)
        seen.append((first, choices.choose(2)) if first else (first,))
        if not choices.advance():
            break
    assert seen == [(0,), (1, 0), (1, 1), (2, 0), (2, 1)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
@pytest.mark.parametrize("faults_max", [0, 1])
def test_the_promises_hold_with_one_fault(case: Case, faults_max: int) -> None:
    """P1 to P9."""
    explored = explore(case, faults_max, Marks())

    assert explored.failed is None, explored
    assert explored.exhausted
    assert explored.schedules >= 2 * 100**faults_max


def _two_faults(case: Case) -> None:
    explored = explore(case, 2, Marks())

    assert explored.failed is None, explored
    assert explored.exhausted
    assert explored.schedules > 10_000


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", EVERY_DAY)
def test_the_promises_hold_with_two_faults(name: str) -> None:
    """P1 to P9."""
    _two_faults(next(case for case in CASES if case.name == name))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_the_promises_hold_with_two_faults_in_every_case(case: Case) -> None:
    """P1 to P9."""
    _two_faults(case)


def test_what_was_not_tried_is_not_said_to_be_right() -> None:
    explored = explore(CASES[0], 1, Marks(), schedules_max=5)

    assert (explored.schedules, explored.exhausted, explored.failed) == (5, False, None)
    assert explored.end == "no promise broken, and there are more"
    assert explore(CASES[0], 0, Marks()).end == "all of them"


def test_a_failure_comes_with_its_timeline() -> None:
    explored = explore(CASES[0], 1, Marks(), BUGS["complete-without-fence"].parts())

    assert explored.failed is not None
    assert explored.end == explored.failed.violation
    assert explored.end.startswith("P")
    assert any("completed" in line for line in explored.failed.timeline)
