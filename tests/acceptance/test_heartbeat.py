"""A handler may be slower than its lease: while its process lives, the lease is renewed (P1).

Leases are a second long, and what is waited for is renewals, not time.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response

from oncekey import Policy, probes, single_tenant
from oncekey.heartbeat import BEATS_PER_LEASE
from oncekey.web.asgi import IdempotencyMiddleware
from tests.acceptance.serve import serving
from tests.acceptance.shop import WAIT_S_MAX, Shop
from tests.crash.child import Child
from tests.crash.child import Reply as ChildReply
from tests.crash.child import serving as serving_child
from tests.crash.test_kill import effects
from tests.places import Place
from tests.web.client import Reply

pytestmark = pytest.mark.slow

LEASE_S = 1.0
BEATS = BEATS_PER_LEASE + 1
"""After so many renewals the first lease would be over."""


@pytest.fixture
def renewals() -> Iterator[threading.Semaphore]:
    """Released at every renewal in this process."""
    beats = threading.Semaphore(0)
    probes.arm("after_renew", beats.release)
    yield beats
    probes.disarm()


def wait_for(renewals: threading.Semaphore) -> None:
    for beat in range(BEATS):
        assert renewals.acquire(timeout=WAIT_S_MAX), f"only {beat} renewals"


def guarded(shop: Shop, place: Place) -> IdempotencyMiddleware:
    policy = Policy(lease_s=LEASE_S)
    return IdempotencyMiddleware(shop.app, store=place.url, tenant=single_tenant, policy=policy)


def blocking(shop: Shop) -> None:
    """A handler that keeps the event loop from doing anything, as careless ones do."""

    async def handler(request: Request) -> Response:
        shop.started.set()
        assert shop.go_on.wait(WAIT_S_MAX)
        return await shop.receipt(request)

    shop.handler = handler


def held(shop: Shop) -> None:
    shop.handler = shop.held


@pytest.mark.parametrize("manner", [held, blocking])
def test_p1_a_handler_slower_than_its_lease_keeps_it(
    place: Place, renewals: threading.Semaphore, manner: Callable[[Shop], None]
) -> None:
    """Also one that blocks the event loop: renewals have a thread and a connection of their own."""
    slow, other, key = Shop(), Shop(), str(uuid.uuid4())
    manner(slow)
    first: list[Reply] = []
    with serving(guarded(slow, place)) as busy, serving(guarded(other, place)) as client:
        asking = threading.Thread(target=lambda: first.append(busy.ask(key)))
        asking.start()
        assert slow.started.wait(WAIT_S_MAX)
        wait_for(renewals)
        refused = client.ask(key)
        record = place.look(key, "POST /orders")
        slow.go_on.set()
        asking.join(WAIT_S_MAX)
        again = client.ask(key)
    assert refused.kind == "in-flight"
    assert record is not None
    assert (record.attempt, record.lapses) == (1, 0)
    assert record.beat >= BEATS
    assert first[0].json() == again.json() == {"run": 1, "got": {}}
    assert again.replayed
    assert (slow.runs, other.runs) == (1, 0)


def test_p1_many_slow_handlers_share_their_renewals(
    place: Place, renewals: threading.Semaphore
) -> None:
    shop, keys = Shop(), [str(uuid.uuid4()) for _ in range(20)]
    shop.handler = shop.held
    with serving(guarded(shop, place)) as client:
        asking = [threading.Thread(target=client.ask, args=(key,)) for key in keys]
        for thread in asking:
            thread.start()
        shop.wait_runs(len(keys))
        wait_for(renewals)
        refused = {client.ask(key).kind for key in keys}
        shop.go_on.set()
        for thread in asking:
            thread.join(WAIT_S_MAX)
        replayed = [client.ask(key).replayed for key in keys]
    assert refused == {"in-flight"}
    assert all(replayed)
    assert shop.runs == len(keys)


# ------------------------------------------------------------------------------- killed, frozen


def lapse(place: Place, heir: Child, key: str, sign: Path) -> None:
    """Let the lease run out. Where leases are observed, the heir must have watched it."""
    if place.observing is not None:
        assert b"in-flight" in heir.pay(key, until=str(sign)).body
    place.elapse(LEASE_S)


@pytest.mark.parametrize("at", ["before_renew", "after_renew"])
def test_p6_killed_while_it_renews(place: Place, tmp_path: Path, at: str) -> None:
    ledger, sign, key = tmp_path / "ledger", tmp_path / "sign", str(uuid.uuid4())
    with serving_child(place.url, ledger, at=f"{at}=kill", lease_s=LEASE_S) as first:
        assert first.pay(key, until=str(sign)).status == 0
        assert first.process.wait() == -9
    sign.touch()
    with serving_child(place.url, ledger, lease_s=LEASE_S) as second:
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
    zombie_got: list[ChildReply] = []
    with (
        serving_child(place.url, ledger, at=f"{at}=stop", lease_s=LEASE_S) as zombie,
        serving_child(place.url, ledger, lease_s=LEASE_S) as heir,
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
        asking.join(WAIT_S_MAX)
    assert inherited.status == 201
    assert (zombie_got[0].status, zombie_got[0].body) == (201, inherited.body)
    assert zombie_got[0].headers["idempotent-replayed"] == "true"
    assert effects(ledger, key) == 2
