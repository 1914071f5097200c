"""Values of options: read from their text, or refused by `argparse` with what they must be."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable

_DAY_S = 86_400.0
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": _DAY_S, "w": 7 * _DAY_S}


def text(given: str) -> str:
    """What every store can hold."""
    try:
        given.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("must be text in UTF-8") from None
    return given


def rows(most: int) -> Callable[[str], int]:
    """A number of rows, from 1 to `most`."""

    def read(given: str) -> int:
        if not given.isdecimal() or not 1 <= int(given) <= most:
            raise argparse.ArgumentTypeError(f"must be a number from 1 to {most}")
        return int(given)

    return read


def status(given: str) -> int:
    """The status of an answer."""
    if not given.isdecimal() or not 200 <= int(given) <= 599:
        raise argparse.ArgumentTypeError("must be an HTTP status from 200 to 599")
    return int(given)


def seconds(most: int = 86_400) -> Callable[[str], float]:
    """A time in seconds, more than 0 and at most `most`."""

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
    """A number from `least` to `most`, which may be grouped: 10,000 or 10_000."""

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


def time(given: str) -> float:
    """A time with its unit, in seconds: more than 0, at most ten years."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", given.strip())
    if found is None or not 0 < (time_s := float(found[1]) * _UNITS_S[found[2]]) <= 3_660 * _DAY_S:
        raise argparse.ArgumentTypeError("write it as 90s, 30m, 24h or 7d, up to ten years")
    return time_s
