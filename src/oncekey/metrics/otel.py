"""Metrics and span events for OpenTelemetry, by its API: `pip install 'oncekey[opentelemetry]'`.

The SDK that the application sets up decides where they go; without one they go nowhere.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from oncekey.errors import Misuse
from oncekey.events import Event, StoreAsked
from oncekey.metrics._catalogue import CATALOGUE, Metric
from oncekey.metrics._measurements import OPERATIONS_MAX, Measure

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

_INNER_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


class OpenTelemetryHook:
    """Measures events with `meter`, by default that of the global provider, and adds them to the
    current span unless `span_events` is False.
    """

    def __init__(
        self,
        meter: Meter | None = None,
        *,
        span_events: bool = True,
        operations_max: int = OPERATIONS_MAX,
    ) -> None:
        try:
            from opentelemetry import (
                metrics,
                trace,
            )  # imported here: everything else works without it
        except ModuleNotFoundError as error:
            raise Misuse(
                "OpenTelemetryHook needs the OpenTelemetry API: "
                "pip install 'oncekey[opentelemetry]'"
            ) from error
        self._measure = Measure(operations_max)
        self._current_span = trace.get_current_span if span_events else None
        meter = meter or metrics.get_meter("oncekey")
        self._adders: dict[Metric, Callable[[float, Mapping[str, str]], None]] = {
            metric: _adder(meter, metric) for metric in CATALOGUE
        }

    def __call__(self, event: Event) -> None:
        for metric, value, labels in self._measure(event):
            self._adders[metric](value, dict(zip(metric.labels, labels, strict=True)))
        if self._current_span is None or isinstance(event, StoreAsked):
            return  # an instrumented driver has its own spans
        span = self._current_span()
        if span.is_recording():
            span.add_event(_name(event), _attributes(event))


def _adder(meter: Meter, metric: Metric) -> Callable[[float, Mapping[str, str]], None]:
    name, unit, meaning = metric.opentelemetry_name, metric.unit, metric.meaning
    if not metric.buckets:
        return meter.create_counter(name, unit, meaning).add
    histogram = meter.create_histogram(
        name, unit, meaning, explicit_bucket_boundaries_advisory=metric.buckets
    )
    return histogram.record


def _name(event: Event) -> str:
    """Write `LeaseWasLost` as `oncekey.lease_was_lost`."""
    return f"oncekey.{_INNER_CAPITAL.sub('_', type(event).__name__).lower()}"


def _attributes(event: Event) -> dict[str, str | int | float | bool]:
    fields = (field for field in dataclasses.fields(event) if field.compare)
    named = ((field.name, getattr(event, field.name)) for field in fields)
    return {f"oncekey.{name}": value for name, value in named if value is not None}
