"""Housekeeping beside the requests: the sweeper removes what has expired and writes the counters
behind.

Bounded in every direction: one thread, one connection, so many rows at a time, a pause after each
batch. It never decides anything about a record that could still answer somebody.
"""

from __future__ import annotations

import logging
import os
import threading

from oncekey.core.verbs import Sweep, Tally
from oncekey.stores.base import Store
from oncekey.stores.line import Line
from oncekey.tallies import Tallies

_log = logging.getLogger("oncekey")

SWEEP_ROWS_MAX = 500
SWEEP_PAUSE_S = 0.1
SWEEP_EVERY_S = 60.0


class Sweeper:
    """Sweeps a store every `every_s`, in batches of `rows_max`, for as long as it runs."""

    def __init__(
        self,
        store: Store,
        tallies: Tallies | None = None,
        *,
        every_s: float = SWEEP_EVERY_S,
        rows_max: int = SWEEP_ROWS_MAX,
    ) -> None:
        self._store = store
        self._tallies = tallies or Tallies()
        self._every_s = every_s
        self._rows_max = rows_max
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def start(self) -> None:
        """Begin, if it does not run already in this process."""
        if self._thread is not None and self._pid == os.getpid():
            return
        self._pid = os.getpid()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oncekey-sweeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write what is counted, then stop."""
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None and self._pid == os.getpid():
            thread.join()

    def _run(self) -> None:
        line = Line(self._store)
        try:
            while not self._stopping.wait(self._every_s):
                self.round(line)
            self._write_tallies(line)
        except Exception as error:
            _log.warning("counters were not written: %s", error)
        finally:
            line.close()

    def round(self, line: Line) -> int:
        """Counters, then batches until nothing is left. How many records were removed."""
        removed = 0
        try:
            self._write_tallies(line)
            while not self._stopping.is_set():
                [count] = line.perform([Sweep(self._rows_max)])
                removed += count
                if count == 0:  # a store may remove fewer than it could, to let others in
                    break
                self._stopping.wait(SWEEP_PAUSE_S)
        except Exception as error:  # whatever it is, the next round must come
            _log.warning("sweeping stopped early, it goes on in %g s: %s", self._every_s, error)
        return removed

    def _write_tallies(self, line: Line) -> None:
        replays, conflicts = self._tallies.take()
        if replays or conflicts:
            line.perform([Tally(replays, conflicts)])
