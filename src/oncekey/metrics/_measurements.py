"""Turn events into measurements, whatever collects them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from oncekey import events
from oncekey._core.problems import Kind
from oncekey._core.reasons import GiveUpKind, LossKind, StoreFailure
from oncekey._core.validation import must_be_limits
from oncekey.metrics import _catalogue as catalogue
from oncekey.metrics._catalogue import Metric

OPERATIONS_MAX = 100
OTHER = "other"

_STORE_ERRORS: dict[str, str] = {StoreFailure.LOST: "lost", StoreFailure.NOT_SENT: "not-sent"}
_REASONS = frozenset(Kind)


class Measurement(NamedTuple):
    """What to add to a metric, with the values of its labels in order."""

    metric: Metric
    value: float
    labels: tuple[str, ...]


class Measure:
    """Call it with an event to get its measurements.

    Every label has a bounded number of values. An operation without a name is its path, which any
    client can choose: all of these are "other". Of named operations `operations_max` get a label of
    their own, the rest are "other"; a client's methods and hosts are counted separately.

    Counters whose first rise an alert watches are measured as 0 when their operation or verb is
    first seen: to Prometheus a counter that appears with 1 has never risen.
    """

    def __init__(self, operations_max: int = OPERATIONS_MAX) -> None:
        must_be_limits("Hook", {"operations_max": operations_max})
        self._served = _LabelValues(operations_max, _zeros_of_operation)
        self._sent = _LabelValues(operations_max, _zeros_of_client)
        self._verbs = _LabelValues(OPERATIONS_MAX, _zeros_of_verb)

    def __call__(self, event: events.Event) -> list[Measurement]:
        found = _MEASURES.get(type(event))
        if found is None:
            return []
        match event:
            case events.StoreAsked():
                label, zeros = self._verbs.label(event.verb)
            case events.Attempted():
                label, zeros = self._sent.label(event.operation)
            case events.Event(named=False):
                label, zeros = self._served.label(OTHER)
            case events.Declined(key_hash=""):  # anybody can send these, to any path
                label, zeros = self._served.existing_label(event.operation), ()
            case _:
                label, zeros = self._served.label(event.operation)
        return [*zeros, *found(event, label)]


class _LabelValues:
    """The values of one label: at most `values_max`, and "other"."""

    def __init__(self, values_max: int, zeros: Callable[[str], Iterator[Measurement]]) -> None:
        self._values_max = values_max
        self._zeros = zeros
        self._values: set[str] = set()
        self._mutex = threading.Lock()

    def existing_label(self, value: str) -> str:
        """Return the label of this value, "other" if it has none. Adds none."""
        return value if value in self._values else OTHER

    def label(self, value: str) -> tuple[str, Iterable[Measurement]]:
        """Return the label of this value; if it is new, also what is 0 from now on."""
        if value in self._values:
            return value, ()
        with self._mutex:
            named = len(self._values) - (OTHER in self._values)
            label = value if named < self._values_max else OTHER
            new = label not in self._values
            self._values.add(label)
        return label, self._zeros(label) if new else ()


def _zeros_of_operation(operation: str) -> Iterator[Measurement]:
    yield Measurement(catalogue.UNKNOWN_OUTCOMES, 0, (operation,))
    yield Measurement(catalogue.TAKE_OVERS, 0, (operation,))
    for reason in LossKind:
        yield Measurement(catalogue.LEASE_LOSSES, 0, (operation, reason))


def _zeros_of_client(operation: str) -> Iterator[Measurement]:
    yield Measurement(catalogue.CLIENT_MISMATCHES, 0, (operation,))
    for reason in GiveUpKind:
        yield Measurement(catalogue.CLIENT_GIVEN_UP, 0, (operation, reason))


def _zeros_of_verb(verb: str) -> Iterator[Measurement]:
    for error in _STORE_ERRORS.values():
        yield Measurement(catalogue.STORE_ERRORS, 0, (verb, error))


# ------------------------------------------------------------------------ one per kind of event


def _measure_started(event: events.Started, operation: str) -> Iterator[Measurement]:
    order = "first" if event.attempt == 1 else "later"
    yield Measurement(catalogue.ATTEMPTS, 1, (operation, order))


def _measure_taken_over(event: events.TakenOver, operation: str) -> Iterator[Measurement]:
    yield Measurement(catalogue.TAKE_OVERS, 1, (operation,))


def _measure_completed(event: events.Completed, operation: str) -> Iterator[Measurement]:
    status = _status_class(event.status)
    body = "kept" if event.body_kept else "left-out"
    yield Measurement(catalogue.COMPLETIONS, 1, (operation, status, body))
    yield Measurement(catalogue.RUN_DURATION, event.run_s, (operation,))
    if event.attempt > 1:
        yield Measurement(catalogue.RETRY_WAIT, event.first_attempt_age_s, (operation, "ran"))


def _measure_released(event: events.Released, operation: str) -> Iterator[Measurement]:
    reason = "no-effect" if event.no_effect else "failure"
    yield Measurement(catalogue.RELEASES, 1, (operation, reason))


def _measure_replayed(event: events.Replayed, operation: str) -> Iterator[Measurement]:
    yield Measurement(catalogue.REPLAYS, 1, (operation,))
    yield Measurement(catalogue.RETRY_WAIT, event.first_attempt_age_s, (operation, "replayed"))
    yield Measurement(catalogue.RETRIES_PER_KEY, event.earlier_replays + 1, (operation,))


def _measure_declined(event: events.Declined, operation: str) -> Iterator[Measurement]:
    reason = event.reason if event.reason in _REASONS else OTHER
    yield Measurement(catalogue.REFUSALS, 1, (operation, reason))


def _measure_lease_was_lost(event: events.LeaseWasLost, operation: str) -> Iterator[Measurement]:
    yield Measurement(catalogue.LEASE_LOSSES, 1, (operation, event.kind or OTHER))


def _measure_outcome_unknown(event: events.OutcomeUnknown, operation: str) -> Iterator[Measurement]:
    yield Measurement(catalogue.UNKNOWN_OUTCOMES, 1, (operation,))


def _measure_resolved(event: events.Resolved, operation: str) -> Iterator[Measurement]:
    yield Measurement(catalogue.RESOLUTIONS, 1, (operation, event.to))


def _measure_unprotected(event: events.Unprotected, operation: str) -> Iterator[Measurement]:
    how = "ran-unclaimed" if event.ran else "unrecorded"
    yield Measurement(catalogue.UNPROTECTED, 1, (operation, how))


def _measure_not_atomic(event: events.NotAtomic, operation: str) -> Iterator[Measurement]:
    yield Measurement(catalogue.NOT_ATOMIC, 1, (operation,))


def _measure_store_asked(event: events.StoreAsked, verb: str) -> Iterator[Measurement]:
    yield Measurement(catalogue.STORE_DURATION, event.seconds, (verb,))
    if event.error is not None:
        yield Measurement(catalogue.STORE_ERRORS, 1, (verb, _STORE_ERRORS.get(event.error, OTHER)))


def _measure_attempted(event: events.Attempted, operation: str) -> Iterator[Measurement]:
    order = "first" if event.attempt == 1 else "later"
    status = "none" if event.status is None else _status_class(event.status)
    yield Measurement(catalogue.CLIENT_ATTEMPTS, 1, (operation, order, status))
    yield Measurement(catalogue.CLIENT_ATTEMPT_DURATION, event.seconds, (operation,))
    if event.replayed and event.retry_in_s is None:
        yield Measurement(catalogue.CLIENT_REPLAYS, 1, (operation,))
    if event.mismatch:
        yield Measurement(catalogue.CLIENT_MISMATCHES, 1, (operation,))
    if event.gave_up is not None:
        yield Measurement(catalogue.CLIENT_GIVEN_UP, 1, (operation, event.gave_up_kind or OTHER))


def _status_class(status: int) -> str:
    return f"{status // 100}xx" if 100 <= status < 600 else OTHER


_MEASURES: dict[type[events.Event], Callable[[Any, str], Iterator[Measurement]]] = {
    events.Started: _measure_started,
    events.TakenOver: _measure_taken_over,
    events.Completed: _measure_completed,
    events.Released: _measure_released,
    events.Replayed: _measure_replayed,
    events.Declined: _measure_declined,
    events.LeaseWasLost: _measure_lease_was_lost,
    events.OutcomeUnknown: _measure_outcome_unknown,
    events.Resolved: _measure_resolved,
    events.Unprotected: _measure_unprotected,
    events.NotAtomic: _measure_not_atomic,
    events.StoreAsked: _measure_store_asked,
    events.Attempted: _measure_attempted,
}
