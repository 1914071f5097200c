"""Write events as log lines, with the standard library.

ERROR needs a person. WARNING: something died, hung or did not answer. INFO: retries. DEBUG:
everything else. Keys appear only as short hashes; the event itself is `record.oncekey`, for
formatters that write fields.
"""

from __future__ import annotations

import logging
from logging import DEBUG, ERROR, INFO, WARNING

from oncekey import events
from oncekey._core.printable import printable
from oncekey._core.problems import Kind
from oncekey._core.reasons import StoreFailure

_WORRYING = frozenset({Kind.OUTCOME_UNKNOWN, Kind.STORE_UNAVAILABLE, Kind.NO_ROOM})


class LoggingHook:
    """Writes every event to `logger`, by default the one called "oncekey"."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("oncekey")

    def __call__(self, event: events.Event) -> None:
        level = level_of(event)
        if self._logger.isEnabledFor(level):
            where = f"{printable(event.operation)} key={event.key_hash or '-'}"
            self._logger.log(level, "%s: %s", where, text_of(event), extra={"oncekey": event})


def level_of(event: events.Event) -> int:
    """Return how urgent an event is."""
    match event:
        case events.OutcomeUnknown():
            return ERROR
        case events.TakenOver() | events.LeaseWasLost() | events.Unprotected():
            return WARNING
        case events.StoreAsked():
            return DEBUG if event.error is None else WARNING
        case events.Declined():
            return WARNING if event.reason in _WORRYING else INFO
        case events.Released():
            return DEBUG if event.no_effect else INFO
        case events.Attempted():
            return _level_of_attempt(event)
        case events.Replayed() | events.Resolved():
            return INFO
        case _:
            return DEBUG


def text_of(event: events.Event) -> str:
    """Say what an event means, and what to do if somebody has to act."""
    match event:
        case events.Started():
            return f"attempt {event.attempt} starts (fence {event.fence})"
        case events.TakenOver():
            return (
                f"attempt {event.attempt} takes over from one whose lease lapsed "
                f"(lapse {event.lapses}): it died, hung, or could not renew"
            )
        case events.Completed():
            kept = "" if event.body_kept else ", without its body"
            return (
                f"attempt {event.attempt} recorded status {event.status}{kept} "
                f"after {event.run_s:.3f} s"
            )
        case events.Released():
            why = "without effect" if event.no_effect else "after a failure"
            return f"attempt {event.attempt} released the record {why}; a retry may run"
        case events.Replayed():
            return (
                f"replayed status {event.status}, {event.first_attempt_age_s:.3f} s after the "
                f"first attempt ({event.earlier_replays} replays before)"
            )
        case events.Declined():
            return f"refused: {printable(event.reason)}"
        case events.LeaseWasLost():
            return (
                f"attempt {event.attempt} lost its lease ({printable(event.reason)}): its writes "
                "are refused from now on; its client gets what the record says"
            )
        case events.OutcomeUnknown():
            return (
                f"nobody knows how attempt {event.attempt} ended (lapse {event.lapses}); retries "
                "are refused until you find out. `oncekey list --unknown` shows the record, "
                "`oncekey resolve` ends it"
            )
        case events.Resolved():
            as_what = event.to if event.status is None else f"{event.to} with {event.status}"
            return (
                f"resolved as {as_what} by {printable(event.by)}: "
                f"{printable(event.reason) or 'no reason given'}"
            )
        case events.Unprotected():
            how = "ran without a claim" if event.ran else "ran, but its response is not recorded"
            return f"the store does not answer: the request {how}; its client was told"
        case events.NotAtomic():
            return f"answered {event.status} without using its transaction (see the warning)"
        case events.StoreAsked():
            return _store_text(event)
        case events.Attempted():
            return _attempt_text(event)
        case _:
            return type(event).__name__


def _store_text(event: events.StoreAsked) -> str:
    if event.error is None:
        return f"the store answered {event.verb} in {event.seconds:.4f} s"
    if event.error == StoreFailure.NOT_SENT:
        return f"could not reach the store ({event.verb}); tried for {event.seconds:.3f} s"
    return (
        f"the store did not answer {event.verb} within {event.seconds:.3f} s and may have acted; "
        "repeating the query is safe"
    )


def _level_of_attempt(event: events.Attempted) -> int:
    if event.retry_in_s is not None:
        return INFO
    return WARNING if event.gave_up or event.mismatch else DEBUG


def _attempt_text(event: events.Attempted) -> str:
    got = f"status {event.status}" if event.status is not None else event.error
    then = f"; no further one: {event.gave_up}" if event.gave_up else ""
    if event.retry_in_s is not None:
        then = f"; the next in {event.retry_in_s:.2f} s, with the same key"
    return f"attempt {event.attempt}: {got} after {event.seconds:.3f} s{then}"
