"""The write-ahead log (WAL) beside a SQLite file: how long it is, and whether it is still there."""

from __future__ import annotations

import os
import weakref
from typing import Any

from oncekey._system.clock import SystemClock
from oncekey.errors import StoreUnavailable

TICK_S_MAX = 0.1
"""File systems are not trusted to tell times apart that are closer than this."""


class Wal:
    """That of a file which a connection has open and has read: from then on it is there, as is its
    index. Everything here raises `StoreUnavailable` where it sees that others would not find by
    their names the files that the connection has open.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._beside = os.path.realpath(path)  # SQLite names its files after what a link points to
        try:
            self._descriptor = os.open(f"{self._beside}-wal", os.O_RDONLY)
            self.close = weakref.finalize(self, os.close, self._descriptor)
            """Also happens to one that is forgotten, as it does to the connection."""
            self.close.atexit = False  # until the process is gone, somebody may still write
            self._folders = {os.path.dirname(path), os.path.dirname(self._beside)}
            self._settled: list[tuple[int, ...]] = []
            self._identity = self._find()
        except OSError as error:
            raise self._unavailable(error) from error

    def check(self) -> None:
        """A look that takes a third of the time: nothing was made, renamed or removed around it, or
        if so, the files are looked at.
        """
        try:
            if self._look_around() != self._settled:
                self.length()
        except OSError as error:
            raise self._unavailable(error) from error

    def length(self) -> int:
        """In bytes."""
        try:
            around = self._look_around()
            if self._find() != self._identity:
                raise FileNotFoundError
            # Within one tick of the file system's clock more could happen that would not show.
            long_ago_ns = (SystemClock.wall() - TICK_S_MAX) * 1e9
            self._settled = around if all(mtime < long_ago_ns for *_, mtime in around) else []
            # Not by `stat`: where a file system keeps exact times, whoever looks at those of the
            # WAL makes the next write change its inode, and to sync that takes half as long again.
            return os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            raise self._unavailable(error) from error

    def _look_around(self) -> list[tuple[int, ...]]:
        """What changes with every name in its folders."""
        found = map(os.stat, self._folders)
        return [(folder.st_dev, folder.st_ino, folder.st_mtime_ns) for folder in found]

    def _find(self) -> tuple[Any, ...]:
        """What has the names of the files. Neither the first nor the index is synced with a commit.

        The WAL is asked for its own name, which is another one if it was moved or removed.
        """
        try:
            name: Any = os.readlink(f"/proc/self/fd/{self._descriptor}")
        except OSError:  # a system that does not tell
            name = _inode(f"{self._beside}-wal")
        return _inode(self._path), _inode(f"{self._beside}-shm"), name

    def _unavailable(self, error: OSError) -> StoreUnavailable:
        if isinstance(error, FileNotFoundError):
            said = f"{self._path} was removed or replaced while it was in use"
        else:
            said = f"{self._path}: {error}"
        return StoreUnavailable(said, sent=False)


def _inode(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
