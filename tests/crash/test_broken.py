"""A handler breaks after its effect, in a process that lives, or dies while it says so.

Under `block` it is never run again, and under `ask` not before somebody was asked: the ledger has
one effect, whatever happened.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.crash.child import serving
from tests.crash.server import ANSWERS, HOWS
from tests.crash.test_kill import LEASE_S, effects, settle
from tests.places import Place

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("colour")]


@pytest.mark.parametrize("how", HOWS)
def test_p6_what_broke_under_block_has_one_effect(place: Place, tmp_path: Path, how: str) -> None:
    ledger, key = tmp_path / "ledger", str(uuid.uuid4())
    policy: dict[str, Any] = {"lease_s": LEASE_S, "recovery": "block"}
    with (
        serving(place.url, ledger, **policy) as first,
        serving(place.url, ledger, **policy) as second,
    ):
        broke = first.pay(key, fail_attempt=1, how=how)
        retries = [child.pay(key, fail_attempt=1, how=how) for child in (second, first, second)]
    assert broke.status == (503 if how == ANSWERS else 500)
    assert broke.headers["idempotency-outcome"] == "unknown"
    assert {retry.status for retry in retries} == {409}
    assert all(b"outcome-unknown" in retry.body for retry in retries)
    assert effects(ledger, key) == 1


@pytest.mark.parametrize("how", HOWS)
def test_p6_what_broke_under_ask_is_asked_about_at_once(
    place: Place, tmp_path: Path, how: str
) -> None:
    ledger, key = tmp_path / "ledger", str(uuid.uuid4())
    policy: dict[str, Any] = {"lease_s": LEASE_S, "recovery": "ask"}
    with (
        serving(place.url, ledger, **policy) as first,
        serving(place.url, ledger, **policy) as second,
    ):
        assert first.pay(key, fail_attempt=1, how=how).status >= 500
        found = second.pay(key, fail_attempt=1, how=how)
        again = first.pay(key, fail_attempt=1, how=how)
    assert (found.status, json.loads(found.body)["key"]) == (201, key)
    assert (again.body, again.headers["idempotent-replayed"]) == (found.body, "true")
    assert effects(ledger, key) == 1


@pytest.mark.parametrize("at", ["before_unknown", "after_unknown"])
@pytest.mark.parametrize("recovery", ["block", "ask"])
def test_p6_killed_while_it_says_that_nobody_knows(
    place: Place, tmp_path: Path, at: str, recovery: str
) -> None:
    ledger, key = tmp_path / "ledger", str(uuid.uuid4())
    policy: dict[str, Any] = {"lease_s": LEASE_S, "recovery": recovery}
    with serving(place.url, ledger, at=f"{at}=kill", **policy) as first:
        assert first.pay(key, fail_attempt=1).status == 0
        assert first.process.wait() == -9
    with serving(place.url, ledger, **policy) as second:
        reply = settle(second, place, key, fail_attempt=1)
        again = second.pay(key, fail_attempt=1)
    if recovery == "block":
        assert b"outcome-unknown" in reply.body
        assert b"outcome-unknown" in again.body
    else:
        assert (reply.status, again.body) == (201, reply.body)
    assert effects(ledger, key) == 1
