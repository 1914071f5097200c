"""Limit a server's memory, including the system's cache of its files, with control groups.

Version 1 or 2, which needs root. Elsewhere nothing is limited, and `limit` says so.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_VERSION_1 = Path("/sys/fs/cgroup/memory")
_VERSION_2 = Path("/sys/fs/cgroup")


class MemoryGroup:
    """The control group of one server and all its processes."""

    def __init__(self, folder: Path, limit: str) -> None:
        self.folder = folder
        self._limit = limit

    def pids(self) -> list[int]:
        """List the processes in the group."""
        return [int(pid) for pid in (self.folder / "cgroup.procs").read_text().split()]

    def limit(self, room_bytes: int) -> bool:
        """Limit the memory from now on; False if that is impossible."""
        try:
            (self.folder / self._limit).write_text(str(room_bytes))
        except OSError:  # no such file, or more is in use than can be freed
            return False
        return True


@contextmanager
def confine_memory(pids: list[int]) -> Iterator[MemoryGroup]:
    """Put processes into a new group, and take them out again."""
    parent, limit = (
        (_VERSION_1, "memory.limit_in_bytes") if _VERSION_1.is_dir() else (_VERSION_2, "memory.max")
    )
    group = MemoryGroup(parent / f"oncekey-bench-{os.getpid()}", limit)
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
