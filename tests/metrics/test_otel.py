"""The OpenTelemetry hook, read back from the real SDK."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from oncekey import events
from oncekey.metrics import OpenTelemetryHook
from oncekey.metrics._catalogue import CATALOGUE
from tests.metrics.samples import HASH, OPERATION, one_of_each, sample


class Sdk:
    """An SDK that keeps what it is told."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.meter = self._provider.get_meter("test")

    def metrics(self) -> dict[str, Any]:
        data = self._reader.get_metrics_data()
        return {
            metric.name: metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def points(self, name: str) -> list[tuple[dict[str, str], Any]]:
        points = self.metrics()[name].data.data_points
        return [(dict(point.attributes), point) for point in points]

    def close(self) -> None:
        self._provider.shutdown()


@pytest.fixture
def sdk() -> Iterator[Sdk]:
    sdk = Sdk()
    yield sdk
    sdk.close()


def test_counters_and_histograms(sdk: Sdk) -> None:
    hook = OpenTelemetryHook(sdk.meter)
    hook(sample(events.Declined, reason="mismatch"))
    hook(sample(events.Declined, reason="mismatch"))
    hook(sample(events.Completed, run_s=0.2))

    [(labels, refusals)] = sdk.points("oncekey.refusals")
    assert (labels, refusals.value) == ({"operation": OPERATION, "reason": "mismatch"}, 2)
    [(labels, run)] = sdk.points("oncekey.run_duration")
    assert labels == {"operation": OPERATION}
    assert (run.count, run.sum) == (1, 0.2)


def test_names_units_and_buckets_are_those_of_the_catalogue(sdk: Sdk) -> None:
    hook = OpenTelemetryHook(sdk.meter)
    for event in one_of_each():
        hook(event)

    metrics = sdk.metrics()

    assert set(metrics) == {metric.opentelemetry_name for metric in CATALOGUE}
    for metric in CATALOGUE:
        found = metrics[metric.opentelemetry_name]
        assert (found.unit, found.description) == (metric.unit, metric.meaning)
        if metric.buckets:
            assert tuple(found.data.data_points[0].explicit_bounds) == metric.buckets


def test_p11_operations_are_bounded(sdk: Sdk) -> None:
    hook = OpenTelemetryHook(sdk.meter, operations_max=1)
    for number in range(5):
        hook(sample(events.Replayed, operation=f"POST /{number}"))

    counts = {labels["operation"]: p.value for labels, p in sdk.points("oncekey.replays")}
    assert counts == {"POST /0": 1, "other": 4}


# ------------------------------------------------------------------------ spans


def span_events(hook: OpenTelemetryHook, *happened: events.Event) -> list[Any]:
    """What a span holds in the end, during which this happened."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("test").start_as_current_span("request"):
        for event in happened:
            hook(event)
    provider.shutdown()
    [span] = exporter.get_finished_spans()
    return list(span.events)


def test_the_current_span_tells_what_happened(sdk: Sdk) -> None:
    lost = sample(events.LeaseWasLost, attempt=3, reason="taken over")

    [event] = span_events(OpenTelemetryHook(sdk.meter), lost, sample(events.StoreAsked))

    assert event.name == "oncekey.lease_was_lost"
    assert dict(event.attributes) == {
        "oncekey.operation": OPERATION,
        "oncekey.key_hash": HASH,
        "oncekey.attempt": 3,
        "oncekey.reason": "taken over",
    }


def test_span_events_can_be_left_out(sdk: Sdk) -> None:
    hook = OpenTelemetryHook(sdk.meter, span_events=False)

    assert span_events(hook, sample(events.Replayed)) == []


def test_without_an_sdk_nothing_happens() -> None:
    hook = OpenTelemetryHook()

    for event in one_of_each():
        hook(event)
