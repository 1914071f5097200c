"""Stripe's clients for Python and Node, unmodified, against the API as a process of its own."""

from __future__ import annotations

import uuid
from contextlib import closing
from typing import Any

import pytest
import stripe

from payments.access.accounts import LOCAL_KEY
from tests.payments.acceptance.conftest import Shop, open_
from tests.payments.acceptance.sdk import PythonSdk, Refused, Sdk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CHARGE = {"amount": 2000, "currency": "eur", "source": "tok_visa"}
INTENT = {"amount": 1500, "currency": "usd", "payment_method": "pm_card_visa"}


def new_key() -> str:
    return uuid.uuid4().hex


def captured_amounts(shop: Shop, reference: str) -> list[int]:
    """What the network's own file says was taken for a charge."""
    return [amount for told, amount in shop.network.rows("capture") if told == reference]


def expect_refusal(sdk: Sdk, name: str, *ids: str, **said: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        sdk.ask(name, *ids, **said)
    return caught.value


# ------------------------------------------------------------------------------------- charges


def test_a_charge_is_made_found_and_listed(sdk: Sdk, shop: Shop) -> None:
    params = {**CHARGE, "description": "tea & ünïcode", "metadata": {"order": "1 2"}}
    made = sdk.ask("charges.create", params=params)
    assert made["status"] == "succeeded"
    assert made["paid"] is True
    assert made["description"] == "tea & ünïcode"
    assert made["metadata"] == {"order": "1 2"}
    assert made.headers["request-id"].startswith("req_")
    assert captured_amounts(shop, made["id"]) == [2000]
    assert sdk.ask("charges.retrieve", made["id"])["amount"] == 2000
    listed = sdk.ask("charges.list", params={"limit": 3})
    assert listed["data"][0]["id"] == made["id"]


def test_a_charge_is_authorised_first_and_captured_later(sdk: Sdk, shop: Shop) -> None:
    held = sdk.ask("charges.create", params={**CHARGE, "capture": False})
    assert held["captured"] is False
    assert captured_amounts(shop, held["id"]) == []
    captured = sdk.ask("charges.capture", held["id"], params={"amount": 1200})
    assert captured["captured"] is True
    assert captured["amount_captured"] == 1200
    assert captured_amounts(shop, held["id"]) == [1200]
    assert expect_refusal(sdk, "charges.capture", held["id"]).code == "charge_already_captured"


def test_a_charge_is_refunded_in_parts_and_never_more_than_it_was(sdk: Sdk) -> None:
    made = sdk.ask("charges.create", params=CHARGE)
    part = sdk.ask("refunds.create", params={"charge": made["id"], "amount": 500})
    assert part["status"] == "succeeded"
    too_much = expect_refusal(sdk, "refunds.create", params={"charge": made["id"], "amount": 1501})
    assert too_much.kind == "InvalidRequestError"
    rest = sdk.ask("refunds.create", params={"charge": made["id"]})
    assert rest["amount"] == 1500
    again = expect_refusal(sdk, "refunds.create", params={"charge": made["id"]})
    assert again.code == "charge_already_refunded"
    assert sdk.ask("charges.retrieve", made["id"])["refunded"] is True
    assert sdk.pages("refunds.list", {"charge": made["id"]}) == [rest["id"], part["id"]]


# ----------------------------------------------------------------------------- payment intents


def test_an_intent_is_made_then_confirmed(sdk: Sdk, shop: Shop) -> None:
    made = sdk.ask("payment_intents.create", params={"amount": 1500, "currency": "usd"})
    assert made["status"] == "requires_payment_method"
    paid = sdk.ask("payment_intents.confirm", made["id"], params={"payment_method": "pm_card_visa"})
    assert paid["status"] == "succeeded"
    assert paid["amount_received"] == 1500
    assert captured_amounts(shop, paid["latest_charge"]) == [1500]
    error = expect_refusal(sdk, "payment_intents.confirm", made["id"])
    assert error.code == "payment_intent_unexpected_state"


def test_an_intent_is_confirmed_at_once(sdk: Sdk) -> None:
    params = {**INTENT, "confirm": True, "automatic_payment_methods": {"enabled": True}}
    params["return_url"] = "https://shop.test/done"
    paid = sdk.ask("payment_intents.create", params=params)
    assert paid["status"] == "succeeded"
    assert sdk.ask("payment_intents.retrieve", paid["id"])["latest_charge"]


def test_an_intent_is_captured_by_hand(sdk: Sdk, shop: Shop) -> None:
    params = {**INTENT, "confirm": True, "capture_method": "manual"}
    held = sdk.ask("payment_intents.create", params=params)
    assert held["status"] == "requires_capture"
    assert captured_amounts(shop, held["latest_charge"]) == []
    done = sdk.ask("payment_intents.capture", held["id"], params={"amount_to_capture": 900})
    assert done["status"] == "succeeded"
    assert done["amount_received"] == 900
    assert captured_amounts(shop, held["latest_charge"]) == [900]


def test_an_intent_is_cancelled_before_and_after_its_card_was_asked(sdk: Sdk, shop: Shop) -> None:
    early = sdk.ask("payment_intents.create", params=INTENT)
    reason = {"cancellation_reason": "abandoned"}
    assert sdk.ask("payment_intents.cancel", early["id"], params=reason)["status"] == "canceled"
    params = {**INTENT, "confirm": True, "capture_method": "manual"}
    held = sdk.ask("payment_intents.create", params=params)
    assert sdk.ask("payment_intents.cancel", held["id"])["status"] == "canceled"
    voided = [reference for reference, _ in shop.network.rows("void")]
    assert held["latest_charge"] in voided


def test_an_intent_shows_its_charge_where_that_is_asked_for(sdk: Sdk) -> None:
    params = {**INTENT, "confirm": True, "expand": ["latest_charge"]}
    paid = sdk.ask("payment_intents.create", params=params)
    assert paid["latest_charge"]["amount_captured"] == 1500
    listed = sdk.ask("payment_intents.list", params={"expand": ["data.latest_charge"]})
    assert listed["data"][0]["latest_charge"]["id"] == paid["latest_charge"]["id"]


def test_intents_are_listed_and_refunded(sdk: Sdk) -> None:
    paid = sdk.ask("payment_intents.create", params={**INTENT, "confirm": True})
    listed = sdk.ask("payment_intents.list", params={"limit": 1})
    assert [each["id"] for each in listed["data"]] == [paid["id"]]
    back = sdk.ask("refunds.create", params={"payment_intent": paid["id"]})
    assert back["charge"] == paid["latest_charge"]


# -------------------------------------------------------------------- customers and their cards


def test_a_customer_lives_pays_with_a_kept_card_and_is_deleted(sdk: Sdk) -> None:
    person = sdk.ask("customers.create", params={"name": "A", "email": "a@shop.test"})
    changed = sdk.ask("customers.update", person["id"], params={"metadata": {"level": "gold"}})
    assert changed["metadata"] == {"level": "gold"}
    card = {"number": "4242424242424242", "exp_month": 12, "exp_year": 2034, "cvc": "123"}
    method = sdk.ask("payment_methods.create", params={"type": "card", "card": card})
    assert method["card"]["last4"] == "4242"
    sdk.ask("payment_methods.attach", method["id"], params={"customer": person["id"]})
    kept = sdk.pages("payment_methods.list", {"customer": person["id"]})
    assert kept == [method["id"]]
    params = {**INTENT, "customer": person["id"], "payment_method": method["id"], "confirm": True}
    paid = sdk.ask("payment_intents.create", params=params)
    assert paid["status"] == "succeeded"
    assert sdk.pages("charges.list", {"customer": person["id"]}) == [paid["latest_charge"]]
    assert sdk.ask("payment_methods.detach", method["id"])["customer"] is None
    assert sdk.ask("customers.delete", person["id"])["deleted"] is True
    assert sdk.ask("customers.retrieve", person["id"])["deleted"] is True


def test_auto_paging_finds_everything_once_newest_first(sdk: Sdk) -> None:
    email = f"{new_key()}@shop.test"
    made = [
        sdk.ask("customers.create", params={"email": email, "name": str(number)})["id"]
        for number in range(11)
    ]
    assert sdk.pages("customers.list", {"email": email, "limit": 3}) == made[::-1]
    backwards = sdk.pages("customers.list", {"email": email, "limit": 3, "ending_before": made[0]})
    assert backwards == made[1:]


# --------------------------------------------------------------------- declines and other errors


@pytest.mark.parametrize(
    ("source", "code", "decline_code"),
    [
        ("tok_chargeDeclined", "card_declined", "generic_decline"),
        ("tok_chargeDeclinedInsufficientFunds", "card_declined", "insufficient_funds"),
        ("tok_chargeDeclinedExpiredCard", "expired_card", "expired_card"),
        ("tok_chargeDeclinedIncorrectCvc", "incorrect_cvc", "incorrect_cvc"),
    ],
)
def test_a_decline_is_a_card_error_and_stays_one(
    sdk: Sdk, source: str, code: str, decline_code: str
) -> None:
    params, key = {**CHARGE, "source": source}, new_key()
    first = expect_refusal(sdk, "charges.create", params=params, key=key)
    again = expect_refusal(sdk, "charges.create", params=params, key=key)
    for error in (first, again):
        assert error.kind == "CardError"
        assert (error.status, error.code, error.decline_code) == (402, code, decline_code)
    assert first.message.endswith(again.message.partition(": ")[2])
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["original-request"] == first.headers["request-id"]


def test_a_declined_intent_can_be_paid_with_another_card(sdk: Sdk) -> None:
    made = sdk.ask("payment_intents.create", params={**INTENT, "payment_method": None})
    bad = {"payment_method": "pm_card_chargeDeclined"}
    error = expect_refusal(sdk, "payment_intents.confirm", made["id"], params=bad)
    assert error.kind == "CardError"
    asked = sdk.ask("payment_intents.retrieve", made["id"])
    assert asked["last_payment_error"]["decline_code"] == "generic_decline"
    good = {"payment_method": "pm_card_visa"}
    assert sdk.ask("payment_intents.confirm", made["id"], params=good)["status"] == "succeeded"


def test_one_key_is_one_charge_and_the_replay_says_so(sdk: Sdk, shop: Shop) -> None:
    key = new_key()
    first = sdk.ask("charges.create", params=CHARGE, key=key)
    again = sdk.ask("charges.create", params=CHARGE, key=key)
    assert first.headers["idempotency-key"] == key
    assert not first.is_replay
    assert again.is_replay
    assert again["id"] == first["id"]
    assert again.headers["original-request"] == first.headers["request-id"]
    assert again.headers["request-id"] != first.headers["request-id"]
    assert captured_amounts(shop, first["id"]) == [2000]


def test_a_key_with_other_parameters_or_another_path_is_an_idempotency_error(sdk: Sdk) -> None:
    key = new_key()
    sdk.ask("charges.create", params=CHARGE, key=key)
    other = expect_refusal(sdk, "charges.create", params={**CHARGE, "amount": 2001}, key=key)
    elsewhere = expect_refusal(sdk, "customers.create", params={"name": "A"}, key=key)
    for error in (other, elsewhere):
        assert (error.kind, error.status) == ("IdempotencyError", 400)
        assert error.headers["stripe-should-retry"] == "false"


def test_mistakes_name_the_parameter_and_spend_no_key(sdk: Sdk) -> None:
    key = new_key()
    error = expect_refusal(sdk, "charges.create", params={**CHARGE, "amount": "lots"}, key=key)
    assert (error.kind, error.status, error.param) == ("InvalidRequestError", 400, "amount")
    error = expect_refusal(sdk, "charges.create", params={**CHARGE, "colour": "red"}, key=key)
    assert error.param == "colour"
    assert not sdk.ask("charges.create", params=CHARGE, key=key).is_replay


def test_what_is_not_there_is_not_found(sdk: Sdk) -> None:
    error = expect_refusal(sdk, "charges.retrieve", "ch_nothing")
    assert (error.kind, error.status, error.code) == (
        "InvalidRequestError",
        404,
        "resource_missing",
    )


@pytest.mark.parametrize("name", ["python", "node"])
def test_a_wrong_key_is_an_authentication_error(shop: Shop, name: str) -> None:
    with closing(open_(name, shop.api.port, "sk_test_wrong")) as stranger:
        error = expect_refusal(stranger, "charges.create", params=CHARGE)
    assert (error.kind, error.status) == ("AuthenticationError", 401)


def test_too_much_is_a_rate_limit_error_that_is_not_retried(sdk: Sdk) -> None:
    """Over three calls a day can end once at most."""
    card = {"number": "4242424242424242", "exp_month": 12, "exp_year": 2034}
    errors = []
    for _ in range(3):
        try:
            sdk.ask("tokens.create", params={"card": card})
        except Refused as error:
            errors.append(error)
    assert errors
    assert all((each.kind, each.status) == ("RateLimitError", 429) for each in errors)
    assert all(int(each.headers["retry-after"]) >= 1 for each in errors)


# ------------------------------------------------------------------------ events, balance, types


def test_events_tell_what_happened(sdk: Sdk) -> None:
    made = sdk.ask("charges.create", params=CHARGE)
    told = sdk.ask("events.list", params={"type": "charge.succeeded", "limit": 1})
    [event] = told["data"]
    assert event["data"]["object"]["id"] == made["id"]
    assert sdk.ask("events.retrieve", event["id"])["type"] == "charge.succeeded"


def test_the_balance_grows_by_what_was_charged(sdk: Sdk) -> None:
    def available() -> int:
        amounts = sdk.ask("balance.retrieve")["available"]
        return sum(each["amount"] for each in amounts if each["currency"] == "eur")

    before = available()
    sdk.ask("charges.create", params=CHARGE)
    assert available() == before + 2000


def test_objects_become_the_clients_own_types(shop: Shop) -> None:
    sdk = PythonSdk(shop.api.port, LOCAL_KEY)
    v1 = sdk.client.v1
    person = v1.customers.create(params={"name": "A"})
    method = v1.payment_methods.attach(
        v1.payment_methods.create(params={"type": "card", "card": {"token": "tok_visa"}}).id,
        params={"customer": person.id},
    )
    intent = v1.payment_intents.create(
        params={
            "amount": 1500,
            "currency": "usd",
            "customer": person.id,
            "payment_method": method.id,
            "confirm": True,
        }
    )
    assert isinstance(intent.latest_charge, str)
    charge = v1.charges.retrieve(intent.latest_charge)
    refund = v1.refunds.create(params={"charge": charge.id})
    event = v1.events.list(params={"limit": 1}).data[0]
    types = {
        stripe.Customer: person,
        stripe.PaymentMethod: method,
        stripe.PaymentIntent: intent,
        stripe.Charge: charge,
        stripe.Refund: refund,
        stripe.Event: event,
        stripe.Balance: v1.balance.retrieve(),
        stripe.ListObject: v1.charges.list(),
    }
    assert all(isinstance(found, kind) for kind, found in types.items())
    assert method.card is not None
    assert method.card.last4 == "4242"
