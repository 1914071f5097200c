"""The rules are the same on both sides: what Python's client does, the browser's does."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from oncekey._core import refusals
from oncekey._core.backoff import retry_after
from oncekey._core.problems import Kind, Problem
from oncekey._core.profiles import PROFILES, render
from oncekey.client import Retries
from oncekey.client._classify import Final, Mismatched, RetryLater, WholeResponse, classify
from oncekey.client.keys import uuid7
from tests.client.browser.node import Node
from tests.client.hostile_server import IN_FLIGHT, Fault
from tests.client.test_faults import READ_S, World, chances, retry_afters

WALL = 1_700_000_000.0

words = st.sampled_from(["true", "false", "TRUE ", "perhaps", ""])
bodies = st.one_of(
    st.sampled_from(["", "{", "[]", '"mismatch"', "null", '{"type": 3}', '{"error": "no"}']),
    st.builds(
        lambda kind, more: json.dumps({"type": f"urn:oncekey:problem:{kind}", **more}),
        st.sampled_from([*Kind, "new-one"]),
        st.fixed_dictionaries({}, optional={"retryable": st.sampled_from([True, False, "yes"])}),
    ),
    st.builds(
        lambda kind, title: json.dumps({"type": kind, "title": title}),
        st.sampled_from(["https://example.com/idempotency", "about:blank", None]),
        st.sampled_from(["Idempotency-Key is already used", "Not valid", None]),
    ),
    st.builds(
        lambda kind, code: json.dumps({"error": {"type": kind, "code": code, "message": "no"}}),
        st.sampled_from(["idempotency_error", "invalid_request_error", "api_error", None]),
        st.sampled_from(
            [
                *("idempotency_key_in_use", "resource_missing", "in_flight", "key_not_found"),
                *(kind.replace("-", "_") for kind in Kind),
                *("card_declined", "", None, 7),
            ]
        ),
    ),
)
cases = st.tuples(
    st.sampled_from(["oncekey", "stripe"]),
    st.sampled_from([200, 204, 302, 400, 401, 402, 404, 408, 409, 412, 422, 425, 429, 500, 503]),
    st.fixed_dictionaries(
        {},
        optional={
            "retry-after": retry_afters.filter(bool),
            "stripe-should-retry": words,
            "x-should-retry": words,
            "transient-error": words,
            "date": st.sampled_from(["Tue, 14 Nov 2023 12:13:20 GMT", "today"]),
            "idempotent-replayed": words,
            "idempotency-outcome": st.sampled_from(["unknown", "known"]),
        },
    ),
    bodies,
    st.just(WALL),
)
hypothesis_settings = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


EVERY_KIND: list[tuple[str, int, dict[str, str], str, float]] = [
    (profile, status, {}, json.dumps(body), WALL)
    for kind in Kind
    for status in (400, 409, 422, 503)
    for profile, body in (
        ("oncekey", {"type": f"urn:oncekey:problem:{kind}"}),
        ("stripe", {"error": {"type": "idempotency_error", "code": kind.replace("-", "_")}}),
    )
]


@pytest.mark.slow
@given(several=st.lists(cases, min_size=20, max_size=60))
@example(several=EVERY_KIND)
@hypothesis_settings
def test_an_answer_means_the_same_on_both_sides(node: Node, several: list[Any]) -> None:
    for case, told in zip(several, node.ask("judge", several), strict=True):
        profile, status, headers, body, wall = case
        verdict = classify(WholeResponse(status, headers, body.encode()), PROFILES[profile], wall)

        assert told["again"] is isinstance(verdict, RetryLater), case
        assert ("mismatch" in told) is isinstance(verdict, Mismatched), case
        if isinstance(verdict, RetryLater):
            assert told.get("retryAfterS") == verdict.retry_after_s, case
        if isinstance(verdict, Mismatched):
            assert told["mismatch"]["detail"] == verdict.problem.detail, case
        if told["settled"]:
            assert verdict == Final(), case


@pytest.mark.parametrize("profile", ["oncekey", "ietf", "stripe"])
def test_our_own_refusals_are_understood(node: Node, profile: str) -> None:
    """Which of them end an intent: none where it may have been carried out and nobody said how."""
    mine = "stripe" if profile == "stripe" else "oncekey"

    def told(problem: Problem) -> Any:
        answer = render(problem, PROFILES[profile])
        lines = {name.decode(): value.decode() for name, value in answer.headers}
        body = (answer.body or b"").decode()
        return node.ask("judge", [[mine, answer.status, lines, body, WALL]])[0]

    assert told(refusals.mismatch(("amount",)))["mismatch"]["detail"]
    for passing in (refusals.contention(), refusals.store_unavailable(), refusals.unsettled(2.0)):
        assert told(passing)["again"]
    for kind in (Kind.OUTCOME_UNKNOWN, Kind.ANSWER_NOT_KEPT, Kind.STALE_ANSWER, Kind.TOO_OLD):
        assert told(Problem(kind, "no")) == {"again": False, "settled": False}
    for kind in (Kind.INVALID_KEY, Kind.MALFORMED_REQUEST, Kind.TOO_LARGE):
        assert told(Problem(kind, "no")) == {"again": False, "settled": True}


@pytest.mark.slow
@given(
    several=st.lists(
        st.one_of(
            st.sampled_from(
                [
                    *("0", "7", "1.5", " 3 ", "-5", "+5", "1e3", "soon", "", "9" * 40, "٣"),
                    "Tue, 14 Nov 2023 22:13:30 GMT",
                    "Tuesday, 14-Nov-23 22:13:30 GMT",
                    "Thursday, 01-Jan-70 00:00:00 GMT",
                    "Friday, 31-Dec-69 23:59:59 GMT",
                    "Tue Nov 14 22:13:30 2023",
                    "Wed Dec  6 22:13:30 2023",
                    "Fri, 31 Feb 2026 00:00:00 GMT",
                    "Fri, 31 Dec 9999 23:59:59 GMT",
                    "Fri, 31 Foo 2030 23:59:59 GMT",
                    "Fri, 31 Dec 2030 24:00:00 GMT",
                    "Fri, 31 Dec 2030 23:60:00 GMT",
                    "Fri, 31 Dec 2030 23:59:59 UTC",
                ]
            ),
            st.datetimes()
            .filter(lambda date: date.year > 100)
            .map(lambda date: f"{date:%a, %d %b %Y %H:%M:%S} GMT"),
            st.text(max_size=20),
        ),
        min_size=10,
    )
)
@hypothesis_settings
def test_retry_after_is_read_the_same_on_both_sides(node: Node, several: list[str]) -> None:
    told = node.ask("retryAfter", [[value, WALL] for value in several])

    assert told == [retry_after(value, WALL) for value in several]


@pytest.mark.slow
@given(wall=st.floats(0, 2e10), token=st.binary(min_size=16, max_size=16))
@hypothesis_settings
def test_keys_are_made_the_same_on_both_sides(node: Node, wall: float, token: bytes) -> None:
    assert node.ask("uuid7", [[wall, token.hex()]]) == [uuid7(wall, token)]


# --------------------------------------------------------------------- whatever the wire does

faults = st.lists(
    st.builds(
        Fault,
        kind=st.sampled_from(["drop", "status", "in-flight", "truncate"]),
        processed=st.booleans(),
        seconds=st.sampled_from([0.0, 0.25, 1.0, 4.5, 60.0]),
        status=st.sampled_from([500, 502, 503, 504, 408, 425, 429]),
        retry_after=retry_afters,
    ),
    max_size=14,
)


def as_data(fault: Fault) -> dict[str, Any]:
    headers = {} if fault.retry_after is None else {"retry-after": fault.retry_after}
    in_flight = fault.kind == "in-flight"
    return {
        "kind": fault.kind,
        "processed": fault.processed,
        "seconds": fault.seconds,
        "status": 409 if in_flight else fault.status,
        "headers": headers,
        "body": json.dumps(IN_FLIGHT if in_flight else {"detail": "sick"}),
    }


@pytest.mark.slow
@given(script=faults, chances=chances)
@hypothesis_settings
def test_one_effect_one_key_and_the_same_moments_as_in_python(
    node: Node, script: list[Fault], chances: list[float]
) -> None:
    retries = Retries(attempts_max=6, budget_s=60.0)
    told = node.ask(
        "deliver",
        {
            "requests": [{"body": '{"sku":"mug"}', "intent": "order-1"}],
            "faults": [as_data(fault) for fault in script],
            "chances": chances,
            "options": {"retries": {"attemptsMax": 6, "budgetS": 60, "attemptS": READ_S}},
        },
    )
    world = World(httpx2, list(script), chances, retries=retries)
    answer = None
    with contextlib.suppress(httpx2.TransportError):
        answer = world.post()

    [ending] = told["endings"]
    assert len(told["effects"]) <= 1, "one intent, two effects"
    assert len({key for _, key, _, _ in told["attempts"]}) == 1
    assert {body for _, _, body, _ in told["attempts"]} == {'{"sku":"mug"}'}
    assert told["time"] <= 60.0
    assert ending.get("status") == (None if answer is None else answer.status_code)
    begun = world.server.attempts[0][0]
    expected = [at - begun for at, _, _ in world.server.attempts]
    # Less than a clock tells apart: one side's begins at 0, the other's does not.
    assert [at for at, _, _, _ in told["attempts"]] == pytest.approx(expected, abs=1e-6)
    # The key is dropped with a final answer, and with nothing else.
    assert bool(told["unsettled"]) is (ending.get("status") != 201)
