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
    """The WAL of a file that a connection has open and has read: from then on it exists, as does
    its index. All methods raise `StoreUnavailable` if other processes would no longer find, by
    their names, the files that the connection has open.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._beside = os.path.realpath(path)  # SQLite names its files after what a link points to
        try:
            self._descriptor = os.open(f"{self._beside}-wal", os.O_RDONLY)
            self.close = weakref.finalize(self, os.close, self._descriptor)
            """Also called when this is collected, as the connection's is."""
            self.close.atexit = False  # other threads may write until the process ends
            self._folders = {os.path.dirname(path), os.path.dirname(self._beside)}
            self._settled: list[tuple[int, ...]] = []
            self._identity = self._find()
        except OSError as error:
            raise self._unavailable(error) from error

    def check(self) -> None:
        """Check in a third of the time: look at the files only if something was created, renamed or
        removed beside them.
        """
        try:
            if self._look_around() != self._settled:
                self.length()
        except OSError as error:
            raise self._unavailable(error) from error

    def length(self) -> int:
        """Return its length in bytes."""
        try:
            around = self._look_around()
            if self._find() != self._identity:
                raise FileNotFoundError
            # Within one tick of the file system's clock another change would not show.
            long_ago_ns = (SystemClock.wall() - TICK_S_MAX) * 1e9
            self._settled = around if all(mtime < long_ago_ns for *_, mtime in around) else []
            # Not `stat`: on a file system with exact times, reading those of the WAL makes the next
            # write change its inode, and syncing that takes half as long again.
            return os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            raise self._unavailable(error) from error

    def _look_around(self) -> list[tuple[int, ...]]:
        """Return what changes with every name in its folders."""
        found = map(os.stat, self._folders)
        return [(folder.st_dev, folder.st_ino, folder.st_mtime_ns) for folder in found]

    def _find(self) -> tuple[Any, ...]:
        """Return which files have the names. A commit syncs neither the database nor the index.

        The descriptor of the WAL says its name, which differs if it was moved or removed.
        """
        try:
            name: Any = os.readlink(f"/proc/self/fd/{self._descriptor}")
        except OSError:  # this system does not say
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
