"""Background tasks: what a server does regularly beside its requests, each in its own thread."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

log = logging.getLogger("payments")

PAUSE_S_MAX = 5.0
_DOUBLINGS_MAX = 10


class PeriodicTask(ABC):
    """Runs every `every_s` until stopped. A failure is logged and retried later."""

    every_s: float

    def __init__(self) -> None:
        self.stopping = threading.Event()
        """Set by `stop()`: a running task starts nothing new."""
        self._thread: threading.Thread | None = None

    @abstractmethod
    def run_once(self) -> object:
        """Do the work once."""

    def start(self) -> None:
        """Run in a thread."""
        name = f"payments-{type(self).__name__.lower()}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Start nothing new, and wait for what is running."""
        self.stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        name = type(self).__name__
        outage = Outage(f"{name} fails and will retry", f"{name} works again")
        while not self.stopping.wait(outage.pause_s(self.every_s)):
            try:
                self.run_once()
            except Exception as error:
                outage.record_failure(error)
            else:
                outage.record_success()


class Outage:
    """Logs that a worker's rounds fail, once, and that they work again, once; backs off meanwhile.

    For one thread.
    """

    def __init__(self, fails: str, works: str) -> None:
        """`fails` and `works` are the log lines."""
        self._fails = fails
        self._works = works
        self._failures = 0
        """In a row."""
        self._logged: set[type[Exception]] = set()

    def record_failure(self, error: Exception, *, is_known: bool = False) -> None:
        """Log the failure of a round, without a traceback if the error `is_known`."""
        self._failures = min(self._failures + 1, _DOUBLINGS_MAX)
        if type(error) not in self._logged:
            self._logged.add(type(error))
            log.warning("%s: %s", self._fails, error, exc_info=None if is_known else error)

    def record_success(self) -> None:
        if self._failures:
            self._failures = 0
            self._logged.clear()
            log.warning("%s", self._works)

    def pause_s(self, usual_s: float) -> float:
        """Return how long to wait before the next round."""
        return max(usual_s, min(usual_s * 2.0**self._failures, PAUSE_S_MAX))
