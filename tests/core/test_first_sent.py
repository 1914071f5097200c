"""E67: a retry that is older than the server's memory is refused instead of run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._core.first_sent import check_first_sent
from oncekey._core.http_dates import http_date
from oncekey._core.problems import Kind

NAME = "Repeatability-First-Sent"
NOW = 1_800_000_000.0
RETENTION_S = 600.0


@pytest.mark.parametrize("age_s", [0, 1, 299, 300, -1, -300])
def test_e67_within_the_window_a_request_may_run(age_s: int) -> None:
    """Azure Communication Services documents a window of 5 minutes."""
    assert check_first_sent([http_date(NOW - age_s)], NAME, NOW, RETENTION_S) is None


@pytest.mark.parametrize(("age_s", "where"), [(301, "before"), (86_400, "before"), (-301, "after")])
def test_e67_outside_the_window_it_is_refused(age_s: int, where: str) -> None:
    """Azure answers 412 and tells users to look at their clocks; so does this."""
    problem = check_first_sent([http_date(NOW - age_s)], NAME, NOW, RETENTION_S)
    assert problem is not None
    assert problem.kind is Kind.TOO_OLD
    assert not problem.retryable
    assert f"300 seconds {where} this server's time" in problem.detail
    assert "clock" in problem.detail


@given(
    sent=st.integers(0, 10_000), ahead_s=st.integers(-2000, 2000), retried_s=st.integers(0, 3000)
)
def test_e67_no_retry_is_accepted_after_its_record_may_be_gone(
    sent: int, ahead_s: int, retried_s: int
) -> None:
    """The client's clock is wrong by `ahead_s`, on the first try as on the retry. If the first try
    was accepted, its record was there for one retention after it was sent.
    """
    stamp = [http_date(NOW + sent + ahead_s)]
    first = check_first_sent(stamp, NAME, NOW + sent, RETENTION_S)
    retry = check_first_sent(stamp, NAME, NOW + sent + retried_s, RETENTION_S)
    if first is None and retry is None:
        assert retried_s <= RETENTION_S


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [b""],
        [b"yesterday"],
        [b"1800000000"],
        [b"2027-01-15T08:00:00Z"],
        [b"\xff"],
        [http_date(NOW), http_date(NOW)],
    ],
)
def test_a_stamp_that_cannot_be_read_is_malformed(lines: list[bytes]) -> None:
    problem = check_first_sent(lines, NAME, NOW, RETENTION_S)
    assert problem is not None
    assert problem.kind is Kind.MALFORMED_REQUEST
    assert NAME in problem.detail
    assert "yesterday" not in problem.detail


def test_blanks_around_a_stamp_are_not_part_of_it() -> None:
    assert check_first_sent([b" " + http_date(NOW) + b"\t"], NAME, NOW, RETENTION_S) is None
