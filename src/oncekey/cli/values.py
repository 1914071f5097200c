"""Values of options: read from their text, or refused by `argparse` with what they must be."""

from __future__ import annotations

import argparse
from collections.abc import Callable


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
