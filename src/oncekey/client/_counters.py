"""Observe deliveries without a metrics library: log lines and counters."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from oncekey.events import Attempted, Event
from oncekey.metrics import LoggingHook

logged = LoggingHook(logging.getLogger("oncekey.client"))
"""Logs INFO for a retry, WARNING for giving up."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts since the start."""

    requests: int = 0
    attempts: int = 0
    retries: int = 0
    replays: int = 0
    """Requests answered with a stored response: an earlier attempt had arrived after all."""
    mismatches: int = 0
    gave_up: int = 0


class Counters:
    """A hook that counts; `read()` returns the numbers for your metrics."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Attempted):
            return
        last = event.retry_in_s is None
        with self._lock:
            was = self._counts
            self._counts = Counts(
                requests=was.requests + (event.attempt == 1),
                attempts=was.attempts + 1,
                retries=was.retries + (event.attempt > 1),
                replays=was.replays + (last and event.replayed),
                mismatches=was.mismatches + event.mismatch,
                gave_up=was.gave_up + (event.gave_up is not None),
            )

    def read(self) -> Counts:
        return self._counts
