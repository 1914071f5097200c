"""The write-ahead log (WAL) beside a SQLite file: how long it is, and whether it is still there."""

from __future__ import annotations

import os
import weakref
from typing import Any

from oncekey.errors import StoreUnavailable


class Wal:
    """That of a file which a connection has open."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._beside = os.path.realpath(path)  # SQLite names its files after what a link points to
        self._descriptor: int | None = None
        self._identity: Any = None
        self._own_identity: Any = None

    def length(self) -> int:
        """In bytes; 0 while there is none. Raises `StoreUnavailable` where others would not find
        by their names the files that the connection has open.
        """
        try:
            self._insist_on_identity()
            return self._length()
        except FileNotFoundError:
            raise self._gone() from None
        except OSError as error:
            raise StoreUnavailable(f"{self._path}: {error}", sent=False) from error

    def _length(self) -> int:
        # Not by `stat`: where a file system keeps exact times, whoever looks at those of the WAL
        # makes the next write change its inode, and to sync that takes half as long again.
        if self._descriptor is None:
            try:
                self._descriptor = os.open(f"{self._beside}-wal", os.O_RDONLY)
            except FileNotFoundError:
                return 0
            self._end = weakref.finalize(self, os.close, self._descriptor)
            self._end.atexit = False  # until the process is gone, somebody may still write
            self._own_identity = self._find_own()
        elif self._own_identity != self._find_own():
            raise self._gone()
        return os.lseek(self._descriptor, 0, os.SEEK_END)

    def _insist_on_identity(self) -> None:
        """By the file itself and the index of the WAL: neither is synced with a commit."""
        found = _inode(self._path), _inode_if_any(f"{self._beside}-shm")
        if self._identity is None or self._identity == (found[0], None):
            self._identity = found  # there is no index before the first write to a new file
        elif self._identity != found:
            raise self._gone()

    def _find_own(self) -> Any:
        """What the WAL is called now: another name, if it was removed or moved. Systems that do not
        tell are asked what has its name.
        """
        try:
            return os.readlink(f"/proc/self/fd/{self._descriptor}")
        except OSError:
            return _inode(f"{self._beside}-wal")

    def _gone(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self._path} was removed or replaced while it was in use", sent=False
        )

    def close(self) -> None:
        """Also happens to one that is forgotten, as it does to the connection."""
        if self._descriptor is not None:
            self._end()
            self._descriptor = None


def _inode(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _inode_if_any(path: str) -> tuple[int, int] | None:
    try:
        return _inode(path)
    except FileNotFoundError:
        return None
