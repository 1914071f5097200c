"""A real process is killed at every probe, on every store; the client retries at another process.

P6: nothing is stuck longer than a lease. P3: once answered, always the same answer. And the effect
happens as often as the operation's recovery allows, never more.
"""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.crash.child import Child, Reply, serving
from tests.places import Place

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("colour")]

LEASE_S = 30.0


def effects(ledger: Path, key: str) -> int:
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return sum(json.loads(line)["key"] == key for line in lines)


def settle(child: Child, place: Place, key: str, **order: Any) -> Reply:
    """Retry as a client would; one lease after its owner died the record must answer."""
    reply = child.pay(key, **order)
    if reply.status == 409 and b"in-flight" in reply.body:
        assert int(reply.headers["retry-after"]) >= 1
        place.elapse(LEASE_S)
        reply = child.pay(key, **order)
    return reply


def lapse(place: Place, heir: Child, key: str) -> None:
    """Let the lease run out. Where leases are observed, the heir must have watched it."""
    if place.observing is not None:
        assert b"in-flight" in heir.pay(key).body
    place.elapse(LEASE_S)


# Where the process dies, and how often the effect may have happened when all is over.
KILLED = [
    ("before_insert", 1),
    ("after_insert", 1),
    ("after_handler", 2),
    ("before_complete", 2),
    ("after_complete", 1),
    ("after_send", 1),
]


@pytest.mark.parametrize(("at", "expected"), KILLED)
def test_p6_a_killed_process_is_taken_over(
    place: Place, tmp_path: Path, at: str, expected: int
) -> None:
    ledger, key = tmp_path / "ledger", str(uuid.uuid4())
    with serving(place.url, ledger, at=f"{at}=kill", lease_s=LEASE_S) as first:
        lost = first.pay(key)
        assert first.process.wait() == -9
    with serving(place.url, ledger, lease_s=LEASE_S) as second:
        reply = settle(second, place, key)
        again = second.pay(key)
    assert reply.status == 201
    assert again.headers["idempotent-replayed"] == "true"
    assert (again.status, again.body) == (reply.status, reply.body)
    if lost.status:  # the client had been answered before the process died
        assert (lost.status, lost.body) == (reply.status, reply.body)
    assert effects(ledger, key) == expected


@pytest.mark.parametrize("at", ["after_insert", "after_handler", "before_complete"])
def test_p6_blocked_operations_become_unknown_instead_of_running_again(
    place: Place, tmp_path: Path, at: str
) -> None:
    ledger, key = tmp_path / "ledger", str(uuid.uuid4())
    policy: dict[str, Any] = {"lease_s": LEASE_S, "recovery": "block"}
    with serving(place.url, ledger, at=f"{at}=kill", **policy) as first:
        assert first.pay(key).status == 0
    before = effects(ledger, key)
    with serving(place.url, ledger, **policy) as second:
        reply = settle(second, place, key)
        again = second.pay(key)
    assert reply.status == again.status == 409
    assert b"outcome-unknown" in reply.body
    assert effects(ledger, key) == before


@pytest.mark.parametrize("at", ["before_release", "after_release"])
def test_p6_killed_while_it_gives_the_record_back(place: Place, tmp_path: Path, at: str) -> None:
    ledger, key = tmp_path / "ledger", str(uuid.uuid4())
    with serving(place.url, ledger, at=f"{at}=kill", lease_s=LEASE_S) as first:
        assert first.pay(key, fail_attempt=1).status == 0
    with serving(place.url, ledger, lease_s=LEASE_S) as second:
        reply = settle(second, place, key, fail_attempt=1)
    assert reply.status == 201
    assert effects(ledger, key) == 2


@pytest.mark.parametrize("at", ["before_take_over", "after_take_over"])
def test_p6_the_heir_is_killed_as_well(place: Place, tmp_path: Path, at: str) -> None:
    ledger, key = tmp_path / "ledger", str(uuid.uuid4())
    with serving(place.url, ledger, at="after_insert=kill", lease_s=LEASE_S) as first:
        assert first.pay(key).status == 0
    with serving(place.url, ledger, at=f"{at}=kill", lease_s=LEASE_S) as second:
        lapse(place, second, key)
        assert second.pay(key).status == 0
    with serving(place.url, ledger, lease_s=LEASE_S) as third:
        reply = settle(third, place, key)
    assert reply.status == 201
    assert effects(ledger, key) == 1


@pytest.mark.parametrize("at", ["after_insert", "after_handler", "before_complete"])
def test_p2_a_frozen_process_wakes_and_changes_nothing(
    place: Place, tmp_path: Path, at: str
) -> None:
    """The zombie's client gets the heir's answer, and so does everybody else."""
    ledger, key = tmp_path / "ledger", str(uuid.uuid4())
    zombie_got: list[Reply] = []
    with (
        serving(place.url, ledger, at=f"{at}=stop", lease_s=LEASE_S) as zombie,
        serving(place.url, ledger, lease_s=LEASE_S) as heir,
    ):
        client = threading.Thread(target=lambda: zombie_got.append(zombie.pay(key)))
        client.start()
        zombie.wait_frozen()
        lapse(place, heir, key)
        inherited = heir.pay(key)
        zombie.thaw()
        client.join()
        again = heir.pay(key)
    assert inherited.status == 201
    assert json.loads(inherited.body)["paid_by"] == heir.process.pid
    assert again.body == inherited.body
    assert (zombie_got[0].status, zombie_got[0].body) == (201, inherited.body)
    assert zombie_got[0].headers["idempotent-replayed"] == "true"
