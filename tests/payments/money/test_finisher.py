"""The network said nothing, and the client never came back."""

from typing import Any

import pytest
import sqlalchemy as sa

from payments import clock
from payments.money.finisher import Finisher
from tests.payments.api_client import Api

pytestmark = pytest.mark.slow


@pytest.fixture
def finisher(fresh: Api) -> Finisher:
    return Finisher(fresh.database, fresh.network, patience_s=-1)


def test_a_charge_is_finished_without_its_client(fresh: Api, finisher: Finisher) -> None:
    said = {"amount": 1234, "currency": "eur", "source": "tok_visa"}
    fresh.network.down = 1
    assert fresh.post("charges", said, "lost").status_code == 503
    [pending] = fresh.get("charges").json()["data"]
    assert pending["status"] == "pending"
    assert finisher.run_once() == 1
    assert finisher.run_once() == 0
    assert fresh.get(f"charges/{pending['id']}").json()["status"] == "succeeded"
    late = fresh.post("charges", said, "lost")
    assert (late.status_code, late.json()["id"]) == (200, pending["id"])
    assert len(fresh.network.rows("capture")) == 1
    assert len(fresh.events("charge.succeeded")) == 1
    assert fresh.get("balance").json()["available"][0]["amount"] == 1234


def test_what_began_while_the_clock_was_ahead_is_finished(
    fresh: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is set right, that began in the future, and would be left alone until then."""
    finisher = Finisher(fresh.database, fresh.network, patience_s=120)
    fresh.network.down = 1
    later = clock.now_s() + 86_400
    with monkeypatch.context() as ahead:
        ahead.setattr(clock, "now_s", lambda: later)
        said = {"amount": 1234, "currency": "eur", "source": "tok_visa"}
        assert fresh.post("charges", said, "lost").status_code == 503
    assert finisher.run_once() == 1
    fresh.network.down = 1
    assert fresh.post("charges", said, "recent").status_code == 503
    assert finisher.run_once() == 0  # it may be left to its client


def test_a_decline_is_finished_too(fresh: Api, finisher: Finisher) -> None:
    said = {"amount": 900, "currency": "usd", "payment_method": "pm_card_chargeDeclined"}
    fresh.network.down = 1
    assert fresh.post("payment_intents", said | {"confirm": "true"}, "lost").status_code == 503
    assert finisher.run_once() == 1
    [intent] = fresh.get("payment_intents").json()["data"]
    assert intent["status"] == "requires_payment_method"
    assert intent["last_payment_error"]["code"] == "card_declined"


def test_captures_voids_and_refunds_are_finished(fresh: Api, finisher: Finisher) -> None:
    captured = fresh.charge(2000, capture="false")["id"]
    said = {"amount": 1500, "currency": "usd", "payment_method": "pm_card_visa"}
    said |= {"confirm": "true", "capture_method": "manual"}
    voided = fresh.create("payment_intents", said)["id"]
    refunded = fresh.charge(700)["id"]
    released = fresh.charge(800, capture="false")["id"]
    fresh.network.down = 4
    assert fresh.post("refunds", {"charge": released}).status_code == 503
    assert fresh.post(f"charges/{captured}/capture", {"amount": 1900}).status_code == 503
    assert fresh.post(f"payment_intents/{voided}/cancel").status_code == 503
    assert fresh.post("refunds", {"charge": refunded}).status_code == 503
    assert finisher.run_once() == 4
    assert finisher.run_once() == 0
    [let_go] = fresh.get("refunds", charge=released).json()["data"]
    assert (let_go["status"], let_go["amount"]) == ("succeeded", 800)
    assert fresh.network.rows("void")[0] == (released, 800)
    assert fresh.get(f"charges/{captured}").json()["amount_captured"] == 1900
    assert fresh.get(f"payment_intents/{voided}").json()["status"] == "canceled"
    assert fresh.get(f"charges/{refunded}").json()["refunded"] is True


def test_a_network_that_is_still_down_is_not_asked_for_the_others(
    fresh: Api, finisher: Finisher
) -> None:
    fresh.network.down = 2
    for key in ("a", "b"):
        said = {"amount": 900, "currency": "eur", "source": "tok_visa"}
        assert fresh.post("charges", said, key).status_code == 503
    fresh.network.down = 1
    assert finisher.run_once() == 0
    assert fresh.network.down == 0
    assert finisher.run_once() == 2


def test_p11_a_database_that_takes_nothing_is_not_asked_for_the_others(
    fresh: Api,
    finisher: Finisher,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Else each of them is told with a traceback, and the network asked about it, every time."""
    fresh.network.down = 3
    for key in ("a", "b", "c"):
        said = {"amount": 900, "currency": "eur", "source": "tok_visa"}
        assert fresh.post("charges", said, key).status_code == 503
    asked = list[Any]()

    def refuse(*row: Any) -> None:
        asked.append(row)
        raise sa.exc.ProgrammingError("UPDATE charges", {}, Exception("permission denied"))

    with monkeypatch.context() as denied:
        denied.setattr("payments.money.settlement.record_authorisation", refuse)
        with pytest.raises(sa.exc.ProgrammingError):
            finisher.run_once()
    assert len(asked) == 1
    assert "is still unfinished" not in caplog.text
    assert finisher.run_once() == 3
