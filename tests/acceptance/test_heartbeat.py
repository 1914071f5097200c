"""A handler may be slower than its lease: while its process lives, the lease is renewed (P1).

Leases are a second long, and what is waited for is renewals, not time.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator

import pytest
from starlette.requests import Request
from starlette.responses import Response

from oncekey import Policy, single_tenant
from oncekey._engine.heartbeat import BEATS_PER_LEASE
from oncekey._system import probes
from oncekey.web.asgi import IdempotencyMiddleware
from tests.acceptance.serve import serving
from tests.acceptance.shop import WAIT_S_MAX, Shop
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
