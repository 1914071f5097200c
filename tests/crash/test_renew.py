"""A process is killed or frozen while it renews the lease of a handler that takes its time."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pytest

from tests.crash.child import ANSWER_S_MAX, Child, Reply, serving
from tests.crash.test_kill import effects
from tests.places import Place

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("colour")]

LEASE_S = 1.0
"""So short that its renewal need not be waited for long."""


def lapse(place: Place, heir: Child, key: str, sign: Path) -> None:
    """Let the lease run out. Where leases are observed, the heir must have watched it."""
    if place.observing is not None:
        assert b"in-flight" in heir.pay(key, until=str(sign)).body
    place.elapse(LEASE_S)


@pytest.mark.parametrize("at", ["before_renew", "after_renew"])
def test_p6_killed_while_it_renews(place: Place, tmp_path: Path, at: str) -> None:
    ledger, sign, key = tmp_path / "ledger", tmp_path / "sign", str(uuid.uuid4())
    with serving(place.url, ledger, at=f"{at}=kill", lease_s=LEASE_S) as first:
        assert first.pay(key, until=str(sign)).status == 0
        assert first.process.wait() == -9
    sign.touch()
    with serving(place.url, ledger, lease_s=LEASE_S) as second:
        lapse(place, second, key, sign)
        inherited = second.pay(key, until=str(sign))
        again = second.pay(key, until=str(sign))
    assert inherited.status == 201
    assert (again.body, again.headers["idempotent-replayed"]) == (inherited.body, "true")
    assert effects(ledger, key) == 2


@pytest.mark.parametrize("at", ["before_renew", "after_renew"])
def test_p2_frozen_while_it_renews_and_taken_over(place: Place, tmp_path: Path, at: str) -> None:
    """Its late renewal revives nothing, and its client gets the heir's answer."""
    ledger, sign, key = tmp_path / "ledger", tmp_path / "sign", str(uuid.uuid4())
    zombie_got: list[Reply] = []
    with (
        serving(place.url, ledger, at=f"{at}=stop", lease_s=LEASE_S) as zombie,
        serving(place.url, ledger, lease_s=LEASE_S) as heir,
    ):
        asking = threading.Thread(
            target=lambda: zombie_got.append(zombie.pay(key, until=str(sign)))
        )
        asking.start()
        zombie.wait_frozen()
        sign.touch()
        lapse(place, heir, key, sign)
        inherited = heir.pay(key, until=str(sign))
        zombie.thaw()
        asking.join(ANSWER_S_MAX)
    assert inherited.status == 201
    assert (zombie_got[0].status, zombie_got[0].body) == (201, inherited.body)
    assert zombie_got[0].headers["idempotent-replayed"] == "true"
    assert effects(ledger, key) == 2
