"""The sweeper: housekeeping beside the requests. It removes what has expired, writes the counters
behind, and does whatever else is to be done again and again.

Bounded in every direction: one thread, one connection, so many rows at a time, a pause after each
batch. It never decides anything about a record that could still answer somebody.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from oncekey._core.verbs import Sweep, Tally
from oncekey._engine.counters import TallyCounters
from oncekey._system.clock import SystemClock
from oncekey.stores.base import Store
from oncekey.stores.connection import Outage, StoreConnection

_log = logging.getLogger("oncekey")

SWEEP_ROWS_MAX = 500
SWEEP_PAUSE_S = 0.1
SWEEP_EVERY_S = 60.0


class Chore(Protocol):
    """Something else to be done beside the requests, again and again."""

    @property
    def every_s(self) -> float: ...

    def work(self, line: StoreConnection, pause: Callable[[], bool]) -> None:
        """Do what there is to do; `pause` lets others have the store, and is True when it is time
        to stop.
        """

    def finish(self, line: StoreConnection) -> None:
        """Write what must not be lost with this process."""


class Sweeper:
    """Sweeps a store every `every_s`, in batches of `rows_max`, for as long as it runs; and does
    chores.
    """

    def __init__(
        self,
        store: Store,
        tallies: TallyCounters | None = None,
        *,
        chores: Sequence[Chore] = (),
        every_s: float = SWEEP_EVERY_S,
        rows_max: int = SWEEP_ROWS_MAX,
    ) -> None:
        self._store = store
        self._tallies = tallies or TallyCounters()
        self._every_s = every_s
        self._rows_max = rows_max
        self._chores = chores
        self._outages: dict[str, Outage] = {}
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
        """Write what is counted and noted, then stop."""
        self._stopping.set()
        thread, self._thread = self._thread, None
        if thread is not None and self._pid == os.getpid():
            thread.join()

    def _run(self) -> None:
        line, now = StoreConnection(self._store), SystemClock.monotonic
        works: list[tuple[Outage, float, Callable[[StoreConnection], Any]]] = [
            (self._outage("sweeping"), self._every_s, self.round),
            *(
                (self._outage(_name(chore)), chore.every_s, partial(self.do, chore))
                for chore in self._chores
            ),
        ]
        due = [now() + every_s for _, every_s, _ in works]
        try:
            while not self._stopping.wait(max(min(due) - now(), 0.0)):
                for at, (outage, every_s, work) in enumerate(works):
                    if due[at] <= now():
                        work(line)
                        due[at] = now() + outage.pause_s(every_s)
            self._finish(line)
        finally:
            line.close()

    def _finish(self, line: StoreConnection) -> None:
        for finish in (*(chore.finish for chore in self._chores), self._write_tallies):
            try:
                finish(line)
            except Exception as error:
                _log.warning("counters were not written: %s", error)

    def do(self, chore: Chore, line: StoreConnection) -> None:
        """One chore; whatever becomes of it, its next time must come."""
        outage = self._outage(_name(chore))
        try:
            chore.work(line, self._pause)
        except Exception as error:
            outage.record_failure(error)
        else:
            outage.record_success()

    def _pause(self) -> bool:
        return self._stopping.wait(SWEEP_PAUSE_S)

    def round(self, line: StoreConnection) -> int:
        """Counters, then batches until nothing is left. How many records were removed."""
        removed, outage = 0, self._outage("sweeping")
        try:
            self._write_tallies(line)
            while not self._stopping.is_set():
                [count] = line.perform([Sweep(self._rows_max)])
                removed += count
                if count == 0:  # a store may remove fewer than it could, to let others in
                    break
                self._pause()
        except Exception as error:  # whatever it is, the next round must come
            outage.record_failure(error)
        else:
            outage.record_success()
        return removed

    def _write_tallies(self, line: StoreConnection) -> None:
        replays, conflicts = self._tallies.take()
        if replays or conflicts:
            line.perform([Tally(replays, conflicts)])

    def _outage(self, what: str) -> Outage:
        if what not in self._outages:
            fails = "stopped early, and is tried again"
            self._outages[what] = Outage(what, fails=fails, works="goes on", level=logging.WARNING)
        return self._outages[what]


def _name(chore: Chore) -> str:
    return type(chore).__name__.lower()
