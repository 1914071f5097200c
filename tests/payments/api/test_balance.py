from payments.api import schemas
from tests.payments.api_client import Api


def test_the_balance_is_what_was_taken_less_what_was_given_back(api: Api) -> None:
    schemas.Balance.model_validate(api.get("balance").json())
    charge = api.charge(2000, currency="sek")
    api.charge(500, currency="sek", capture="false")
    api.create("refunds", {"charge": charge["id"], "amount": 300})
    said = {"amount": 900, "currency": "sek", "source": "tok_chargeDeclined"}
    assert api.post("charges", said).status_code == 402
    found = {line["currency"]: line["amount"] for line in api.get("balance").json()["available"]}
    assert found["sek"] == 1700
