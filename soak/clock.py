"""The wall clock of one worker, which faults set while it runs."""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

from oncekey._system.clock import SystemClock

_AHEAD = struct.Struct("d")
_true = time.time


class SkewedClock:
    """A wall clock whose offset from the true one is stored in a file."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(_AHEAD.pack(0.0))
        with open(path, "r+b") as file:
            self._offset = mmap.mmap(file.fileno(), _AHEAD.size)

    def set_offset(self, ahead_s: float) -> None:
        _AHEAD.pack_into(self._offset, 0, ahead_s)

    def read(self) -> float:
        [ahead_s] = _AHEAD.unpack_from(self._offset)
        return float(_true() + ahead_s)

    def install(self) -> None:
        """Make this process use the clock from now on."""
        time.time = self.read
        SystemClock.wall = staticmethod(self.read)
