"""The spool: where bodies lie that are too long for memory.

One file for the whole process, so that a thousand bodies take one file descriptor. It has no name,
only this process can read it, and it is gone when the process is, however that ends. Bodies lie in
blocks; a block that is free is used again.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from dataclasses import dataclass

BLOCK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Spooled:
    """Where something lies."""

    file: int
    blocks: list[int]
    """Of which the last one may be shorter."""
    size: int


class Spool:
    """Blocks of one file, which is made when the first one is written."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """A forked child shares the file, but not who knows which blocks of it are free."""
        self._mutex = threading.Lock()
        self._file: int | None = None
        self._free: list[int] = []
        self._blocks = 0
        """How many the file has, free ones too."""

    @property
    def bytes_used(self) -> int:
        with self._mutex:
            return (self._blocks - len(self._free)) * BLOCK_BYTES

    def write(self, content: memoryview) -> Spooled:
        """Keep this. Raises `OSError` where there is no room."""
        spooled = self._take(len(content))
        rest = content
        try:
            for block in spooled.blocks:
                _write(spooled.file, rest[:BLOCK_BYTES], block * BLOCK_BYTES)
                rest = rest[BLOCK_BYTES:]
        except BaseException:
            self.free(spooled)
            raise
        return spooled

    def _take(self, size: int) -> Spooled:
        count = -(-size // BLOCK_BYTES)
        with self._mutex:
            if self._file is None:
                with tempfile.TemporaryFile(prefix="oncekey-", buffering=0) as file:
                    self._file = os.dup(file.fileno())
            missing = range(self._blocks, self._blocks + count - len(self._free))
            self._free.extend(missing)
            self._blocks += len(missing)
            return Spooled(self._file, [self._free.pop() for _ in range(count)], size)

    def free(self, spooled: Spooled) -> None:
        """It is not needed any more. Where nothing is, the file is empty again."""
        with self._mutex:
            if spooled.file != self._file:  # the parent's
                return
            self._free.extend(spooled.blocks)
            if len(self._free) == self._blocks:
                self._free, self._blocks = [], 0
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, 0)


def read(spooled: Spooled, at: int, size: int) -> bytes:
    """So many bytes from `at` on, at most up to the end of a block."""
    block, start = divmod(at, BLOCK_BYTES)
    wanted = max(0, min(size, BLOCK_BYTES - start, spooled.size - at))
    return os.pread(spooled.file, wanted, spooled.blocks[block] * BLOCK_BYTES + start)


def _write(file: int, content: memoryview, at: int) -> None:
    while content:
        written = os.pwrite(file, content, at)
        content, at = content[written:], at + written


spool = Spool()
