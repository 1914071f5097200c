"""Print tables, durations, JSON, and progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from oncekey._core.printable import printable
from oncekey._system.clock import Clock, SystemClock

CELL_CHARS_MAX = 40
PROGRESS_EVERY_S = 5.0

_UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Align rows in columns; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    columns = list(zip(header, *cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    to_right = [
        bool(rows) and all(isinstance(row[n], int) for row in rows) for n in range(len(header))
    ]
    lines = []
    for row in (header, *cells):
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, to_right, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def one_line(text: str, chars_max: int = 1000) -> str:
    """Put an error message on one line."""
    return printable(" ".join(text.split()), chars_max)


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Align names and values, one pair per line."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in pairs)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else printable(str(value), CELL_CHARS_MAX)


def duration(seconds: float) -> str:
    """Write a length of time in at most two units, without its sign.

    >>> [duration(s) for s in (0.25, 12.04, 75, 3600, 200_000)]
    ['0.25 s', '12 s', '1 min 15 s', '1 h', '2 d 7 h']
    """
    seconds = abs(seconds)
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    for size, unit, smaller, smaller_unit in _UNITS:
        if whole >= size:
            count, rest = whole // size, whole % size // smaller
            return f"{count:,} {unit} {rest} {smaller_unit}" if rest else f"{count:,} {unit}"
    return f"{whole} s"


def print_json(value: Any) -> None:
    """Print one document on one line, so that several make JSON Lines."""
    print(json.dumps(value), flush=True)


class Progress:
    """Shows how far long work is: on a terminal in one line that changes, else now and then."""

    def __init__(self, stream: TextIO | None = None, clock: Clock | None = None) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock or SystemClock()
        self._printed_at = self._clock.monotonic()
        self._line_open = False

    def say(self, text: str) -> None:
        if self._stream.isatty():
            self._stream.write(f"\r\x1b[K{text}")
            self._stream.flush()
            self._line_open = True
        elif self._clock.monotonic() - self._printed_at >= PROGRESS_EVERY_S:
            self._printed_at = self._clock.monotonic()
            print(text, file=self._stream, flush=True)

    def clear(self) -> None:
        """Remove the line from a terminal."""
        if self._line_open:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._line_open = False
