"""HTTP dates, written in one form and read in three."""

import email.utils

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._core.http_dates import http_date, parse_http_date

EXAMPLE = 784_111_777.0  # the example of RFC 9110, section 5.6.7


@pytest.mark.parametrize(
    "text",
    [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
    ],
)
def test_the_three_forms_of_one_moment(text: str) -> None:
    assert parse_http_date(text) == EXAMPLE


def test_a_date_is_written_as_imf_fixdate_and_never_too_late() -> None:
    assert http_date(EXAMPLE) == b"Sun, 06 Nov 1994 08:49:37 GMT"
    assert http_date(EXAMPLE + 0.999) == b"Sun, 06 Nov 1994 08:49:37 GMT"


@pytest.mark.parametrize(
    ("wall", "date"),
    [
        (-1e18, b"Thu, 01 Jan 1970 00:00:00 GMT"),
        (1e18, b"Fri, 31 Dec 9999 23:59:59 GMT"),
        (float("inf"), b"Fri, 31 Dec 9999 23:59:59 GMT"),
    ],
)
def test_what_no_date_can_say_is_written_as_the_nearest_one(wall: float, date: bytes) -> None:
    """A retention of a million years must not break an answer."""
    assert http_date(wall) == date


@given(st.integers(0, 253_402_300_799))
def test_what_is_written_is_read_back_and_the_standard_library_agrees(wall: int) -> None:
    text = http_date(wall).decode()
    assert parse_http_date(text) == wall
    assert email.utils.parsedate_to_datetime(text).timestamp() == wall


@pytest.mark.parametrize(("year", "means"), [("69", 2069), ("70", 1970), ("00", 2000)])
def test_two_digit_years_are_of_our_time(year: str, means: int) -> None:
    old = parse_http_date(f"Monday, 01-Jan-{year} 00:00:00 GMT")
    assert old == parse_http_date(f"Mon, 01 Jan {means} 00:00:00 GMT")
