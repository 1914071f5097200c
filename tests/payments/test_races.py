"""Requests that meet in the middle: the network is held up until all of them are there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa

from oncekey.webhooks import new_secret
from payments.api import webhook_endpoints
from payments.api.webhook_endpoints import ENDPOINTS_MAX
from payments.money import ledger
from payments.storage.tables import ledger_entries
from tests.payments.api_client import WAIT_S_MAX, Api
from tests.payments.serve_command import until

pytestmark = pytest.mark.slow


class Together:
    """Requests that run at the same time, each in a thread."""

    def __init__(self) -> None:
        self.answers: list[httpx2.Response] = []
        self._answered = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    def start(self, ask: Callable[..., httpx2.Response], *args: Any) -> None:
        def run() -> None:
            self.answers.append(ask(*args))
            self._answered.release()

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def until_answered(self, times: int) -> None:
        for _ in range(times):
            assert self._answered.acquire(timeout=WAIT_S_MAX)

    def statuses(self) -> list[int]:
        for thread in self._threads:
            thread.join(WAIT_S_MAX)
        return sorted(answer.status_code for answer in self.answers)


def sums(api: Api) -> int:
    with api.database.read() as connection:
        unbalanced = connection.execute(
            sa.select(ledger_entries.c.transaction)
            .group_by(ledger_entries.c.transaction)
            .having(sa.func.sum(ledger_entries.c.amount) != 0)
        ).all()
        assert not unbalanced
        return ledger.total(connection)


def test_refunds_of_one_charge_together_never_exceed_it(fresh: Api) -> None:
    charge = fresh.charge(2000)
    together = Together()
    with fresh.network.hold_up():
        for number in range(5):
            said = {"charge": charge["id"], "amount": 900}
            together.start(fresh.post, "refunds", said, f"{charge['id']}-{number}")
        fresh.network.wait_until_called(2)  # two fit, and both are on their way
        together.until_answered(3)  # the others were refused before anybody was paid back
    assert together.statuses() == [200, 200, 400, 400, 400]
    given = [amount for reference, amount in fresh.network.rows("refund")]
    assert given == [900, 900]
    assert fresh.get(f"charges/{charge['id']}").json()["amount_refunded"] == 1800
    assert sums(fresh) == 0


def test_two_full_refunds_at_once_are_one(fresh: Api) -> None:
    charge = fresh.charge(2000)
    together = Together()
    with fresh.network.hold_up():
        for number in range(2):
            said = {"charge": charge["id"]}
            together.start(fresh.post, "refunds", said, f"{charge['id']}-{number}")
        fresh.network.wait_until_called()
        together.until_answered(1)
    assert together.statuses() == [200, 400]
    assert [amount for _, amount in fresh.network.rows("refund")] == [2000]
    assert sums(fresh) == 0


def test_a_charge_is_captured_once(fresh: Api) -> None:
    held = fresh.charge(2000, capture="false")
    together = Together()
    with fresh.network.hold_up():
        for number in range(3):
            path = f"charges/{held['id']}/capture"
            together.start(fresh.post, path, {}, f"{held['id']}-{number}")
        fresh.network.wait_until_called()
        together.until_answered(2)
    assert together.statuses() == [200, 429, 429]
    assert [row for row in fresh.network.rows("capture") if row[0] == held["id"]] == [
        (held["id"], 2000)
    ]
    assert sums(fresh) == 0


def test_an_intent_is_either_captured_or_cancelled(fresh: Api) -> None:
    said = {"amount": 1500, "currency": "usd", "payment_method": "pm_card_visa"}
    held = fresh.create("payment_intents", said | {"confirm": "true", "capture_method": "manual"})
    together = Together()
    with fresh.network.hold_up():
        for verb in ("capture", "cancel"):
            together.start(
                fresh.post, f"payment_intents/{held['id']}/{verb}", {}, f"{held['id']}{verb}"
            )
        fresh.network.wait_until_called()
        together.until_answered(1)
    assert together.statuses() == [200, 429]
    moved = fresh.network.rows("capture") + fresh.network.rows("void")
    assert [reference for reference, _ in moved] == [held["latest_charge"]]


def test_an_intent_is_confirmed_once(fresh: Api) -> None:
    intent = fresh.create(
        "payment_intents", {"amount": 1500, "currency": "usd", "payment_method": "pm_card_visa"}
    )
    together = Together()
    with fresh.network.hold_up():
        for number in range(4):
            path = f"payment_intents/{intent['id']}/confirm"
            together.start(fresh.post, path, {}, f"{intent['id']}-{number}")
        fresh.network.wait_until_called()
        together.until_answered(3)
        assert fresh.post_refused(f"payment_intents/{intent['id']}/cancel", status=429)
    assert together.statuses() == [200, 429, 429, 429]
    assert len(fresh.network.rows("authorisation")) == 1
    assert fresh.get(f"payment_intents/{intent['id']}").json()["amount_received"] == 1500


def test_what_waits_for_the_network_is_not_decided_by_who_comes_meanwhile(fresh: Api) -> None:
    """How it ends is not known yet: nothing is kept, the same keys may ask again."""
    said = {"amount": 1500, "currency": "usd", "payment_method": "pm_card_visa"}
    intent = fresh.create("payment_intents", said | {"capture_method": "manual"})["id"]
    together = Together()
    with fresh.network.hold_up():
        together.start(fresh.post, f"payment_intents/{intent}/confirm", {}, "confirm")
        hold = {"amount": 900, "currency": "eur", "source": "tok_visa", "capture": "false"}
        together.start(fresh.post, "charges", hold, "charge")
        fresh.network.wait_until_called(2)
        held = next(
            charge["id"]
            for charge in fresh.get("charges").json()["data"]
            if charge["payment_intent"] is None
        )
        late: list[tuple[str, dict[str, Any]]] = [
            (f"charges/{held}/capture", {}),
            ("refunds", {"charge": held, "amount": 100}),
            ("refunds", {"payment_intent": intent, "amount": 100}),
            (f"payment_intents/{intent}", {"amount": 1600}),
            (f"payment_intents/{intent}/confirm", {}),
            (f"payment_intents/{intent}/capture", {}),
            (f"payment_intents/{intent}/cancel", {}),
        ]
        for number, (path, said) in enumerate(late):
            busy = fresh.post(path, said, f"late-{number}")
            assert (busy.status_code, busy.json()["error"]["code"]) == (429, "lock_timeout"), path
            assert busy.headers["stripe-should-retry"] == "true"
    assert together.statuses() == [200, 200]
    again = [fresh.post(path, said, f"late-{number}") for number, (path, said) in enumerate(late)]
    statuses = [answer.status_code for answer in again]
    assert statuses == [200, 200, 400, 400, 400, 200, 400]


def test_a_refund_that_meets_a_capture_is_not_decided_by_it(fresh: Api) -> None:
    said = {"amount": 1500, "currency": "usd", "payment_method": "pm_card_visa"}
    held = fresh.create("payment_intents", said | {"confirm": "true", "capture_method": "manual"})
    refund = {"payment_intent": held["id"]}
    together = Together()
    with fresh.network.hold_up():
        together.start(fresh.post, f"payment_intents/{held['id']}/capture", {}, "capture")
        fresh.network.wait_until_called()
        assert fresh.post("refunds", refund, "refund").status_code == 429
    assert together.statuses() == [200]
    assert fresh.post("refunds", refund, "refund").json()["amount"] == 1500


def test_one_key_charges_once_however_many_send_it(fresh: Api) -> None:
    together = Together()
    said = {"amount": 1300, "currency": "eur", "source": "tok_visa"}
    with fresh.network.hold_up():
        for _ in range(4):
            together.start(fresh.post, "charges", said, "one-key")
        fresh.network.wait_until_called()
    assert together.statuses() == [200] * 4
    assert len({answer.content for answer in together.answers}) == 1
    assert len(fresh.network.rows("capture")) == 1
    assert sums(fresh) == 0


def test_webhook_endpoints_made_at_once_are_not_more_than_an_account_may_have(
    fresh: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"url": "https://hooks.example.com/", "enabled_events[]": "*"}
    for _ in range(ENDPOINTS_MAX - 1):
        fresh.create("webhook_endpoints", said)
    counted, go_on = threading.Event(), threading.Event()

    def made_late() -> str:
        """The first has counted, and has not written yet."""
        if not counted.is_set():
            counted.set()
            assert go_on.wait(WAIT_S_MAX)
        return new_secret()

    monkeypatch.setattr(webhook_endpoints, "new_secret", made_late)
    together = Together()
    together.start(fresh.post, "webhook_endpoints", said)
    assert counted.wait(WAIT_S_MAX)
    together.start(fresh.post, "webhook_endpoints", said)
    if fresh.database.engine.dialect.name == "postgresql":  # elsewhere one at a time may write
        until(lambda: bool(together.answers) or waits(fresh), "the second to come as far")
    go_on.set()

    assert together.statuses() == [200, 400]
    assert fresh.count("webhook_endpoints") == ENDPOINTS_MAX


def waits(api: Api) -> bool:
    """Whether somebody waits for another one to count."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event = 'advisory' AND query LIKE '%hashtextextended%'"
    )
    with api.database.read() as connection:
        return bool(connection.execute(sa.text(query)).scalar_one())
