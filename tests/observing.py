"""Observed leases under test: what other processes have seen, and how long ago they believe it.

A store without a clock counts a lease from when it first saw the record. So a test must know that
a process has looked before it lets time pass, and time passes there when the test says so: through
two files in a folder that the processes inherit by name.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from oncekey._system.clock import Clock, SystemClock
from oncekey.stores.dynamodb import leases

VARIABLE = "ONCEKEY_TEST_OBSERVED"
_SEEN_S_MAX = 30.0


class _Ahead(SystemClock):
    """As far ahead of the real clock as the file says."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def monotonic(self) -> float:
        return SystemClock.monotonic() + float(self._file.read_text())


class Watched(leases.LeaseObserver):
    """Tells the test what it sees."""

    def __init__(self, clock: Clock) -> None:
        folder = Path(os.environ[VARIABLE])
        super().__init__(_Ahead(folder / "ahead"))
        self._told = os.open(folder / "seen", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def observe(self, record_id: bytes, *seen: Any, lapsed: bool = False) -> float:
        left_s = super().observe(record_id, *seen, lapsed=lapsed)
        os.write(self._told, f"{os.getpid()} {record_id.hex()} \n".encode())
        return left_s


def arrange() -> None:
    """In a process under test: let its stores observe as the test wants it."""
    if VARIABLE in os.environ:
        leases.LeaseObserver = Watched  # type: ignore[misc, assignment]


class Observing:
    """The test's side."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ahead = folder / "ahead"
        self._ahead.write_text("0")
        (folder / "seen").touch()

    def elapse(self, seconds: float) -> None:
        ahead = float(self._ahead.read_text()) + seconds
        fresh = self._folder / "ahead.new"
        fresh.write_text(str(ahead))
        fresh.replace(self._ahead)  # nobody reads half a number

    def wait_seen(self, pid: int, record_id: bytes) -> None:
        """Until that process has looked at the record."""
        deadline = time.monotonic() + _SEEN_S_MAX
        wanted = f"{pid} {record_id.hex()} "
        while wanted not in (self._folder / "seen").read_text():
            assert time.monotonic() < deadline, f"{pid} never looked at {record_id.hex()}"
            time.sleep(0.01)
