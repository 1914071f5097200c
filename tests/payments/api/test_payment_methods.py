from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from payments import clock
from payments.api import schemas
from payments.money import orders
from payments.money.finisher import Finisher
from payments.storage import ids
from payments.storage.tables import charges
from tests.payments.api_client import Api

CARD = {"card[number]": "4242424242424242", "card[exp_month]": "4", "card[exp_year]": "2030"}


def test_a_token_stands_for_a_card(api: Api) -> None:
    token = api.create("tokens", CARD)
    schemas.Token.model_validate(token)
    assert token["card"]["last4"] == "4242"
    assert "4242424242424242" not in str(token)
    assert api.get(f"tokens/{token['id']}").json() == token
    method = api.create("payment_methods", {"type": "card", "card[token]": token["id"]})
    assert method["card"]["exp_year"] == 2030


def test_a_token_is_used_once_however_often_its_charge_is_retried(api: Api) -> None:
    token = api.create("tokens", CARD)["id"]
    said = {"amount": 500, "currency": "eur", "source": token}
    api.network.down = 1
    assert api.post("charges", said, token).status_code == 503
    assert api.post("charges", said, token).json()["paid"] is True
    assert api.get(f"tokens/{token}").json()["used"] is True
    spent = api.post_refused("charges", said)
    assert (spent["code"], spent["param"]) == ("token_already_used", "source")
    unspent = api.create("tokens", CARD)["id"]
    assert api.post_refused("charges", said | {"source": unspent, "customer": "cus_nobody"})
    assert api.get(f"tokens/{unspent}").json()["used"] is False


def test_a_method_is_attached_listed_and_detached(api: Api) -> None:
    customer = api.create("customers")["id"]
    method = api.create("payment_methods", {"type": "card", **CARD})
    schemas.PaymentMethod.model_validate(method)
    attached = api.create(f"payment_methods/{method['id']}/attach", {"customer": customer})
    assert attached["customer"] == customer
    assert api.get("payment_methods", customer=customer, type="card").json()["data"] == [attached]
    listed = api.get(f"customers/{customer}/payment_methods").json()
    assert (listed["data"], listed["url"]) == (
        [attached],
        f"/v1/customers/{customer}/payment_methods",
    )
    other = api.create("customers")["id"]
    assert api.post_refused(f"payment_methods/{method['id']}/attach", {"customer": other})
    said = {"amount": 500, "currency": "usd", "payment_method": method["id"], "confirm": "true"}
    assert api.post_refused("payment_intents", said)["param"] == "payment_method"
    assert api.create("payment_intents", said | {"customer": customer})["status"] == "succeeded"
    assert api.create(f"payment_methods/{method['id']}/detach")["customer"] is None
    assert api.post_refused(f"payment_methods/{method['id']}/detach")


def test_a_documented_method_becomes_the_accounts_own(api: Api) -> None:
    customer = api.create("customers")["id"]
    attached = api.create("payment_methods/pm_card_visa/attach", {"customer": customer})
    assert attached["id"] != "pm_card_visa"
    assert api.get(f"payment_methods/{attached['id']}").json() == attached


def test_a_method_is_changed(api: Api) -> None:
    method = api.create("payment_methods", {"type": "card", **CARD})
    changes = {"billing_details[name]": "Ada", "metadata[a]": "1"}
    changed = api.create(f"payment_methods/{method['id']}", changes)
    assert changed["billing_details"]["name"] == "Ada"
    assert changed["metadata"] == {"a": "1"}
    assert api.events("payment_method.updated")[0]["data"]["object"] == changed


def test_what_a_change_does_not_mention_stays(api: Api) -> None:
    where = {"billing_details[address][city]": "Ghent", "billing_details[email]": "a@b.be"}
    method = api.create("payment_methods", {"type": "card", **CARD, **where})
    path = f"payment_methods/{method['id']}"
    api.create(path, {"billing_details[name]": "Ada"})
    changed = api.create(path, {"billing_details[address][line1]": "Kouter 1"})["billing_details"]
    assert (changed["name"], changed["email"]) == ("Ada", "a@b.be")
    assert (changed["address"]["city"], changed["address"]["line1"]) == ("Ghent", "Kouter 1")
    nothing = {"billing_details[email]": "", "billing_details[address][city]": ""}
    emptied = api.create(path, nothing)["billing_details"]
    assert (emptied["email"], emptied["address"]["city"]) == (None, None)
    assert (emptied["name"], emptied["address"]["line1"]) == ("Ada", "Kouter 1")


def test_numbers_are_kept_but_never_told(api: Api) -> None:
    api.create("payment_methods", {"type": "card", **CARD})
    for path in ("payment_methods", "charges", "events"):
        assert "4242424242424242" not in api.get(path, limit=100).text


def test_what_is_wrong_is_named(api: Api) -> None:
    assert api.post_refused("tokens")["param"] == "card"
    assert api.post_refused("payment_methods", {"type": "cash"})["param"] == "type"
    wrong = CARD | {"card[exp_month]": "13"}
    assert api.post_refused("tokens", wrong)["param"] == "card[exp_month]"
    missing = api.post_refused("payment_methods", {"type": "card", "card[token]": "tok_nobody"})
    assert missing["param"] == "card[token]"


# ------------------------------------------------------------------------------- cards run out

NOVEMBER_2025 = int(datetime(2025, 11, 15, tzinfo=UTC).timestamp())
THIS_MONTH = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
LAST_MONTH = THIS_MONTH - timedelta(seconds=1)
PLACES: dict[str, tuple[str, dict[str, Any]]] = {
    "tokens": ("card", {}),
    "payment_methods": ("card", {"type": "card"}),
    "charges": ("source", {"amount": 500, "currency": "eur"}),
    "payment_intents": (
        "payment_method_data[card]",
        {"amount": 500, "currency": "eur", "confirm": "true", "payment_method_data[type]": "card"},
    ),
}


def at(monkeypatch: pytest.MonkeyPatch, moment: int) -> None:
    monkeypatch.setattr(clock, "now_s", lambda: moment)


def card(where: str, month: int, year: int) -> dict[str, Any]:
    said = {"number": "4242424242424242", "exp_month": month, "exp_year": year}
    return {f"{where}[{name}]": value for name, value in said.items()}


@pytest.mark.parametrize(
    ("month", "year", "part"), [(12, 2024, "year"), (10, 2025, "month"), (11, 2025, None)]
)
@pytest.mark.parametrize("path", PLACES)
def test_a_card_whose_expiry_is_past_is_not_taken(
    api: Api, monkeypatch: pytest.MonkeyPatch, path: str, month: int, year: int, part: str | None
) -> None:
    at(monkeypatch, NOVEMBER_2025)
    where, more = PLACES[path]
    rows = api.count("events"), api.count(path)
    said = card(where, month, year) | more
    if part is None:
        assert api.create(path, said)
        return
    error = api.post_refused(path, said, 402)
    assert (error["type"], error["code"]) == ("card_error", f"invalid_expiry_{part}")
    assert error["param"] == f"exp_{part}"
    assert (api.count("events"), api.count(path)) == rows


def test_what_was_typed_wrong_is_put_right_under_the_same_key(api: Api) -> None:
    key = f"typed-{ids.new('x')}"
    assert api.post("tokens", card("card", 12, 1999), key).status_code == 402
    assert api.post("tokens", card("card", 12, 2099), key).status_code == 200


def test_a_card_that_ran_out_since_is_declined(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as then:
        at(then, int(LAST_MONTH.timestamp()))
        said = {"type": "card", **card("card", LAST_MONTH.month, LAST_MONTH.year)}
        method = api.create("payment_methods", said)["id"]
    asked = len(api.network.rows("authorisation"))
    paying = {"amount": 500, "currency": "eur", "payment_method": method, "confirm": "true"}
    error = api.post_refused("payment_intents", paying, 402)
    assert (error["code"], error["decline_code"]) == ("expired_card", "expired_card")
    assert error["payment_intent"]["status"] == "requires_payment_method"
    assert api.get(f"charges/{error['charge']}").json()["status"] == "failed"
    assert len(api.network.rows("authorisation")) == asked
    with api.database.read() as connection:
        row = connection.execute(sa.select(charges).where(charges.c.id == error["charge"])).one()
    assert orders.of_charge(row._mapping)["expired"], "whoever had continued it decides the same"


def test_a_charge_that_was_begun_in_time_is_ended_after_it(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network has taken the money, and only the answer is missing."""
    key = ids.new("x")
    said = {"amount": 777, "currency": "eur"}
    said |= card("source", LAST_MONTH.month, LAST_MONTH.year)
    with monkeypatch.context() as then:
        at(then, int(LAST_MONTH.timestamp()))
        api.network.down = 1
        assert api.post("charges", said, key).status_code == 503
    assert api.post("charges", said, key).json()["paid"] is True


def test_a_charge_by_a_release_that_did_not_look_is_ended_as_the_network_says(
    fresh: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has asked the network, which has taken the money, and only the answer is missing."""
    said = {"amount": 777, "currency": "eur"}
    said |= card("source", LAST_MONTH.month, LAST_MONTH.year)
    with monkeypatch.context() as then:
        at(then, int(LAST_MONTH.timestamp()))
        fresh.network.down = 1
        assert fresh.post("charges", said, "old").status_code == 503
    with fresh.database.begin() as connection:
        connection.execute(charges.update().values(created=clock.now_s()))
    assert Finisher(fresh.database, fresh.network, patience_s=-1).run_once() == 1
    assert fresh.post("charges", said, "old").json()["paid"] is True


def test_a_server_of_an_older_release_can_go_on_with_what_this_one_began(fresh: Api) -> None:
    """It hands the whole order to the network, and knows these names alone."""
    fresh.charge(500)
    with fresh.database.read() as connection:
        row = connection.execute(sa.select(charges)).one()
    names = {"reference", "key", "card", "amount", "currency", "capture"}
    assert orders.of_charge(row._mapping).keys() == names
