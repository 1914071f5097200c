"""What a killed worker leaves: the percentile that is reported."""

from bench import recovery
from bench.recovery import LEASE_S, TAKE_OVER


def test_the_99th_percentile_is_counted_from_the_end_of_the_lease() -> None:
    times_s = [LEASE_S + 0.001 * n for n in range(101)]
    row = recovery._row("x", lambda: times_s, TAKE_OVER)
    assert row.value is not None
    assert abs(row.value - 0.099) < 1e-9
    assert row.low is not None
    assert abs(row.low) < 1e-9
    assert TAKE_OVER.is_met(row.value)
    late = recovery._row("x", lambda: [LEASE_S + 0.6] * 10, TAKE_OVER)
    assert late.value is not None
    assert not TAKE_OVER.is_met(late.value)
