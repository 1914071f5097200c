"""From events to measurements. Knows nothing of who collects them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from oncekey import events
from oncekey.core.problem import Kind
from oncekey.metrics import catalogue
from oncekey.metrics.catalogue import Metric

OPERATIONS_MAX = 100
OTHER = "other"

LOSSES = {
    "taken over": "taken-over",
    "refused at completion": "refused-at-completion",
    "could not be renewed": "not-renewed",
    "ran longer": "ran-too-long",
}
"""How the reasons of `LeaseWasLost` begin, and the label that stands for each."""
STORE_ERRORS = {"lost": "lost", "not sent": "not-sent"}
_REASONS = frozenset(Kind)


class Measurement(NamedTuple):
    """What to add to a metric, with the values of its labels in its order."""

    metric: Metric
    value: float
    labels: tuple[str, ...]


class Measure:
    """Called with an event, gives its measurements.

    Every label has a bounded number of values. Operations are the only ones that come from outside
    (where no route is known they are paths): after the first `operations_max` the rest are "other".

    What an alert watches for its first rise is measured as 0 when its operation or verb is first
    seen: a counter that appears with 1 has never risen, as far as Prometheus can tell.
    """

    def __init__(self, operations_max: int = OPERATIONS_MAX) -> None:
        self._operations_max = operations_max
        self._operations: set[str] = set()
        self._verbs: set[str] = set()
        self._mutex = threading.Lock()

    def __call__(self, event: events.Event) -> list[Measurement]:
        found = _MEASURES.get(type(event))
        if found is None:
            return []
        measured: list[Measurement] = []
        if isinstance(event, events.StoreAsked):
            if event.verb not in self._verbs:
                self._verbs.add(event.verb)
                measured += _zeros_of_verb(event.verb)
            return [*measured, *found(event, event.verb)]
        operation = event.operation
        if operation not in self._operations:
            operation, new = self._admit(operation)
            if new:
                measured += _zeros_of_operation(operation)
        return [*measured, *found(event, operation)]

    def _admit(self, operation: str) -> tuple[str, bool]:
        """The label of an operation that has none of its own yet, and whether it is a new one."""
        with self._mutex:
            label = operation if len(self._operations) < self._operations_max else OTHER
            new = label not in self._operations
            self._operations.add(label)
            return label, new


def _zeros_of_operation(operation: str) -> Iterator[Measurement]:
    yield Measurement(catalogue.UNKNOWN_OUTCOMES, 0, (operation,))
    yield Measurement(catalogue.TAKE_OVERS, 0, (operation,))
    for reason in (*LOSSES.values(), OTHER):
        yield Measurement(catalogue.LEASE_LOSSES, 0, (operation, reason))


def _zeros_of_verb(verb: str) -> Iterator[Measurement]:
    for error in STORE_ERRORS.values():
        yield Measurement(catalogue.STORE_ERRORS, 0, (verb, error))


# ------------------------------------------------------------------------ one per kind of event


def _started(event: events.Started, operation: str) -> Iterator[Measurement]:
    order = "first" if event.attempt == 1 else "later"
    yield Measurement(catalogue.ATTEMPTS, 1, (operation, order))


def _taken_over(event: events.TakenOver, operation: str) -> Iterator[Measurement]:
    yield Measurement(catalogue.TAKE_OVERS, 1, (operation,))


def _completed(event: events.Completed, operation: str) -> Iterator[Measurement]:
    status = f"{event.status // 100}xx" if 100 <= event.status < 600 else OTHER
    body = "kept" if event.body_kept else "left-out"
    yield Measurement(catalogue.COMPLETIONS, 1, (operation, status, body))
    yield Measurement(catalogue.RUN_DURATION, event.run_s, (operation,))
    if event.attempt > 1:
        yield Measurement(catalogue.RETRY_WAIT, event.first_attempt_age_s, (operation, "ran"))


def _released(event: events.Released, operation: str) -> Iterator[Measurement]:
    reason = "no-effect" if event.no_effect else "failure"
    yield Measurement(catalogue.RELEASES, 1, (operation, reason))


def _replayed(event: events.Replayed, operation: str) -> Iterator[Measurement]:
    yield Measurement(catalogue.REPLAYS, 1, (operation,))
    yield Measurement(catalogue.RETRY_WAIT, event.first_attempt_age_s, (operation, "replayed"))
    yield Measurement(catalogue.RETRIES_PER_KEY, event.earlier_replays + 1, (operation,))


def _declined(event: events.Declined, operation: str) -> Iterator[Measurement]:
    reason = event.reason if event.reason in _REASONS else OTHER
    yield Measurement(catalogue.REFUSALS, 1, (operation, reason))


def _lease_was_lost(event: events.LeaseWasLost, operation: str) -> Iterator[Measurement]:
    labels = (label for start, label in LOSSES.items() if event.reason.startswith(start))
    yield Measurement(catalogue.LEASE_LOSSES, 1, (operation, next(labels, OTHER)))


def _outcome_unknown(event: events.OutcomeUnknown, operation: str) -> Iterator[Measurement]:
    yield Measurement(catalogue.UNKNOWN_OUTCOMES, 1, (operation,))


def _resolved(event: events.Resolved, operation: str) -> Iterator[Measurement]:
    yield Measurement(catalogue.RESOLUTIONS, 1, (operation, event.to))


def _unprotected(event: events.Unprotected, operation: str) -> Iterator[Measurement]:
    how = "ran-unclaimed" if event.ran else "unrecorded"
    yield Measurement(catalogue.UNPROTECTED, 1, (operation, how))


def _store_asked(event: events.StoreAsked, verb: str) -> Iterator[Measurement]:
    yield Measurement(catalogue.STORE_DURATION, event.seconds, (verb,))
    if event.error is not None:
        yield Measurement(catalogue.STORE_ERRORS, 1, (verb, STORE_ERRORS.get(event.error, OTHER)))


_MEASURES: dict[type[events.Event], Callable[[Any, str], Iterator[Measurement]]] = {
    events.Started: _started,
    events.TakenOver: _taken_over,
    events.Completed: _completed,
    events.Released: _released,
    events.Replayed: _replayed,
    events.Declined: _declined,
    events.LeaseWasLost: _lease_was_lost,
    events.OutcomeUnknown: _outcome_unknown,
    events.Resolved: _resolved,
    events.Unprotected: _unprotected,
    events.StoreAsked: _store_asked,
}
