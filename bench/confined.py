"""Confined: a server whose memory, with what the system caches of its files, the kernel limits.

By control groups, version 1 or 2, which needs root. Where they cannot be had nothing is limited,
and whoever asked is told.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_VERSION_1 = Path("/sys/fs/cgroup/memory")
_VERSION_2 = Path("/sys/fs/cgroup")


class Confined:
    """The group of one server and of all that it starts."""

    def __init__(self, folder: Path, limit: str) -> None:
        self.folder = folder
        self._limit = limit

    def pids(self) -> list[int]:
        """Who is in it."""
        return [int(pid) for pid in (self.folder / "cgroup.procs").read_text().split()]

    def limit(self, room_bytes: int) -> bool:
        """From now on no more than this; False if that is not to be had."""
        try:
            (self.folder / self._limit).write_text(str(room_bytes))
        except OSError:  # no such file, or more is in use than can be given back
            return False
        return True


@contextmanager
def confined(pids: list[int]) -> Iterator[Confined]:
    """Put processes into a group of their own, and take them out again."""
    parent, limit = (
        (_VERSION_1, "memory.limit_in_bytes") if _VERSION_1.is_dir() else (_VERSION_2, "memory.max")
    )
    group = Confined(parent / f"oncekey-bench-{os.getpid()}", limit)
    with contextlib.suppress(OSError):
        group.folder.mkdir()
        _move(pids, group.folder)
    try:
        yield group
    finally:
        with contextlib.suppress(OSError):
            _move([int(pid) for pid in (group.folder / "cgroup.procs").read_text().split()], parent)
            group.folder.rmdir()


def _move(pids: list[int], to: Path) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            (to / "cgroup.procs").write_text(str(pid))
