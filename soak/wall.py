"""The wall clock of one worker, which somebody sets while it runs."""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

from oncekey._system.clock import SystemClock

_AHEAD = struct.Struct("d")
_true = time.time


class Wall:
    """A file tells how far it is ahead of the true one, or behind."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(_AHEAD.pack(0.0))
        with open(path, "r+b") as file:
            self._kept = mmap.mmap(file.fileno(), _AHEAD.size)

    def put(self, ahead_s: float) -> None:
        _AHEAD.pack_into(self._kept, 0, ahead_s)

    def read(self) -> float:
        [ahead_s] = _AHEAD.unpack_from(self._kept)
        return float(_true() + ahead_s)

    def follow(self) -> None:
        """From here on everybody in this process goes by it."""
        time.time = self.read
        SystemClock.wall = staticmethod(self.read)
