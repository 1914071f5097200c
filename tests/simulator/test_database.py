"""Transactions in the simulator: what they go through, and what they leave."""

from collections import Counter

import pytest

from simulator.coverage import ATOMIC, Marks
from simulator.exhaustive import CASES, explore
from simulator.world import is_atomic, play


def test_about_a_sixth_of_the_schedules_is_atomic() -> None:
    atomic = [seed for seed in range(600) if is_atomic(seed)]
    assert len(atomic) == 100
    lines = play(atomic[0], Marks(), written=True).timeline
    assert "atomic" in lines[0]
    assert "atomic" not in play(0, Marks(), written=True).timeline[0]


@pytest.mark.slow
def test_everything_happens_that_can_happen_to_a_transaction() -> None:
    marks = Marks()
    for seed in filter(is_atomic, range(9_000)):
        assert play(seed, marks).violation == ""
    assert [name for name in ATOMIC if not marks.atomic[name]] == []


def test_p9_a_lost_acknowledgement_meets_commits_that_happened_and_that_did_not() -> None:
    """In every order, with one thing that goes wrong; and never is anything told wrongly."""
    seen: Counter[str] = Counter()
    for case in CASES:
        if case.atomic:
            marks = Marks()
            explored = explore(case, 1, marks)
            assert explored.failed is None, explored
            assert explored.exhausted
            seen += marks.atomic
    assert seen["committed unheard"] > 50
    assert seen["its commit is lost"] > 5


def test_a_deploy_to_atomic_mode_is_simulated_while_it_is_under_way() -> None:
    both = 0
    for seed in filter(is_atomic, range(300)):
        [workers, *_] = play(seed, Marks(), written=True).timeline
        both += any("atomic" not in worker for worker in workers.split(", w"))
    assert 5 < both < 45
