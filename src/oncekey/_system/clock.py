"""The only place that reads time.

Three clocks, for three questions. *Monotonic* measures how long something took in this process.
*Boot* measures leases between processes of one machine. Neither jumps when the wall clock is set,
and both go on while the machine sleeps, as the leases in a store do: a process that wakes up must
know that its lease is over. *Wall* gives dates to people and measures retention, which must survive
a reboot.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")

# Without a clock that counts sleep, the monotonic clock is the nearest: a lease then lasts longer
# over a suspend, which delays a take-over but never allows one too early.
_boot_clock: Callable[[], float] = time.monotonic
if hasattr(time, "CLOCK_BOOTTIME"):
    _boot_clock = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)


# In a time namespace, which a container may have, this clock has an offset. The file has the offset
# for children, which is that of this process too since it was forked or executed.
_OFFSETS_FILE = Path("/proc/self/timens_offsets")


@functools.cache
def _boot_offset_s() -> float:
    """Return how far the boot clock of this process is ahead of the machine's."""
    try:
        lines = _OFFSETS_FILE.read_text().splitlines()
    except OSError:  # a system without time namespaces
        return 0.0
    offsets = {name: (int(seconds), int(nanos)) for name, seconds, nanos in map(str.split, lines)}
    seconds, nanos = offsets.get("boottime", (0, 0))
    return seconds + nanos / 1e9


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_boot_offset_s.cache_clear)


class Clock(Protocol):
    """The clock that the engine and the embedded stores need."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, including sleep; never goes back in one process."""

    def boot(self) -> float:
        """Seconds since the machine booted, including sleep; the same for all its processes, in
        whatever container.
        """

    def boot_id(self) -> str:
        """Differs from boot to boot: readings of `boot()` compare only under the same id."""

    def wall(self) -> float:
        """Seconds since 1970, as the host believes."""


class SystemClock:
    """The real clocks of this machine."""

    monotonic = staticmethod(_boot_clock)
    wall = staticmethod(time.time)

    @staticmethod
    def boot() -> float:
        return _boot_clock() - _boot_offset_s()

    @staticmethod
    @functools.cache
    def boot_id() -> str:
        try:
            return _BOOT_ID_FILE.read_text().strip()
        except OSError:
            # There is no id. One that never changes is safe: after a reboot the old deadlines lie
            # far ahead of the new clock, and a deadline further away than one lease counts as one.
            return "unknown"


class FakeClock:
    """A clock for tests: it moves only when you move it."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._now = start
        self._wall_offset = 0.0
        self._boot_id = "boot-1"

    def monotonic(self) -> float:
        return self._now

    def boot(self) -> float:
        return self._now

    def boot_id(self) -> str:
        return self._boot_id

    def wall(self) -> float:
        return self._now + self._wall_offset

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock ahead (or back): nothing that measures leases may notice."""
        self._wall_offset += seconds

    def reboot(self) -> None:
        """The machine restarts: boot readings start again under another id."""
        self._boot_id += "+"
        self._wall_offset += self._now
        self._now = 0.0
