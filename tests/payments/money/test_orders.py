"""What the network is asked: under which key, and what becomes of it if it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from payments.money.finisher import Finisher
from tests.payments.api_client import Api
from tests.payments.test_races import Together
from tests.stores import elapse

pytestmark = pytest.mark.slow

DAYS_S = 3 * 86_400.0
CHARGE = {"amount": 900, "currency": "eur", "source": "tok_visa"}


def pass_days(api: Api) -> None:
    if api.settings.database_url:
        elapse.postgres(api.settings.database_url.partition("?")[0], DAYS_S)
    else:
        elapse.sqlite(api.settings.data / "payments.db", DAYS_S)


def forget(api: Api, charge: str) -> None:
    """The network lost what it had of a charge: it will never capture or void it."""
    api.network.file.execute("DELETE FROM transactions WHERE reference = ?", (charge,))


def test_a_key_that_is_used_anew_after_days_is_a_new_charge(fresh: Api) -> None:
    """The network forgets no key: what is asked anew has another one there."""
    first = fresh.post("charges", CHARGE, "order-17").json()
    refund = fresh.post("refunds", {"charge": first["id"], "amount": 100}, "refund-17").json()
    pass_days(fresh)
    second = fresh.post("charges", CHARGE, "order-17")
    assert (second.status_code, second.json()["status"]) == (200, "succeeded"), second.text
    again = fresh.post("refunds", {"charge": first["id"], "amount": 100}, "refund-17").json()
    assert again["status"] == "succeeded"
    assert [reference for reference, _ in fresh.network.rows("capture")] == [
        first["id"],
        second.json()["id"],
    ]
    assert [reference for reference, _ in fresh.network.rows("refund")] == [
        refund["id"],
        again["id"],
    ]


def test_what_the_network_never_captures_is_told_and_is_as_before(fresh: Api) -> None:
    held = fresh.charge(2000, capture="false")["id"]
    forget(fresh, held)
    first = fresh.post(f"charges/{held}/capture", {}, "capture")
    assert (first.status_code, first.json()["error"]["code"]) == (400, "processing_error")
    assert fresh.post(f"charges/{held}/capture", {}, "capture").content == first.content
    assert fresh.get(f"charges/{held}").json()["captured"] is False
    released = fresh.create("refunds", {"charge": held})  # nobody holds the charge any more
    assert released["status"] == "failed"
    assert fresh.events("refund.failed")[0]["data"]["object"] == released


def test_an_intent_that_the_network_never_voids_stays_capturable(fresh: Api) -> None:
    said = {"amount": 1500, "currency": "usd", "payment_method": "pm_card_visa"}
    held = fresh.create("payment_intents", said | {"confirm": "true", "capture_method": "manual"})
    forget(fresh, held["latest_charge"])
    why = {"cancellation_reason": "duplicate"}
    expect_refusal = fresh.post_refused(f"payment_intents/{held['id']}/cancel", why)
    assert expect_refusal["code"] == "processing_error"
    assert fresh.get(f"payment_intents/{held['id']}").json() == held


def test_what_is_refused_does_not_keep_the_others_unfinished(fresh: Api) -> None:
    held = fresh.charge(2000, capture="false")["id"]
    fresh.network.down = 2
    assert fresh.post(f"charges/{held}/capture", {}, "capture").status_code == 503
    assert fresh.post("charges", CHARGE, "lost").status_code == 503
    forget(fresh, held)
    fresh.network.file.execute("DELETE FROM keys")
    finisher = Finisher(fresh.database, fresh.network, patience_s=-1)
    assert finisher.run_once() == 2
    assert finisher.run_once() == 0


def test_a_row_that_cannot_be_finished_does_not_keep_the_others_from_it(
    fresh: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh.network.down = 2
    for key in ("broken", "well"):
        assert fresh.post("charges", CHARGE, key).status_code == 503
    ask, asked = fresh.network._post, []

    def fails_once(path: str, key: str, **fields: object) -> dict[str, object]:
        asked.append(path)
        if len(asked) == 1:
            raise RuntimeError("a bug")
        return ask(path, key, **fields)

    monkeypatch.setattr(fresh.network, "_post", fails_once)
    finisher = Finisher(fresh.database, fresh.network, patience_s=-1)
    assert finisher.run_once() == 1
    assert finisher.run_once() == 1


def test_a_capture_that_meets_another_one_is_not_decided_by_it(fresh: Api) -> None:
    """How the other one ends is not known yet: nothing is kept, the same key may ask again."""
    held = fresh.charge(2000, capture="false")["id"]
    together = Together()
    with fresh.network.hold_up():
        together.start(fresh.post, f"charges/{held}/capture", {}, "first")
        fresh.network.wait_until_called()
        busy = fresh.post(f"charges/{held}/capture", {}, "second")
        assert (busy.status_code, busy.json()["error"]["code"]) == (429, "lock_timeout")
    assert together.statuses() == [200]
    late = fresh.post(f"charges/{held}/capture", {}, "second")
    assert (late.status_code, late.json()["error"]["code"]) == (400, "charge_already_captured")


@pytest.mark.parametrize(
    ("currency", "step"), [("kwd", 10), ("bhd", 10), ("isk", 100), ("ugx", 100)]
)
def test_amounts_are_what_card_networks_take(api: Api, currency: str, step: int) -> None:
    """Three decimals are spoken of, two are charged; and there are crowns, but no parts of one."""

    def expect_refusal(path: str, said: dict[str, Any], param: str) -> None:
        error = api.post_refused(path, said)
        assert (error["param"], error["code"]) == (param, "invalid_charge_amount")
        assert str(step) in error["message"]

    price: dict[str, Any] = {"amount": 5 * step, "currency": currency}
    odd = price | {"amount": 5 * step + 1}
    expect_refusal("charges", odd | {"source": "tok_visa"}, "amount")
    expect_refusal("payment_intents", odd, "amount")
    intent = api.create("payment_intents", price | {"payment_method": "pm_card_visa"})
    expect_refusal(f"payment_intents/{intent['id']}", {"amount": odd["amount"]}, "amount")
    dollars = api.create("payment_intents", {"amount": odd["amount"] + 50, "currency": "usd"})
    expect_refusal(f"payment_intents/{dollars['id']}", {"currency": currency}, "amount")

    held = api.charge(5 * step, currency=currency, capture="false")
    expect_refusal(f"charges/{held['id']}/capture", {"amount": step + 1}, "amount")
    taken = api.create(f"charges/{held['id']}/capture", {"amount": 4 * step})
    assert taken["amount_captured"] == 4 * step
    expect_refusal("refunds", {"charge": held["id"], "amount": step - 1}, "amount")
    assert api.create("refunds", {"charge": held["id"], "amount": step})["amount"] == step
    manual = {"payment_method": "pm_card_visa", "confirm": "true", "capture_method": "manual"}
    held = api.create("payment_intents", price | manual)
    path = f"payment_intents/{held['id']}/capture"
    expect_refusal(path, {"amount_to_capture": step + 1}, "amount_to_capture")
    assert api.create(path)["amount_received"] == 5 * step
