from typing import Any

import pytest

from payments.api import schemas
from payments.webhooks import events
from tests.payments.api_client import Api


def test_an_event_names_the_request_that_caused_it(api: Api) -> None:
    said = {"amount": 900, "currency": "eur", "source": "tok_visa"}
    response = api.post("charges", said, "event-1")
    event = api.events("charge.succeeded")[0]
    schemas.Event.model_validate(event)
    assert event["request"] == {
        "id": response.headers["request-id"],
        "idempotency_key": "event-1",
    }
    assert event["pending_webhooks"] == 0
    api.charge()
    assert api.events("charge.succeeded")[0]["request"]["idempotency_key"] is None
    assert api.get(f"events/{event['id']}").json() == event
    assert api.get("events/evt_nobody").status_code == 404


@pytest.mark.slow
@pytest.mark.parametrize("id_", ["%00", "%ff", "evt_%C3%A9", "a" * 300])
def test_what_no_database_takes_is_no_id(fresh: Api, id_: str) -> None:
    for path in ("charges", "customers", "events", "payment_methods", "webhook_endpoints"):
        assert fresh.client.get(f"/v1/{path}/{id_}").status_code == 404, path


def test_a_replay_causes_no_event(api: Api) -> None:
    said = {"amount": 900, "currency": "eur", "source": "tok_visa"}
    for _ in range(3):
        assert api.post("charges", said, "event-2").status_code == 200
    found = [each["request"]["idempotency_key"] for each in api.events("charge.succeeded")]
    assert found.count("event-2") == 1


def test_events_are_listed_by_their_types(api: Api) -> None:
    api.create("customers")
    api.charge()
    kinds = {"types[0]": "customer.created", "types[1]": "charge.succeeded"}
    found = api.get("events", limit=100, **kinds).json()["data"]
    assert {each["type"] for each in found} == {"customer.created", "charge.succeeded"}


def test_a_star_stands_for_all_types_that_begin_so(api: Api) -> None:
    api.charge()
    found = api.get("events", limit=100, type="charge.*").json()["data"]
    assert {"charge.pending", "charge.succeeded"} <= {each["type"] for each in found}
    assert all(each["type"].startswith("charge.") for each in found)
    assert api.get("events", type="char").json()["data"] == []


def test_an_endpoint_wants_all_or_what_it_names() -> None:
    assert events.wants(["*"], "charge.succeeded")
    assert events.wants(["charge.failed", "charge.succeeded"], "charge.succeeded")
    assert not events.wants(["charge.failed"], "charge.succeeded")


def test_every_change_of_state_is_told(api: Api) -> None:
    said = {"amount": 700, "currency": "eur", "capture_method": "manual"}
    intent = api.create("payment_intents", said)["id"]
    api.create(f"payment_intents/{intent}", {"payment_method": "pm_card_visa"})
    charge = api.create(f"payment_intents/{intent}/confirm")["latest_charge"]
    api.create(f"payment_intents/{intent}/capture")
    refund = api.create("refunds", {"charge": charge})["id"]
    told = api.get("events", limit=100).json()["data"]
    mine = [
        each for each in reversed(told) if each["data"]["object"]["id"] in (intent, charge, refund)
    ]
    assert [(each["type"], _state(each["data"]["object"])) for each in mine] == [
        ("payment_intent.created", "requires_payment_method"),
        ("payment_intent.updated", "requires_confirmation"),
        ("charge.pending", "pending"),
        ("payment_intent.processing", "processing"),
        ("charge.succeeded", "held"),
        ("payment_intent.amount_capturable_updated", "requires_capture"),
        ("charge.captured", "succeeded"),
        ("payment_intent.succeeded", "succeeded"),
        ("refund.created", "pending"),
        ("charge.refunded", "refunded"),
        ("refund.updated", "succeeded"),
    ]


def _state(shown: dict[str, Any]) -> str:
    if shown.get("refunded"):
        return "refunded"
    if shown["object"] == "charge" and shown["status"] == "succeeded" and not shown["captured"]:
        return "held"
    return str(shown["status"])
