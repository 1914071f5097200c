from typing import Any

import pytest

from payments.api import schemas
from tests.payments.api_client import Api


def test_a_charge_is_paid_posted_and_told(api: Api) -> None:
    made = api.charge(2000, description="tea", **{"metadata[order]": "17"})
    schemas.Charge.model_validate(made)
    assert (made["status"], made["paid"], made["captured"]) == ("succeeded", True, True)
    assert (made["amount"], made["amount_captured"], made["currency"]) == (2000, 2000, "eur")
    assert made["metadata"] == {"order": "17"}
    assert made["payment_method_details"]["card"]["last4"] == "4242"
    assert (made["id"], 2000) in api.network.rows("capture")
    assert api.get(f"charges/{made['id']}").json() == made
    event = api.events("charge.succeeded")[0]
    assert event["data"]["object"] == made
    schemas.Event.model_validate(event)


def test_json_says_the_same_as_a_form(api: Api) -> None:
    said = {"amount": 700, "currency": "usd", "source": "tok_amex", "metadata": {"n": 1, "b": True}}
    made = api.post_json("charges", said).json()
    assert (made["amount"], made["metadata"]) == (700, {"n": "1", "b": "true"})


def test_a_retry_gets_the_same_charge(api: Api) -> None:
    said = {"amount": 900, "currency": "eur", "source": "tok_visa"}
    first, again = (
        api.post("charges", said, "charge-1"),
        api.post("charges", said, "charge-1"),
    )
    assert again.content == first.content
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    assert first.headers["original-request"] == first.headers["request-id"]
    assert again.headers["original-request"] == first.headers["request-id"]
    assert again.headers["request-id"] != first.headers["request-id"]
    assert len([row for row in api.network.rows("capture") if row[0] == first.json()["id"]]) == 1


def test_the_same_key_with_other_parameters_is_refused(api: Api) -> None:
    said = {"amount": 900, "currency": "eur", "source": "tok_visa"}
    assert api.post("charges", said, "charge-2").status_code == 200
    other = api.post("charges", said | {"amount": 901}, "charge-2")
    assert (other.status_code, other.json()["error"]["type"]) == (400, "idempotency_error")
    assert other.headers["stripe-should-retry"] == "false"
    assert api.post("refunds", {"charge": "ch_1"}, "charge-2").status_code == 400


@pytest.mark.parametrize(
    ("path", "wrong", "param"),
    [
        ("charges", {"customer": "cus_nobody"}, "customer"),
        ("charges", {"source": "tok_nobody"}, "source"),
        ("payment_intents", {"payment_method": "pm_nobody", "confirm": "true"}, "payment_method"),
        ("refunds", {"charge": "ch_nobody"}, "charge"),
    ],
)
def test_naming_what_is_not_there_leaves_the_key_unused(
    api: Api, path: str, wrong: dict[str, str], param: str
) -> None:
    said: dict[str, Any] = {"amount": 900, "currency": "eur"}
    said = {"charge": api.charge(900)["id"]} if path == "refunds" else said
    key = f"corrected-{path}-{param}"
    refused = api.post(path, said | wrong, key)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    right = said | ({"source": "tok_visa"} if path == "charges" else {})
    assert api.post(path, right, key).status_code == 200


@pytest.mark.parametrize(
    ("token", "code", "decline_code"),
    [
        ("tok_chargeDeclined", "card_declined", "generic_decline"),
        ("tok_chargeDeclinedInsufficientFunds", "card_declined", "insufficient_funds"),
        ("tok_chargeDeclinedLostCard", "card_declined", "lost_card"),
        ("tok_chargeDeclinedStolenCard", "card_declined", "stolen_card"),
        ("tok_chargeDeclinedExpiredCard", "expired_card", "expired_card"),
        ("tok_chargeDeclinedIncorrectCvc", "incorrect_cvc", "incorrect_cvc"),
        ("tok_chargeDeclinedProcessingError", "processing_error", "processing_error"),
    ],
)
def test_a_decline_is_a_result_kept_and_replayed(
    api: Api, token: str, code: str, decline_code: str
) -> None:
    said = {"amount": 900, "currency": "eur", "source": token}
    first, again = api.post("charges", said, token), api.post("charges", said, token)
    error = first.json()["error"]
    schemas.Error.model_validate(first.json())
    assert (first.status_code, error["type"]) == (402, "card_error")
    assert (error["code"], error["decline_code"]) == (code, decline_code)
    assert again.content == first.content
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["stripe-should-retry"] == "false"
    failed = api.get(f"charges/{error['charge']}").json()
    assert (failed["status"], failed["paid"], failed["failure_code"]) == ("failed", False, code)
    assert failed["amount_captured"] == 0


def test_what_is_only_authorised_can_be_captured_once_and_in_part(api: Api) -> None:
    held = api.charge(2000, capture="false")
    assert (held["captured"], held["amount_captured"], held["paid"]) == (False, 0, True)
    assert api.post_refused(f"charges/{held['id']}/capture", {"amount": 2001})["param"] == "amount"
    taken = api.create(f"charges/{held['id']}/capture", {"amount": 1500})
    assert (taken["captured"], taken["amount_captured"]) == (True, 1500)
    again = api.post_refused(f"charges/{held['id']}/capture")
    assert again["code"] == "charge_already_captured"
    assert [row for row in api.network.rows("capture") if row[0] == held["id"]] == [
        (held["id"], 1500)
    ]


@pytest.mark.parametrize(("said", "captured"), [("False", False), ("True", True)])
def test_truth_is_understood_as_older_clients_for_python_write_it(
    api: Api, said: str, captured: bool
) -> None:
    assert api.charge(900, capture=said)["captured"] is captured


def test_a_charge_that_failed_is_not_captured(api: Api) -> None:
    said = {"amount": 900, "currency": "eur", "source": "tok_chargeDeclined", "capture": "false"}
    failed = api.post_refused("charges", said, 402)["charge"]
    assert api.post_refused(f"charges/{failed}/capture")["code"] == "charge_not_authorised"


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"amount": ""}, "amount", "parameter_invalid_integer"),
        ({"amount": None}, "amount", "parameter_missing"),
        ({"amount": "-5"}, "amount", "amount_too_small"),
        ({"amount": "0"}, "amount", "amount_too_small"),
        ({"amount": "10"}, "amount", "amount_too_small"),
        ({"amount": "100000000"}, "amount", "amount_too_large"),
        ({"amount": "1e3"}, "amount", "parameter_invalid_integer"),
        ({"amount": "20.00"}, "amount", "parameter_invalid_integer"),
        ({"amount": "9" * 5000}, "amount", "parameter_invalid_integer"),
        ({"currency": "zzz"}, "currency", "parameter_invalid"),
        ({"currency": None}, "currency", "parameter_missing"),
        ({"capture": "perhaps"}, "capture", "parameter_invalid"),
        ({"capture": "1"}, "capture", "parameter_invalid"),
        ({"surprise": "1"}, "surprise", "parameter_unknown"),
        ({"source": "tok_unknown"}, "source", "resource_missing"),
        ({"source": None}, "source", "parameter_missing"),
        ({"source": None, "customer": "cus_nobody"}, "customer", "resource_missing"),
        ({"source[number]": "4242424242424242", "source": None}, "source[exp_month]", None),
        ({"metadata[a]": "x" * 501}, "metadata[a]", None),
        ({f"metadata[{'k' * 41}]": "x"}, f"metadata[{'k' * 41}]", None),
        ({"metadata": "x"}, "metadata", None),
        ({"description": "a\x00b"}, "description", None),
        ({"receipt_email": "nobody"}, "receipt_email", None),
    ],
)
def test_what_is_wrong_is_named(
    api: Api, changes: dict[str, Any], param: str, code: str | None
) -> None:
    said = {"amount": "2000", "currency": "usd", "source": "tok_visa"} | changes
    error = api.post_refused(
        "charges", {name: said[name] for name in said if said[name] is not None}
    )
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert code is None or error["code"] == code
    assert f"{param}: Invalid {param}" not in error["message"]


def test_a_wrong_request_leaves_nothing_and_its_key_unused(api: Api) -> None:
    rows = api.count("charges"), api.count("events"), api.count("ledger_entries")
    said = {"amount": "2000", "currency": "usd", "source": "tok_visa"}
    assert api.post("charges", said | {"foo": "1"}, "charge-3").status_code == 400
    assert (api.count("charges"), api.count("events"), api.count("ledger_entries")) == rows
    assert api.post("charges", said, "charge-3").status_code == 200


def test_only_test_cards_are_taken(api: Api) -> None:
    card = {"source[number]": "4012888888881881", "source[exp_month]": 1, "source[exp_year]": 2030}
    error = api.post_refused("charges", {"amount": 500, "currency": "usd", **card})
    assert (error["param"], error["code"]) == ("source[number]", "incorrect_number")
    card["source[number]"] = "4242 4242 4242 4242"
    assert api.create("charges", {"amount": 500, "currency": "usd", **card})["paid"]


def test_metadata_is_changed_value_by_value(api: Api) -> None:
    made = api.charge(500, **{"metadata[a]": "1", "metadata[b]": "2"})
    changes = {"metadata[a]": "", "metadata[c]": "3", "description": "new"}
    changed = api.create(f"charges/{made['id']}", changes)
    assert (changed["metadata"], changed["description"]) == ({"b": "2", "c": "3"}, "new")
    many = {f"metadata[k{number}]": "x" for number in range(49)}
    assert (
        api.post_refused(f"charges/{made['id']}", many)["param"] == "metadata"
    )  # 51 with the others
    assert api.get(f"charges/{made['id']}").json() == changed
    assert api.create(f"charges/{made['id']}", {"metadata": ""})["metadata"] == {}
    assert api.post_refused(f"charges/{made['id']}", {"amount": 1})["code"] == "parameter_unknown"


def test_a_charge_of_nobody_is_not_found(api: Api) -> None:
    for path in ("charges/ch_nobody", "charges/" + "x" * 3000, "charges/é"):
        response = api.get(path)
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "resource_missing"
    assert api.get("charges/%00").status_code == 404  # no path of the API, whatever follows
    assert api.post_refused("charges/ch_nobody/capture", status=404)["param"] == "id"
    assert api.post_refused("charges/ch_nobody", {"description": "x"}, 404)["param"] == "id"


def test_the_network_is_asked_again_under_the_same_key(api: Api) -> None:
    """Its answer is lost: the client is told to retry, and the retry does not charge again."""
    said = {"amount": 1234, "currency": "eur", "source": "tok_visa"}
    api.network.down = 1
    lost = api.post("charges", said, "charge-4")
    assert (lost.status_code, lost.json()["error"]["type"]) == (503, "api_error")
    again = api.post("charges", said, "charge-4")
    assert again.status_code == 200
    assert [row for row in api.network.rows("capture") if row[1] == 1234] == [
        (again.json()["id"], 1234)
    ]
