"""Our client against Stripe's servers as they behave; and what Stripe's own clients do instead.

What is on record of those: they retry network errors, 409 and 5xx, twice; not 429, 408 or 425, nor
an answer that breaks off; they do not wait for Retry-After, and only obey Stripe-Should-Retry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from oncekey.client import Client, Counters, Retries, outcome_of
from oncekey.errors import Mismatch
from tests.client.stripe import (
    BROKEN,
    DECLINED,
    IN_USE,
    LOCK_TIMEOUT,
    RATE_LIMIT,
    Stripe,
    body_of,
    error,
    stripe,
)

QUICK = Retries(backoff_s=0.001, backoff_s_max=0.002)
AMOUNT = {"amount": "100", "currency": "eur"}


@pytest.fixture
def provider() -> Iterator[Stripe]:
    with stripe() as served:
        yield served


@pytest.fixture
def api(provider: Stripe) -> Iterator[Client]:
    with Client(base_url=provider.url, profile="stripe", retries=QUICK) as client:
        yield client


def charge(api: Client, **options: Any) -> Any:
    return api.post("/v1/charges", data=AMOUNT, **options)


@pytest.mark.parametrize(
    "turn",
    [
        "lost",
        ("refused", (409, {}, IN_USE)),
        ("refused", (409, {"Stripe-Should-Retry": "true"}, IN_USE)),
        ("refused", (429, {}, LOCK_TIMEOUT)),
        ("refused", (429, {"Retry-After": "0"}, RATE_LIMIT)),
        ("refused", (429, {"Stripe-Should-Retry": "true"}, LOCK_TIMEOUT)),
        ("refused", (500, {}, BROKEN)),
        ("refused", (503, {}, BROKEN)),
        ("refused", (400, {"Stripe-Should-Retry": "true"}, error("invalid_request_error"))),
    ],
    ids=str,
)
def test_what_passes_is_asked_for_again_and_charged_once(
    provider: Stripe, api: Client, turn: Any
) -> None:
    provider.turns = [turn, turn if turn != "lost" else "ok"]

    answer = charge(api)

    assert (answer.status_code, body_of(answer)["id"]) == (200, "ch_1")
    assert provider.charges == [AMOUNT]
    assert len(set(provider.keys)) == 1
    told = outcome_of(answer)
    assert told is not None
    assert told.replayed == (turn == "lost")
    assert told.attempts == (2 if turn == "lost" else 3)


@pytest.mark.parametrize(
    "answer",
    [
        (402, {"Stripe-Should-Retry": "false"}, DECLINED),
        (402, {}, DECLINED),
        (400, {}, error("invalid_request_error", "No such customer.")),
        (401, {}, error("invalid_request_error", "Invalid API Key.")),
        (500, {"Stripe-Should-Retry": "false"}, BROKEN),
        (409, {"Stripe-Should-Retry": "false"}, error("invalid_request_error")),
        (429, {"Stripe-Should-Retry": "false"}, RATE_LIMIT),
    ],
    ids=str,
)
def test_what_does_not_pass_is_the_caller_s_at_once(
    provider: Stripe, api: Client, answer: Any
) -> None:
    provider.turns = [("refused", answer)]

    got = charge(api)

    assert (got.status_code, body_of(got)) == (answer[0], answer[2])
    assert len(provider.keys) == 1


def test_a_500_that_is_kept_is_final_when_it_comes_back(provider: Stripe, api: Client) -> None:
    """Stripe cannot know what happened, and keeps it. A new attempt would bring nothing else."""
    provider.turns = [("kept", (500, {}, BROKEN))]

    answer = charge(api)

    told = outcome_of(answer)
    assert told is not None
    assert (answer.status_code, told.replayed, told.attempts) == (500, True, 2)
    assert told.gave_up is None
    assert provider.charges == []


def test_a_declined_card_stays_declined_under_its_key(provider: Stripe, api: Client) -> None:
    provider.turns = [("kept", (402, {}, DECLINED))]

    first, again = charge(api, key="order-17"), charge(api, key="order-17")

    assert [answer.status_code for answer in (first, again)] == [402, 402]
    told = outcome_of(again)
    assert told is not None
    assert told.replayed


def test_one_key_for_two_charges_is_raised(
    provider: Stripe, api: Client, caplog: pytest.LogCaptureFixture
) -> None:
    charge(api, key="order-17")
    with pytest.raises(Mismatch, match="came with other parameters") as raised:
        api.post("/v1/charges", data={**AMOUNT, "amount": "200"}, key="order-17")

    assert not raised.value.retryable
    assert provider.charges == [AMOUNT]
    assert "sent before with another request" in caplog.text


def test_another_order_of_the_same_parameters_is_the_same_request(
    provider: Stripe, api: Client, caplog: pytest.LogCaptureFixture
) -> None:
    charge(api, key="order-17")
    again = api.post("/v1/charges", data=dict(reversed(AMOUNT.items())), key="order-17")

    assert (again.status_code, len(provider.charges)) == (200, 1)
    assert not caplog.records


def test_in_the_end_the_caller_is_told_why(provider: Stripe) -> None:
    counters = Counters()
    provider.turns = [("refused", (409, {}, IN_USE))] * 9
    retries = Retries(attempts_max=5, backoff_s=0.001)
    with Client(base_url=provider.url, profile="stripe", retries=retries, hooks=[counters]) as api:
        answer = charge(api)

    told = outcome_of(answer)
    assert told is not None
    assert (answer.status_code, told.gave_up) == (409, "5 attempts were made")
    assert (counters.read().retries, counters.read().gave_up) == (4, 1)


def test_an_answer_that_breaks_off_is_fetched(provider: Stripe) -> None:
    """Where Stripe's own client for Python gives up, and has lost the key."""

    class Cutting(httpx2.HTTPTransport):
        cut = 1

        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            response = super().handle_request(request)
            if self.cut:
                self.cut -= 1
                response.close()
                raise httpx2.RemoteProtocolError("incomplete body")
            return response

    with Client(base_url=provider.url, profile="stripe", retries=QUICK, transport=Cutting()) as api:
        answer = charge(api)

    told = outcome_of(answer)
    assert told is not None
    assert (answer.status_code, told.replayed, len(provider.charges)) == (200, True, 1)
