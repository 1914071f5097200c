from typing import Any

import pytest

from payments.api import schemas
from tests.payments.api_client import Api

CONFIRMED = {"amount": 1500, "currency": "usd", "payment_method": "pm_card_visa", "confirm": "true"}


def test_an_intent_is_created_confirmed_and_paid(api: Api) -> None:
    intent = api.create("payment_intents", {"amount": 1500, "currency": "usd"})
    schemas.PaymentIntent.model_validate(intent)
    assert (intent["status"], intent["latest_charge"]) == ("requires_payment_method", None)
    paid = api.create(f"payment_intents/{intent['id']}/confirm", {"payment_method": "pm_card_visa"})
    assert (paid["status"], paid["amount_received"]) == ("succeeded", 1500)
    charge = api.get(f"charges/{paid['latest_charge']}").json()
    assert (charge["payment_intent"], charge["amount_captured"]) == (intent["id"], 1500)
    assert charge["payment_method"] == paid["payment_method"]
    assert api.get(f"payment_intents/{intent['id']}").json() == paid
    assert api.events("payment_intent.succeeded")[0]["data"]["object"] == paid


def test_creating_and_confirming_in_one_request(api: Api) -> None:
    paid = api.create("payment_intents", CONFIRMED | {"metadata[a]": "b"}, "intent-1")
    again = api.post("payment_intents", CONFIRMED | {"metadata[a]": "b"}, "intent-1")
    assert again.json() == paid
    assert again.headers["idempotent-replayed"] == "true"
    assert paid["status"] == "succeeded"
    charges = api.get("charges", payment_intent=paid["id"]).json()["data"]
    assert [charge["id"] for charge in charges] == [paid["latest_charge"]]


def test_a_declined_intent_waits_for_another_card(api: Api) -> None:
    intent = api.create("payment_intents", {"amount": 1500, "currency": "usd"})
    path = f"payment_intents/{intent['id']}/confirm"
    declined = api.post_refused(path, {"payment_method": "pm_card_visa_chargeDeclined"}, 402)
    assert declined["code"] == "card_declined"
    schemas.PaymentIntent.model_validate(declined["payment_intent"])
    assert declined["payment_intent"]["status"] == "requires_payment_method"
    assert declined["payment_intent"]["last_payment_error"]["charge"] == declined["charge"]
    paid = api.create(path, {"payment_method": "pm_card_mastercard"})
    assert (paid["status"], paid["last_payment_error"]) == ("succeeded", None)
    assert len(api.get("charges", payment_intent=intent["id"]).json()["data"]) == 2


def test_an_intent_is_paid_once(api: Api) -> None:
    paid = api.create("payment_intents", CONFIRMED)
    for verb in ("confirm", "capture", "cancel"):
        error = api.post_refused(f"payment_intents/{paid['id']}/{verb}")
        assert error["code"] == "payment_intent_unexpected_state"
    assert len([row for row in api.network.rows("capture") if row[0] == paid["latest_charge"]]) == 1


def test_an_authorised_intent_is_captured_in_part(api: Api) -> None:
    held = api.create("payment_intents", CONFIRMED | {"capture_method": "manual"})
    assert (held["status"], held["amount_capturable"]) == ("requires_capture", 1500)
    path = f"payment_intents/{held['id']}/capture"
    assert api.post_refused(path, {"amount_to_capture": 1501})["param"] == "amount_to_capture"
    paid = api.create(path, {"amount_to_capture": 1000})
    assert (paid["status"], paid["amount_received"]) == ("succeeded", 1000)
    assert paid["amount_capturable"] == 0
    assert api.post_refused(f"charges/{held['latest_charge']}/capture")["type"] == (
        "invalid_request_error"
    )


def test_an_authorised_intent_is_cancelled_and_its_hold_let_go(api: Api) -> None:
    held = api.create("payment_intents", CONFIRMED | {"capture_method": "manual"})
    gone = api.create(
        f"payment_intents/{held['id']}/cancel", {"cancellation_reason": "requested_by_customer"}
    )
    assert (gone["status"], gone["cancellation_reason"]) == ("canceled", "requested_by_customer")
    assert gone["canceled_at"] >= held["created"]
    assert held["latest_charge"] in [reference for reference, _ in api.network.rows("void")]
    assert api.post_refused(f"payment_intents/{held['id']}/capture")
    assert api.post_refused("refunds", {"payment_intent": held["id"]})


def test_an_open_intent_is_cancelled_without_the_network(api: Api) -> None:
    intent = api.create("payment_intents", {"amount": 1500, "currency": "usd"})
    before = len(api.network.rows("void"))
    assert api.create(f"payment_intents/{intent['id']}/cancel")["status"] == "canceled"
    assert len(api.network.rows("void")) == before
    assert api.events("payment_intent.canceled")[0]["data"]["object"]["id"] == intent["id"]


def test_an_open_intent_is_changed(api: Api) -> None:
    intent = api.create("payment_intents", {"amount": 1500, "currency": "usd"})
    path = f"payment_intents/{intent['id']}"
    changes = {"amount": 1600, "payment_method": "pm_card_visa", "metadata[a]": "b"}
    changed = api.create(path, changes)
    assert (changed["amount"], changed["status"]) == (1600, "requires_confirmation")
    assert api.create(f"{path}/confirm")["amount_received"] == 1600
    assert api.post_refused(path, {"amount": 1700})["code"] == "payment_intent_unexpected_state"
    assert api.create(path, {"metadata[a]": "c"})["metadata"] == {"a": "c"}


@pytest.mark.parametrize(
    ("said", "param"),
    [
        ({"amount": 1500, "currency": "usd", "confirm": "true"}, "payment_method"),
        ({"amount": 10, "currency": "usd"}, "amount"),
        (CONFIRMED | {"payment_method": "pm_nobody"}, "payment_method"),
        (CONFIRMED | {"customer": "cus_nobody"}, "customer"),
        (CONFIRMED | {"capture_method": "never"}, "capture_method"),
        (CONFIRMED | {"payment_method_types[]": "cash"}, "payment_method_types[0]"),
        (CONFIRMED | {"payment_method_data[type]": "cash"}, "payment_method_data[type]"),
    ],
)
def test_what_is_wrong_is_named(api: Api, said: dict[str, Any], param: str) -> None:
    assert api.post_refused("payment_intents", said)["param"] == param


def test_data_given_on_the_way_becomes_a_payment_method(api: Api) -> None:
    data = {
        "payment_method_data[type]": "card",
        "payment_method_data[card][number]": "5555555555554444",
        "payment_method_data[card][exp_month]": "3",
        "payment_method_data[card][exp_year]": "2031",
        "payment_method_data[billing_details][name]": "Ada",
    }
    paid = api.create(
        "payment_intents", {"amount": 1500, "currency": "usd", "confirm": "true", **data}
    )
    method = api.get(f"payment_methods/{paid['payment_method']}").json()
    assert (method["card"]["brand"], method["card"]["exp_year"]) == ("mastercard", 2031)
    assert method["billing_details"]["name"] == "Ada"
