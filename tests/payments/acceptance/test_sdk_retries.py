"""What Stripe's clients do by themselves when a line or a server fails: it ends in one charge.

The clients send the same key again after a cut line, 409 and whatever is 500 or above.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import httpx2
import pytest

from payments.access.accounts import LOCAL_KEY
from tests.payments.acceptance.conftest import Shop, open_
from tests.payments.acceptance.faulty_proxy import FaultyProxy, PlannedBreak
from tests.payments.acceptance.sdk import SDKS, Answered, Refused, Sdk
from tests.payments.serve_command import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CHARGE = {"amount": 2000, "currency": "eur", "source": "tok_visa"}


def find_charges(shop: Shop, description: str) -> list[str]:
    """The charges with this description that the network took money for."""
    with closing(sqlite3.connect(shop.api.data / "payments.db")) as file:
        found = file.execute(
            "SELECT id FROM charges WHERE description = ?", (description,)
        ).fetchall()
    ours = {id_ for (id_,) in found}
    return [reference for reference, _ in shop.network.rows("capture") if reference in ours]


def pay(sdk: Sdk, description: str, key: str | None = None, retries: int | None = None) -> Answered:
    params = {**CHARGE, "description": description}
    return sdk.ask("charges.create", params=params, key=key, retries=retries)


@pytest.fixture
def description() -> str:
    """What a test's charge is called."""
    return f"purchase {uuid.uuid4().hex}"


@contextmanager
def freeze(shop: Shop) -> Iterator[None]:
    """The card network answers nobody meanwhile."""
    os.kill(shop.network.child.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(shop.network.child.pid, signal.SIGCONT)


# ------------------------------------------------------------------------------------ the line


def test_a_line_that_is_cut_before_the_request_arrives(
    over: Sdk, line: FaultyProxy, shop: Shop, description: str
) -> None:
    line.breaks = [PlannedBreak("before"), PlannedBreak("before")]
    made = pay(over, description)
    assert not made.is_replay
    assert len(line.keys) == 3
    assert len(set(line.keys)) == 1
    assert find_charges(shop, description) == [made["id"]]


def test_a_line_that_is_cut_after_the_card_was_charged(
    over: Sdk, line: FaultyProxy, shop: Shop, description: str
) -> None:
    line.breaks = [PlannedBreak("after"), PlannedBreak("after")]
    made = pay(over, description)
    assert made.is_replay
    assert line.statuses == [200, 200, 200]
    assert find_charges(shop, description) == [made["id"]]


def test_an_answer_that_is_cut_in_its_middle_is_asked_for_again_with_the_same_key(
    over: Sdk, line: FaultyProxy, shop: Shop, description: str
) -> None:
    """Neither client repeats this one by itself: whoever keeps the key can."""
    line.breaks = [PlannedBreak("after", part=0.9)]
    key = uuid.uuid4().hex
    with pytest.raises(Refused) as caught:
        pay(over, description, key)
    assert caught.value.kind in ("APIConnectionError", "ConnectionError")
    made = pay(over, description, key)
    assert made.is_replay
    assert find_charges(shop, description) == [made["id"]]


def test_a_line_that_stays_cut_is_told_and_the_purchase_can_be_made_later(
    over: Sdk, line: FaultyProxy, shop: Shop, description: str
) -> None:
    line.breaks = [PlannedBreak("after"), PlannedBreak("before"), PlannedBreak("after")]
    key = uuid.uuid4().hex
    with pytest.raises(Refused) as caught:
        pay(over, description, key, retries=2)
    assert caught.value.kind in ("APIConnectionError", "ConnectionError")
    assert pay(over, description, key).is_replay
    assert len(find_charges(shop, description)) == 1


# ---------------------------------------------------------------------------- 500, 503 and 409


@pytest.mark.parametrize("status", [500, 503])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_failure_that_somebody_on_the_way_makes_up(
    over: Sdk, line: FaultyProxy, shop: Shop, description: str, status: int, moment: str
) -> None:
    line.breaks = [PlannedBreak("after" if moment == "after" else "before", status)]
    made = pay(over, description)
    assert made.is_replay == (moment == "after")
    assert len(set(line.keys)) == 1
    assert find_charges(shop, description) == [made["id"]]


def test_a_network_that_fails_every_time_is_503_and_the_retry_continues(
    over: Sdk, line: FaultyProxy, shop: Shop, description: str
) -> None:
    """The card is charged each time as the network sees it, and each time it says 500."""
    with shop.network.client() as network:
        network.arm("500-after", 12)  # as often as the API asks before it gives up
        made = pay(over, description, retries=5)
        network.disarm()
    assert line.statuses[0] == 503
    assert line.statuses[-1] == 200
    assert find_charges(shop, description) == [made["id"]]


def test_a_charge_that_is_under_way_is_409_until_it_is_done(shop: Shop, description: str) -> None:
    """Both clients at once: the API lets them wait, here for half a second, before it refuses
    them.
    """
    key = uuid.uuid4().hex
    form = {name: str(value) for name, value in CHARGE.items()} | {"description": description}
    headers = {"Idempotency-Key": key, "Authorization": f"Bearer {LOCAL_KEY}"}

    def ask_first() -> httpx2.Response:
        return shop.api.client.post("/v1/charges", data=form, headers=headers)

    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor())
        lines = [stack.enter_context(FaultyProxy(shop.api.port)) for _ in SDKS]
        pairs = zip(SDKS, lines, strict=True)
        sdks = [stack.enter_context(closing(open_(name, line.port))) for name, line in pairs]
        with freeze(shop):
            first = threads.submit(ask_first)
            until(lambda: is_pending(shop, description), "the first request to be under way")
            others = [threads.submit(pay, sdk, description, key, 20) for sdk in sdks]
            refused = "each of the others to be refused"
            until(lambda: all(line.statuses[:1] == [409] for line in lines), refused)
        made = first.result()
        assert made.status_code == 200
        for other in others:
            assert other.result().is_replay
            assert other.result()["id"] == made.json()["id"]
    assert find_charges(shop, description) == [made.json()["id"]]


def is_pending(shop: Shop, description: str) -> bool:
    with closing(sqlite3.connect(shop.api.data / "payments.db")) as file:
        query = "SELECT count(*) FROM charges WHERE description = ? AND status = 'pending'"
        found: int = file.execute(query, (description,)).fetchone()[0]
    return found == 1
