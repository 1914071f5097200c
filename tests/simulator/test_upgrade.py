"""This release rolled out over an earlier one whose fingerprints follow other rules (E27): no retry
across the upgrade runs twice or is refused for good.
"""

from collections import Counter

import pytest

from oncekey._core.fingerprint import Comparison, compare, compare_earlier
from simulator.coverage import Marks
from simulator.upgrade import CURRENT, EARLIER, STRANGE, fingerprint, reads
from simulator.world import is_upgraded, play

VERSIONS = (EARLIER, CURRENT, STRANGE)


@pytest.mark.parametrize("record", VERSIONS)
@pytest.mark.parametrize("worker", VERSIONS)
def test_e27_who_can_compare_what(worker: int, record: int) -> None:
    stored = fingerprint(record, "/a", b"to=x&amount=1")
    for form, outcome in (
        (b"to=x&amount=1", Comparison.SAME),
        (b"to=x&amount=2", Comparison.DIFFERENT),
    ):
        now = fingerprint(worker, "/a", form)
        expected = outcome if reads(worker, record) else Comparison.UNKNOWN_VERSION
        if record < now.version and now.earlier is not None:
            assert compare_earlier(stored.digest, now.earlier()) is expected
        else:
            assert compare(stored.version, stored.digest, now) is expected


def test_a_seventeenth_of_the_schedules_is_an_upgrade() -> None:
    upgraded = [seed for seed in range(1700) if is_upgraded(seed)]
    assert len(upgraded) == 100
    lines = play(upgraded[0], Marks(), written=True).timeline
    assert "(fingerprint 1)" in lines[0]
    assert any("of the current release" in line for line in lines)


def test_e27_no_retry_across_an_upgrade_runs_twice_or_is_refused_for_good() -> None:
    told: Counter[str] = Counter()
    compared = 0
    for seed in filter(is_upgraded, range(17 * 400)):
        marks = Marks()
        played = play(seed, marks, written=True)
        assert played.violation == "", f"./dev simulate --seed {seed} --timeline"
        told += marks.told
        compared += sum("by earlier rules" in line for line in played.timeline)
    assert compared > 100
    assert told["newer-record"] > 20
    assert told["replayed"] > 200
    assert told["mismatch"] > 50
