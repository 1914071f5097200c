from payments.api import schemas
from tests.payments.api_client import Api


def test_a_refund_gives_back_a_part_then_the_rest_then_nothing(api: Api) -> None:
    charge = api.charge(2000)
    part = api.create("refunds", {"charge": charge["id"], "amount": 500, "reason": "duplicate"})
    schemas.Refund.model_validate(part)
    assert (part["status"], part["amount"], part["reason"]) == ("succeeded", 500, "duplicate")
    assert api.get(f"charges/{charge['id']}").json()["refunded"] is False
    too_much = api.post_refused("refunds", {"charge": charge["id"], "amount": 1501})
    assert (too_much["param"], too_much["code"]) == ("amount", "amount_too_large")
    rest = api.create("refunds", {"charge": charge["id"]})
    assert rest["amount"] == 1500
    now = api.get(f"charges/{charge['id']}").json()
    assert (now["amount_refunded"], now["refunded"]) == (2000, True)
    nothing = api.post_refused("refunds", {"charge": charge["id"]})
    assert nothing["code"] == "charge_already_refunded"
    given = [row for row in api.network.rows("refund") if row[0] in (part["id"], rest["id"])]
    assert given == [(part["id"], 500), (rest["id"], 1500)]
    assert api.events("charge.refunded")[0]["data"]["object"] == now


def test_a_refund_of_an_intent(api: Api) -> None:
    said = {"amount": 900, "currency": "usd", "payment_method": "pm_card_visa", "confirm": "true"}
    paid = api.create("payment_intents", said)
    refund = api.create("refunds", {"payment_intent": paid["id"]})
    assert (refund["charge"], refund["payment_intent"]) == (paid["latest_charge"], paid["id"])
    assert api.get("refunds", payment_intent=paid["id"]).json()["data"] == [refund]
    assert api.get(f"refunds/{refund['id']}").json() == refund


def test_a_retry_refunds_once_though_the_network_said_nothing(api: Api) -> None:
    charge = api.charge(2000)
    said = {"charge": charge["id"], "amount": 700}
    api.network.down = 1
    assert api.post("refunds", said, "refund-1").status_code == 503
    left = api.post_refused("refunds", {"charge": charge["id"], "amount": 1400})
    assert left["code"] == "amount_too_large"  # what waits is reserved
    done = api.post("refunds", said, "refund-1")
    assert done.status_code == 200
    assert [row for row in api.network.rows("refund") if row[0] == done.json()["id"]] == [
        (done.json()["id"], 700)
    ]
    assert api.get(f"charges/{charge['id']}").json()["amount_refunded"] == 700


def test_a_refund_names_what_it_is_of(api: Api) -> None:
    assert api.post_refused("refunds")["param"] == "charge"
    assert (
        api.post_refused("refunds", {"charge": "ch_a", "payment_intent": "pi_a"})["param"]
        == "charge"
    )
    assert api.post_refused("refunds", {"charge": "ch_nobody"})["param"] == "charge"
    assert api.post_refused("refunds", {"payment_intent": "pi_nobody"})["param"] == "payment_intent"
    waits = api.create("payment_intents", {"amount": 900, "currency": "usd"})
    assert api.post_refused("refunds", {"payment_intent": waits["id"]})["param"] == "payment_intent"
    assert api.post_refused("refunds", {"charge": "ch_a", "reason": "mood"})["param"] == "reason"


def test_what_was_only_authorised_is_given_back_by_letting_go_of_it(api: Api) -> None:
    held = api.charge(2000, capture="false")
    part = api.post_refused("refunds", {"charge": held["id"], "amount": 500})
    assert (part["code"], part["param"]) == ("charge_not_refundable", "amount")
    said = {"charge": held["id"], "reason": "requested_by_customer"}
    api.network.down = 1
    assert api.post("refunds", said, "let-go").status_code == 503
    busy = api.post_refused("refunds", {"charge": held["id"]}, status=429)
    assert busy["code"] == "lock_timeout"
    refund = api.post("refunds", said, "let-go").json()
    schemas.Refund.model_validate(refund)
    assert (refund["status"], refund["amount"]) == ("succeeded", 2000)
    now = api.get(f"charges/{held['id']}").json()
    assert (now["captured"], now["amount_refunded"], now["refunded"]) == (False, 2000, True)
    assert (held["id"], 2000) in api.network.rows("void")
    assert held["id"] not in [reference for reference, _ in api.network.rows("refund")]
    begun = refund | {"status": "pending"}
    assert api.events("refund.created")[0]["data"]["object"] == begun
    assert api.events("refund.updated")[0]["data"]["object"] == refund
    for path in (f"charges/{held['id']}/capture", "refunds"):
        said = {"charge": held["id"]} if path == "refunds" else {}
        assert api.post_refused(path, said)["code"] == "charge_already_refunded"


def test_an_intent_that_holds_money_is_cancelled_not_refunded(api: Api) -> None:
    said = {"amount": 1500, "currency": "usd", "payment_method": "pm_card_visa"}
    held = api.create("payment_intents", said | {"confirm": "true", "capture_method": "manual"})
    for name, id_ in (("payment_intent", held["id"]), ("charge", held["latest_charge"])):
        assert api.post_refused("refunds", {name: id_})["code"] == "charge_not_refundable"


def test_metadata_of_a_refund_is_changed(api: Api) -> None:
    refund = api.create("refunds", {"charge": api.charge()["id"], "metadata[a]": "1"})
    changed = api.create(f"refunds/{refund['id']}", {"metadata[b]": "2"})
    assert changed["metadata"] == {"a": "1", "b": "2"}
    assert api.events("refund.updated")[0]["data"]["object"] == changed
