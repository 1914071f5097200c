"""The documentation and the alerts speak of the metrics that there are, and of all of them."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from oncekey._core.problems import Kind
from oncekey.metrics import PrometheusHook
from oncekey.metrics._catalogue import CATALOGUE
from tests.metrics.samples import one_of_each

DOCS = Path(__file__).parent.parent.parent / "docs"
SERIES = re.compile(r"\b(oncekey_\w+)(?:\{([^}]*)\})?")


def rules() -> list[dict[str, Any]]:
    yaml = importlib.import_module("yaml")  # it has no types of its own
    [group] = yaml.safe_load((DOCS / "alerts.yml").read_text())["groups"]
    return list(group["rules"])


def series() -> dict[str, set[str]]:
    """Every series that a scrape shows, and its labels."""
    registry = CollectorRegistry()
    hook = PrometheusHook(registry)
    for event in one_of_each():
        hook(event)
    return {
        sample.name: set(sample.labels)
        for family in registry.collect()
        for sample in family.samples
    }


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_every_metric_is_documented_with_its_labels(metric: Any) -> None:
    rows = (DOCS / "metrics.md").read_text().splitlines()

    [row] = [row for row in rows if row.startswith(f"| `{metric.prometheus_name}` |")]

    for label in metric.labels:
        assert f"`{label}`" in row
    assert ("| seconds |" in row) == (metric.unit == "s")


def test_the_documentation_names_no_metric_that_is_not_there() -> None:
    known = {metric.prometheus_name for metric in CATALOGUE}

    named = set(re.findall(r"\boncekey_[a-z_]+", (DOCS / "metrics.md").read_text()))

    assert named <= known


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_alerts_look_at_series_that_exist(rule: dict[str, Any]) -> None:
    exposed = series()

    named = SERIES.findall(rule["expr"])

    assert named
    for name, matchers in named:
        assert name in exposed
        for label, value in re.findall(r'(\w+)="([^"]*)"', matchers):
            assert label in exposed[name]
            assert label != "reason" or value in set(Kind)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_alerts_group_by_labels_that_exist(rule: dict[str, Any]) -> None:
    labels = {label for metric in CATALOGUE for label in metric.labels} | {"le"}

    for group in re.findall(r"by \(([^)]*)\)", rule["expr"]):
        assert set(group.split(", ")) <= labels


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_alerts_say_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["action"]


def test_what_must_be_watched_is_watched() -> None:
    watched = {name for rule in rules() for name, _ in SERIES.findall(rule["expr"])}

    assert {
        "oncekey_unknown_outcomes_total",
        "oncekey_lease_losses_total",
        "oncekey_store_errors_total",
        "oncekey_refusals_total",
    } <= watched
