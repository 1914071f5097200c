"""HTTP dates (RFC 9110, section 5.6.7), whatever the locale."""

from __future__ import annotations

import functools
import re
from datetime import UTC, datetime
from email.utils import format_datetime

_WALL_MAX = 253_402_300_799  # the last second of the year 9999: no HTTP date is later

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH = f"(?P<month>{'|'.join(_MONTHS)})"
_TIME = "(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
# The current form, then the two obsolete ones that every recipient must read.
_FORMS = tuple(
    re.compile(form)
    for form in (
        f"[A-Z][a-z]{{2}}, (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT",
        f"[A-Z][a-z]{{5,8}}, (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT",
        f"[A-Z][a-z]{{2}} {_MONTH} (?P<day>[ 0-9][0-9]) {_TIME} (?P<year>[0-9]{{4}})",
    )
)


def http_date(wall: float) -> bytes:
    """Write seconds since 1970 as an IMF-fixdate, rounded down.

    >>> http_date(784111777.9)
    b'Sun, 06 Nov 1994 08:49:37 GMT'
    """
    return _imf_fixdate(int(max(0.0, min(wall, _WALL_MAX))))


@functools.lru_cache(maxsize=64)  # within one second, all responses carry the same few dates
def _imf_fixdate(seconds: int) -> bytes:
    return format_datetime(datetime.fromtimestamp(seconds, UTC), usegmt=True).encode("ascii")


def parse_http_date(text: str) -> float | None:
    """Read any of the three forms as seconds since 1970; None if it is none of them."""
    for form in _FORMS:
        if found := form.fullmatch(text):
            return _seconds(found)
    return None


def _seconds(found: re.Match[str]) -> float | None:
    year = int(found["year"])
    if len(found["year"]) == 2:
        year += 2000 if year < 70 else 1900
    month = _MONTHS.index(found["month"]) + 1
    day, hour, minute, second = (int(found[part]) for part in ("day", "hour", "minute", "second"))
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except ValueError:  # the 31st of February
        return None
