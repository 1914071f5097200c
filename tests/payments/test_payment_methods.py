from payments import shapes
from tests.payments.api import Api

CARD = {"card[number]": "4242424242424242", "card[exp_month]": "4", "card[exp_year]": "2030"}


def test_a_token_stands_for_a_card(api: Api) -> None:
    token = api.made("tokens", CARD)
    shapes.Token.model_validate(token)
    assert token["card"]["last4"] == "4242"
    assert "4242424242424242" not in str(token)
    assert api.get(f"tokens/{token['id']}").json() == token
    method = api.made("payment_methods", {"type": "card", "card[token]": token["id"]})
    assert method["card"]["exp_year"] == 2030


def test_a_token_is_used_once_however_often_its_charge_is_retried(api: Api) -> None:
    token = api.made("tokens", CARD)["id"]
    said = {"amount": 500, "currency": "eur", "source": token}
    api.network.down = 1
    assert api.post("charges", said, token).status_code == 503
    assert api.post("charges", said, token).json()["paid"] is True
    assert api.get(f"tokens/{token}").json()["used"] is True
    spent = api.refused("charges", said)
    assert (spent["code"], spent["param"]) == ("token_already_used", "source")
    unspent = api.made("tokens", CARD)["id"]
    assert api.refused("charges", said | {"source": unspent, "customer": "cus_nobody"})
    assert api.get(f"tokens/{unspent}").json()["used"] is False


def test_a_method_is_attached_listed_and_detached(api: Api) -> None:
    customer = api.made("customers")["id"]
    method = api.made("payment_methods", {"type": "card", **CARD})
    shapes.PaymentMethod.model_validate(method)
    attached = api.made(f"payment_methods/{method['id']}/attach", {"customer": customer})
    assert attached["customer"] == customer
    assert api.get("payment_methods", customer=customer, type="card").json()["data"] == [attached]
    listed = api.get(f"customers/{customer}/payment_methods").json()
    assert (listed["data"], listed["url"]) == (
        [attached],
        f"/v1/customers/{customer}/payment_methods",
    )
    other = api.made("customers")["id"]
    assert api.refused(f"payment_methods/{method['id']}/attach", {"customer": other})
    said = {"amount": 500, "currency": "usd", "payment_method": method["id"], "confirm": "true"}
    assert api.refused("payment_intents", said)["param"] == "payment_method"
    assert api.made("payment_intents", said | {"customer": customer})["status"] == "succeeded"
    assert api.made(f"payment_methods/{method['id']}/detach")["customer"] is None
    assert api.refused(f"payment_methods/{method['id']}/detach")


def test_a_documented_method_becomes_the_accounts_own(api: Api) -> None:
    customer = api.made("customers")["id"]
    attached = api.made("payment_methods/pm_card_visa/attach", {"customer": customer})
    assert attached["id"] != "pm_card_visa"
    assert api.get(f"payment_methods/{attached['id']}").json() == attached


def test_a_method_is_changed(api: Api) -> None:
    method = api.made("payment_methods", {"type": "card", **CARD})
    changes = {"billing_details[name]": "Ada", "metadata[a]": "1"}
    changed = api.made(f"payment_methods/{method['id']}", changes)
    assert changed["billing_details"]["name"] == "Ada"
    assert changed["metadata"] == {"a": "1"}
    assert api.events("payment_method.updated")[0]["data"]["object"] == changed


def test_numbers_are_kept_but_never_told(api: Api) -> None:
    api.made("payment_methods", {"type": "card", **CARD})
    for path in ("payment_methods", "charges", "events"):
        assert "4242424242424242" not in api.get(path, limit=100).text


def test_what_is_wrong_is_named(api: Api) -> None:
    assert api.refused("tokens")["param"] == "card"
    assert api.refused("payment_methods", {"type": "cash"})["param"] == "type"
    wrong = CARD | {"card[exp_month]": "13"}
    assert api.refused("tokens", wrong)["param"] == "card[exp_month]"
    missing = api.refused("payment_methods", {"type": "card", "card[token]": "tok_nobody"})
    assert missing["param"] == "card[token]"
