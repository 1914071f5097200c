"""The write-ahead log (WAL) beside a SQLite file: how long it is, and whether it is still there."""

from __future__ import annotations

import os
import weakref

from oncekey.errors import StoreUnavailable


class Wal:
    """That of a file which a connection has open."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._identity: tuple[int, int] | None = None

    def length(self) -> int:
        """In bytes; 0 while there is none. Raises `StoreUnavailable` where others would not find
        by their names the files that the connection has open.
        """
        self._insist_on_identity()
        # Not by `stat`: where a file system keeps exact times, whoever looks at those of the WAL
        # makes the next write change its inode, and to sync that takes half as long again.
        if self._descriptor is None:
            try:
                self._descriptor = os.open(f"{self._path}-wal", os.O_RDONLY)
            except FileNotFoundError:
                return 0
            self._end = weakref.finalize(self, os.close, self._descriptor)
        return os.lseek(self._descriptor, 0, os.SEEK_END)

    def _insist_on_identity(self) -> None:
        """By the index of the WAL, which comes and goes with it and is never synced."""
        try:
            index = os.stat(f"{self._path}-shm")
        except FileNotFoundError:
            index = None
        found = index and (index.st_dev, index.st_ino)
        if self._identity is None:
            self._identity = found  # none before the first write to a new file
        elif self._identity != found:
            raise StoreUnavailable(
                f"{self._path} was removed or replaced while it was in use", sent=False
            )

    def close(self) -> None:
        """Also happens to one that is forgotten, as it does to the connection."""
        if self._descriptor is not None:
            self._end()
            self._descriptor = None
