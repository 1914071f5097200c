from typing import Any

import pytest

from payments.api import schemas
from tests.payments.api_client import Api

PAID = {"amount": 900, "currency": "usd", "payment_method": "pm_card_visa", "confirm": "true"}


def test_objects_stand_in_place_of_their_ids(api: Api) -> None:
    customer = api.create("customers", {"name": "Ada"})
    said = PAID | {"customer": customer["id"], "expand[]": ["latest_charge", "customer"]}
    paid = api.create("payment_intents", said)
    schemas.PaymentIntent.model_validate(paid)
    assert paid["customer"] == customer
    assert (paid["latest_charge"]["object"], paid["latest_charge"]["amount"]) == ("charge", 900)
    query = {"expand[]": "latest_charge.customer"}
    found = api.get(f"payment_intents/{paid['id']}", **query).json()
    assert found["latest_charge"]["customer"] == customer
    assert found["customer"] == customer["id"]
    refund = api.create("refunds", {"payment_intent": paid["id"], "expand[]": "charge"})
    assert refund["charge"]["amount_refunded"] == 900


def test_lists_are_expanded_item_by_item(api: Api) -> None:
    api.create("payment_intents", PAID)
    found = api.get("charges", limit=2, **{"expand[]": "data.payment_intent"}).json()["data"]
    assert found[0]["payment_intent"]["object"] == "payment_intent"


def test_a_replay_is_expanded_as_the_first_answer_was(api: Api) -> None:
    said = PAID | {"expand[]": "latest_charge"}
    assert api.create("payment_intents", said, "expand-1") == api.create(
        "payment_intents", said, "expand-1"
    )


@pytest.mark.parametrize("path", ["amount", "latest_charge.id", "customer.customer", "", "a" * 100])
def test_what_cannot_be_expanded_is_refused_before_anything_is_done(api: Api, path: str) -> None:
    before = api.count("charges"), len(api.network.rows("authorisation"))
    assert api.post_refused("payment_intents", PAID | {"expand[]": path})["param"] == "expand"
    assert (api.count("charges"), len(api.network.rows("authorisation"))) == before
    assert api.get("payment_intents", **{"expand[]": path}).status_code == 400


def test_what_a_look_does_not_know_is_refused(api: Api) -> None:
    charge = api.charge()["id"]
    for path in (f"charges/{charge}", "balance", "events/evt_1"):
        answer = api.get(path, surprise=1)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "surprise")


def test_no_route_passes_over_what_it_cannot_expand(api: Api) -> None:
    customer = api.create("customers", {"name": "Ada"})
    method = api.create("payment_methods/pm_card_visa/attach", {"customer": customer["id"]})
    said = {"url": "https://example.com/", "enabled_events[]": "charge.failed"}
    endpoint = api.create("webhook_endpoints", said)["id"]
    event = api.get("events", limit=1).json()["data"][0]["id"]
    card = {"card[number]": "4242424242424242", "card[exp_month]": 4, "card[exp_year]": 2034}
    posts: dict[str, dict[str, Any]] = {
        "customers": {"name": "Grace"},
        f"customers/{customer['id']}": {"name": "Grace"},
        "tokens": card,
        "payment_methods": card | {"type": "card"},
        f"payment_methods/{method['id']}/detach": {},
        "webhook_endpoints": said,
        f"webhook_endpoints/{endpoint}": {"disabled": "true"},
        f"webhook_endpoints/{endpoint}/roll_secret": {},
        f"events/{event}/retry": {},
    }
    seen = ("customers", "payment_methods", "webhook_endpoints", "events")
    before = [api.get(path).json() for path in seen]
    nothing = {"expand[]": "nothing"}
    for path, given in posts.items():
        assert api.post_refused(path, given | nothing)["param"] == "expand", path
    assert api.get("balance", **nothing).status_code == 400
    for path in (f"customers/{customer['id']}", f"webhook_endpoints/{endpoint}"):
        assert api.client.delete(f"/v1/{path}", params=nothing).status_code == 400
    assert [api.get(path).json() for path in seen] == before
    assert api.client.delete(f"/v1/webhook_endpoints/{endpoint}").status_code == 200
