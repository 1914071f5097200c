"""The Prometheus hook, read back from a real registry."""

import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from oncekey import events
from oncekey.errors import Misuse
from oncekey.metrics import PrometheusHook
from oncekey.metrics._catalogue import CATALOGUE
from tests.metrics.samples import HASH, OPERATION, one_of_each, sample


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_counters_and_histograms(registry: CollectorRegistry) -> None:
    hook = PrometheusHook(registry)
    hook(sample(events.Started))
    hook(sample(events.Declined, reason="mismatch"))
    hook(sample(events.Replayed, first_attempt_age_s=42.0, earlier_replays=2))
    hook(sample(events.Replayed, first_attempt_age_s=8.0, earlier_replays=3))
    hook(sample(events.StoreAsked, seconds=0.003, error="lost"))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"oncekey_{name}", labels)

    assert value("attempts_total", operation=OPERATION, order="first") == 1
    assert value("refusals_total", operation=OPERATION, reason="mismatch") == 1
    assert value("replays_total", operation=OPERATION) == 2
    assert value("retry_wait_seconds_sum", operation=OPERATION, how="replayed") == 50
    assert value("retry_wait_seconds_bucket", operation=OPERATION, how="replayed", le="15.0") == 1
    assert value("retries_per_key_sum", operation=OPERATION) == 7
    assert value("store_errors_total", verb="insert", error="lost") == 1
    assert value("store_duration_seconds_bucket", verb="insert", le="0.005") == 1
    assert value("store_duration_seconds_bucket", verb="insert", le="0.0025") == 0


def test_an_alert_can_see_the_first_rise(registry: CollectorRegistry) -> None:
    hook = PrometheusHook(registry)
    name, labels = "oncekey_unknown_outcomes_total", {"operation": OPERATION}

    hook(sample(events.Started))
    before = registry.get_sample_value(name, labels)
    hook(sample(events.OutcomeUnknown))

    assert (before, registry.get_sample_value(name, labels)) == (0, 1)


def test_what_is_exposed_is_the_catalogue_and_no_key(registry: CollectorRegistry) -> None:
    hook = PrometheusHook(registry)
    for event in one_of_each():
        hook(event)

    exposed = generate_latest(registry).decode()

    for metric in CATALOGUE:
        kind = "histogram" if metric.buckets else "counter"
        assert f"# TYPE {metric.prometheus_name} {kind}" in exposed
        assert f"# HELP {metric.prometheus_name} {metric.meaning}" in exposed
    assert HASH not in exposed


def test_p11_the_number_of_series_is_bounded(registry: CollectorRegistry) -> None:
    hook = PrometheusHook(registry, operations_max=2)
    for number in range(50):
        hook(sample(events.Completed, operation=f"POST /orders/{number}"))

    operations = {
        sample.labels["operation"]
        for family in registry.collect()
        for sample in family.samples
        if "operation" in sample.labels
    }
    assert operations == {"POST /orders/0", "POST /orders/1", "other"}


def test_a_second_hook_on_one_registry_is_told_what_to_do(registry: CollectorRegistry) -> None:
    PrometheusHook(registry)

    with pytest.raises(Misuse, match="make one PrometheusHook"):
        PrometheusHook(registry)


WITHOUT = """
import sys
sys.modules["prometheus_client"] = sys.modules["opentelemetry"] = None
from oncekey.errors import Misuse
from oncekey.metrics import LoggingHook, OpenTelemetryHook, PrometheusHook
LoggingHook()
for hook in (OpenTelemetryHook, PrometheusHook):
    try:
        hook()
    except Misuse as error:
        print(error)
"""


def test_without_the_packages_only_their_hooks_are_refused() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert "pip install 'oncekey[opentelemetry]'" in done.stdout
    assert "pip install 'oncekey[prometheus]'" in done.stdout
