"""Metrics for Prometheus, by prometheus_client: `pip install 'oncekey[prometheus]'`."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, cast

from oncekey.errors import Misuse
from oncekey.events import Event
from oncekey.metrics._catalogue import CATALOGUE, Metric
from oncekey.metrics._measurements import OPERATIONS_MAX, Measure

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

Add = Callable[[float], None]


class PrometheusHook:
    """Counts events in `registry`, by default the global one. Make one hook and pass it to every
    middleware and every client.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, operations_max: int = OPERATIONS_MAX
    ) -> None:
        try:
            import prometheus_client as client  # imported here: everything else works without it
        except ModuleNotFoundError as error:
            raise Misuse(
                "PrometheusHook needs prometheus_client: pip install 'oncekey[prometheus]'"
            ) from error
        registry = registry or client.REGISTRY
        self._measure = Measure(operations_max)
        self._adds: dict[tuple[Metric, tuple[str, ...]], Add] = {}
        self._series: dict[Metric, Callable[[tuple[str, ...]], Add]] = {}
        try:
            for metric in CATALOGUE:
                self._series[metric] = _series(client, metric, registry)
        except ValueError as error:
            raise Misuse(
                f"{metric.prometheus_name} is already in this registry: make one PrometheusHook "
                "and pass it to every middleware and client, or give each its own registry"
            ) from error

    def __call__(self, event: Event) -> None:
        for metric, value, labels in self._measure(event):
            add = self._adds.get((metric, labels))
            if add is None:  # cached: the library's own look-up takes longer
                add = self._adds[metric, labels] = self._series[metric](labels)
            add(value)


def _series(
    client: ModuleType, metric: Metric, registry: CollectorRegistry
) -> Callable[[tuple[str, ...]], Add]:
    """Return a function from the values of a metric's labels to what adds to that series."""
    name, meaning, labels = metric.prometheus_name, metric.meaning, metric.labels
    if not metric.buckets:
        counter = client.Counter(name, meaning, labels, registry=registry)
        return lambda values: cast(Add, counter.labels(*values).inc)
    histogram = client.Histogram(name, meaning, labels, registry=registry, buckets=metric.buckets)
    return lambda values: cast(Add, histogram.labels(*values).observe)
