"""Parse the values of options; `argparse` prints what a wrong one must be."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from datetime import datetime

_DAY_S = 86_400.0
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": _DAY_S, "w": 7 * _DAY_S}


def text(given: str) -> str:
    """Accept text that every store can keep."""
    try:
        given.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("must be text in UTF-8") from None
    return given


def rows(most: int) -> Callable[[str], int]:
    """Accept a number of rows, from 1 to `most`."""

    def read(given: str) -> int:
        if not given.isdecimal() or not 1 <= int(given) <= most:
            raise argparse.ArgumentTypeError(f"must be a number from 1 to {most}")
        return int(given)

    return read


def status(given: str) -> int:
    """Accept the status of a response."""
    if not given.isdecimal() or not 200 <= int(given) <= 599:
        raise argparse.ArgumentTypeError("must be an HTTP status from 200 to 599")
    return int(given)


def seconds(most: int = 86_400) -> Callable[[str], float]:
    """Accept a number of seconds, more than 0 and at most `most`."""

    def read(given: str) -> float:
        try:
            time_s = float(given)
        except ValueError:
            time_s = 0.0
        if not 0 < time_s <= most:
            raise argparse.ArgumentTypeError(
                f"must be a number of seconds, more than 0, at most {most}"
            )
        return time_s

    return read


def number(most: float, least: float = 1e-9) -> Callable[[str], float]:
    """Accept a number from `least` to `most`; digits may be grouped: 10,000 or 10_000."""

    def read(given: str) -> float:
        try:
            found = float(given.replace(",", "").replace("_", ""))
        except ValueError:
            found = math.nan
        if not least <= found <= most:
            lowest = "not below 0" if least == 0 else "more than 0"
            raise argparse.ArgumentTypeError(f"must be a number, {lowest}, at most {most:,.0f}")
        return found

    return read


def duration(given: str) -> float:
    """Read a time with its unit, in seconds: more than 0, at most ten years."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", given.strip())
    if found is None or not 0 < (time_s := float(found[1]) * _UNITS_S[found[2]]) <= 3_660 * _DAY_S:
        raise argparse.ArgumentTypeError("write it as 90s, 30m, 24h or 7d, up to ten years")
    return time_s


def moment(given: str) -> float:
    """Read a date and time, as in logs and in the names of backups; seconds since 1970."""
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        raise argparse.ArgumentTypeError("must be a time such as 2026-01-31T12:00:00Z") from None
    if not 1970 <= at.year < 9999:
        raise argparse.ArgumentTypeError("must be a time that can be told, after 1969")
    if at.tzinfo is None:
        raise argparse.ArgumentTypeError("must name its zone, as in 2026-01-31T12:00:00Z")
    return at.timestamp()
