"""A ticker: one line in the terminal that is redrawn, with messages above it."""

from __future__ import annotations

import shutil
from typing import TextIO

_REDRAW = "\r\x1b[K"


class Ticker:
    """Writes to a terminal; or to a file or pipe, where a line every few seconds is enough."""

    def __init__(self, stream: TextIO, *, every_s: float = 5.0) -> None:
        self._stream = stream
        self._lively = stream.isatty()
        self._every_s = every_s
        self._next = float("-inf")
        self._drawn = False

    def show(self, text: str, now: float) -> None:
        """How it stands now."""
        if self._lively:
            room = shutil.get_terminal_size().columns - 1  # a line that wraps cannot be redrawn
            self._write(f"{_REDRAW}{text[:room]}")
            self._drawn = True
        elif now >= self._next:
            self._next = now + self._every_s
            self._write(f"{text}\n")

    def say(self, text: str) -> None:
        """Something that is to stay."""
        self._write(f"{_REDRAW if self._drawn else ''}{text}\n")
        self._drawn = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
