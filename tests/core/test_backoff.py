"""Delays: spread over all of their bound, and never beyond it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._core.backoff import RETRY_AFTER_S_MAX, full_jitter, retry_after

CHANCE = st.floats(0, 1, exclude_max=True)
NOW = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT


@pytest.mark.parametrize(
    ("attempt", "bound_s"),
    [(0, 0.5), (1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (5, 5.0), (10_000, 5.0)],
)
def test_the_bound_doubles_until_the_cap(attempt: int, bound_s: float) -> None:
    assert full_jitter(attempt, 0.5, 5.0, 0.0) == 0.0
    assert full_jitter(attempt, 0.5, 5.0, 0.5) == bound_s / 2
    assert full_jitter(attempt, 0.5, 5.0, 0.999) == pytest.approx(bound_s * 0.999)


@given(st.integers(0, 10**9), st.floats(0.001, 1e6), st.floats(0, 1e6), CHANCE)
def test_a_delay_is_bounded_whatever_the_attempt(
    attempt: int, base_s: float, cap_s: float, chance: float
) -> None:
    assert 0 <= full_jitter(attempt, base_s, cap_s, chance) <= cap_s


@pytest.mark.parametrize(
    ("value", "wait_s"),
    [
        ("0", 0.0),
        ("7", 7.0),
        (b" 120\t", 120.0),
        ("1.5", 1.5),
        ("99999999", RETRY_AFTER_S_MAX),
        ("9" * 5000, RETRY_AFTER_S_MAX),
        ("Sun, 06 Nov 1994 08:50:37 GMT", 60.0),
        (b"Sun, 06 Nov 1994 08:50:38 GMT", 61.0),
        ("Sunday, 06-Nov-94 08:50:37 GMT", 60.0),
        ("Sun Nov  6 08:50:37 1994", 60.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0.0),  # past
        ("Fri, 31 Dec 9999 23:59:59 GMT", RETRY_AFTER_S_MAX),
    ],
)
def test_retry_after_takes_seconds_and_dates(value: str | bytes, wait_s: float) -> None:
    assert retry_after(value, NOW) == wait_s


@pytest.mark.parametrize(
    "value",
    [
        "",
        "-1",
        "+1",
        "1e3",
        "inf",
        "nan",
        "1 2",
        "soon",
        "٣",
        "1.",
        ".5",
        b"\xff",
        "Sun, 31 Feb 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 24:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37 +0100",
        "1994-11-06T08:49:37Z",
    ],
)
def test_retry_after_does_not_guess(value: str | bytes) -> None:
    assert retry_after(value, NOW) is None


def test_the_caller_may_bound_the_wait_further() -> None:
    assert retry_after("90", NOW, cap_s=60.0) == 60.0


@given(st.text() | st.binary(), st.floats(0, 4e9))
def test_retry_after_is_bounded_whatever_a_server_sends(
    value: str | bytes, now_wall: float
) -> None:
    wait_s = retry_after(value, now_wall)
    assert wait_s is None or 0 <= wait_s <= RETRY_AFTER_S_MAX
