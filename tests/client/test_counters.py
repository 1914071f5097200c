"""The client's counters and log lines, and its server's metrics for the same requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from prometheus_client import CollectorRegistry

from oncekey._core.reasons import GiveUpKind
from oncekey._system.clock import FakeClock
from oncekey.client import Retries, RetryBudget, retrying
from oncekey.errors import Mismatch
from oncekey.metrics import PrometheusHook
from tests.client.hostile_server import HOME, MISMATCH, Fault
from tests.client.test_faults import World

OPERATION = "POST api.test:443"
SICK = [Fault("status")] * 20


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    found = registry.get_sample_value(f"oncekey_client_{name}", {"operation": OPERATION, **labels})
    return found


def test_attempts_replays_and_mismatches_are_counted(registry: CollectorRegistry) -> None:
    answers: Iterator[Any] = iter(
        [
            httpx2.ConnectError("nobody is there"),
            httpx2.Response(503),
            httpx2.Response(201, headers={"Idempotent-Replayed": "true"}),
            httpx2.Response(422, json=MISMATCH),
        ]
    )

    def answer(request: httpx2.Request) -> httpx2.Response:
        match next(answers):
            case httpx2.Response() as response:
                return response
            case error:
                raise error

    quick = Retries(backoff_s=0.001, backoff_s_max=0.001)
    transport = retrying(
        httpx2.MockTransport(answer), retries=quick, hooks=[PrometheusHook(registry)]
    )
    with httpx2.Client(transport=transport) as client:
        client.post(f"{HOME}/orders/7?who=ada")
        assert value(registry, "mismatches_total") == 0, "an alert can see the first rise"
        with pytest.raises(Mismatch):
            client.post(f"{HOME}/orders/7")

    assert value(registry, "attempts_total", order="first", status="none") == 1
    assert value(registry, "attempts_total", order="later", status="5xx") == 1
    assert value(registry, "attempts_total", order="later", status="2xx") == 1
    assert value(registry, "attempts_total", order="first", status="4xx") == 1
    assert value(registry, "attempt_duration_seconds_count") == 4
    assert value(registry, "replays_total") == 1
    assert value(registry, "mismatches_total") == 1


@pytest.mark.parametrize(
    ("reason", "script", "rules"),
    [
        ("attempts", SICK, {"retries": Retries(attempts_max=3)}),
        ("time", [Fault("drop", seconds=4.9)] * 20, {"retries": Retries(budget_s=9.0)}),
        ("asked-to-wait", [Fault("status", retry_after="3000")], {}),
        ("retry-budget", SICK, {"budget": RetryBudget(tokens_max=1.0, tokens_per_s=0.0)}),
    ],
)
def test_why_it_was_given_up_is_told(
    registry: CollectorRegistry, reason: str, script: list[Fault], rules: dict[str, Any]
) -> None:
    world = World(httpx2, script, [0.5], **rules)
    hook = PrometheusHook(registry)
    try:
        world.post()
    except httpx2.TransportError:
        assert reason == "time"
    for event in world.events:
        hook(event)

    assert value(registry, "given_up_total", reason=reason) == 1


@pytest.mark.parametrize(
    ("reason", "profile", "content"),
    [
        ("sent-once", "oncekey", iter([b"a stream"])),
        ("forgotten", "azure", b"{}"),  # what was first sent longer ago is refused there
    ],
)
def test_why_it_was_not_sent_twice_is_told(
    registry: CollectorRegistry, reason: str, profile: str, content: Any
) -> None:
    clock = FakeClock()

    def late(request: httpx2.Request) -> httpx2.Response:
        clock.advance(300.0)
        return httpx2.Response(503)

    transport = retrying(
        httpx2.MockTransport(late),
        profile=profile,
        retries=Retries(budget_s=1000.0),
        clock=clock,
        hooks=[PrometheusHook(registry)],
    )
    with httpx2.Client(transport=transport) as client:
        client.post(f"{HOME}/orders", content=content)

    assert value(registry, "given_up_total", reason=reason) == 1


def test_what_nobody_knows_is_counted_as_given_up(registry: CollectorRegistry) -> None:
    answer = httpx2.Response(500, headers={"Idempotency-Outcome": "unknown"})
    transport = httpx2.MockTransport(lambda request: answer)
    with httpx2.Client(transport=retrying(transport, hooks=[PrometheusHook(registry)])) as client:
        client.post(f"{HOME}/orders")

    assert value(registry, "given_up_total", reason="unknown") == 1


def test_every_reason_has_been_told_above() -> None:
    told = {"attempts", "time", "asked-to-wait", "retry-budget", "sent-once", "forgotten"}
    told |= {"unknown"}

    assert set(GiveUpKind) == told
