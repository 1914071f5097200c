"""What can be seen of a delivery: an event for every attempt, log lines, and counters."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from oncekey.events import Event

_log = logging.getLogger("oncekey.client")


@dataclass(frozen=True, slots=True)
class Attempted(Event):
    """One attempt at delivering a request ended. `operation` is the method and the host: paths and
    queries may name people.
    """

    attempt: int
    """Counted from 1."""
    status: int | None
    """None where no whole answer came."""
    error: str | None
    """The kind of network error."""
    seconds: float
    replayed: bool
    """The server said that this is the kept answer of an earlier attempt."""
    mismatch: bool
    retry_in_s: float | None
    """None where this was the last attempt."""
    gave_up: str | None
    """Why there is no further attempt, where one would have been in order."""


def logged(event: Attempted) -> None:
    """Write it: INFO for a retry, WARNING where there is none although one was in order."""
    level = logging.DEBUG
    if event.retry_in_s is not None:
        level = logging.INFO
    elif event.gave_up or event.mismatch:
        level = logging.WARNING
    if not _log.isEnabledFor(level):
        return
    got = f"status {event.status}" if event.status is not None else event.error
    if event.retry_in_s is not None:
        then = f"; the next in {event.retry_in_s:.2f} s, with the same key"
    else:
        then = f"; no further one: {event.gave_up}" if event.gave_up else ""
    _log.log(
        level,
        "%s key=%s: attempt %d: %s after %.3f s%s",
        event.operation,
        event.key_hash,
        event.attempt,
        got,
        event.seconds,
        then,
        extra={"oncekey": event},
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """How often what happened since the start."""

    requests: int = 0
    attempts: int = 0
    retries: int = 0
    replays: int = 0
    """Requests whose answer was a kept one: an earlier attempt had arrived after all."""
    mismatches: int = 0
    gave_up: int = 0


class Counters:
    """A hook that counts; `read()` gives the numbers to whatever collects metrics."""

    def __init__(self) -> None:
        self._alone = threading.Lock()
        self._counts = Counts()

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Attempted):
            return
        last = event.retry_in_s is None
        with self._alone:
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
