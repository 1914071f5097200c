"""Planted bugs are found: the proof that the simulator can fail."""

import sys

import pytest

from simulator.bugs import BUGS
from simulator.campaign import hunt
from simulator.coverage import Marks
from simulator.exhaustive import CASES, explore

FAST_SEEDS_MAX = 500
NAMES = [
    pytest.param(name, marks=pytest.mark.slow) if bug.seeds > FAST_SEEDS_MAX else name
    for name, bug in BUGS.items()
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(300)
def test_a_planted_bug_is_found_within_its_budget(name: str) -> None:
    bug = BUGS[name]
    found = hunt(name, bug.seeds)

    assert found is not None, f"not found within {bug.seeds} seeds: {bug.story}"
    seed, violation = found
    sys.stdout.write(f"{name}: {seed + 1} seeds needed, {violation}\n")


def test_every_bug_tells_its_story() -> None:
    assert len(BUGS) >= 30
    for bug in BUGS.values():
        assert bug.story.endswith("."), bug.name


# Those that a small world shows: about one record, two workers and one thing that goes wrong.
SMALL = (
    "check-then-insert",
    "take-over-beats-renewal",
    "take-over-beats-completion",
    "complete-without-fence",
    "heartbeat-without-fence",
    "blind-delete-on-exception",
    "fence-reset-after-delete",
    "fence-stays-on-take-over",
    "zombie-completes-unknown",
    "late-renew-revives",
    "lost-ack-means-failure",
    "answer-before-commit",
    "own-answer-though-refused",
    "headers-are-tidied",
    "in-flight-hides-mismatch",
    "no-lease",
    "own-claim-not-recognised",
    "atomic-answer-before-commit",
    "failure-commits-its-rows",
    "answer-without-its-rows",
    "lost-commit-means-failure",
    "lost-commit-looked-up-too-early",
    "lock-ends-with-its-statement",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_one_fault_in_a_small_world_shows_it(name: str) -> None:
    parts = BUGS[name].parts()
    assert any(explore(case, 1, Marks(), parts).failed for case in CASES)
