"""The load of this machine, its processes and its versions."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from importlib import metadata
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PACKAGES = (
    "starlette",
    "uvicorn",
    "uvloop",
    "asyncpg",
    "redis",
    "hiredis",
    "httpx2",
    "httpx",
    "requests",
)


class ForeignCpu:
    """The share of the machine that other processes used since creation, in per cent of all CPUs.

    Ours are this process and all it started, also those that have ended. Time that a hypervisor
    gave to other machines counts as foreign.
    """

    def __init__(self) -> None:
        self._at, self._busy, self._own = time.monotonic(), _busy_s(), own_s()

    def percent(self) -> float:
        elapsed = (time.monotonic() - self._at) * cpus()
        foreign = (_busy_s() - self._busy) - (own_s() - self._own)
        return max(0.0, 100 * foreign / elapsed) if elapsed else 0.0


def cpus() -> int:
    return os.cpu_count() or 1


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / _TICKS_PER_S


def rss_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def versions() -> str:
    """List the versions of Python and of packages."""
    parts = [f"Python {platform.python_version()}", f"SQLite {sqlite3.sqlite_version}"]
    parts += [f"{name} {metadata.version(name)}" for name in _PACKAGES]
    return ", ".join(parts)


def _busy_s() -> float:
    """Return the busy time of all CPUs since boot, without idle time and disk waits."""
    line = Path("/proc/stat").read_text().partition("\n")[0]
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(int, line.split()[1:])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def own_s() -> float:
    """Return the CPU time of this process and its descendants, also ended ones."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        used[pid] = sum(map(int, fields[11:15]))  # own and waited for, user and system
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(used.get(pid, 0) for pid in family) / _TICKS_PER_S
