"""Our client against our server, over a wire that loses answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from oncekey import single_tenant
from oncekey._core.profiles import PROFILES
from oncekey.client import Client, Retries, outcome_of
from oncekey.errors import Mismatch
from oncekey.web.asgi import IdempotencyMiddleware
from tests.acceptance.serve import serving
from tests.acceptance.shop import Shop

pytestmark = pytest.mark.slow

QUICK = Retries(backoff_s=0.01, backoff_s_max=0.05)


class Losing(httpx2.HTTPTransport):
    """Requests arrive, and so many answers get lost on the way back."""

    def __init__(self, losses: int = 0) -> None:
        super().__init__()
        self.losses = losses

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = super().handle_request(request)
        if self.losses > 0:
            self.losses -= 1
            response.read()
            response.close()
            raise httpx2.ReadError("the answer got lost")
        return response


@pytest.fixture(params=sorted(PROFILES))
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def url(shop: Shop, profile: str, tmp_path: Any) -> Iterator[str]:
    store = f"sqlite:///{tmp_path}/keys.db"
    app = IdempotencyMiddleware(shop.app, store=store, tenant=single_tenant, profile=profile)
    with serving(app) as served:
        yield f"http://127.0.0.1:{served.port}"


def test_lost_answers_are_fetched_and_the_order_is_one(shop: Shop, url: str, profile: str) -> None:
    transport = Losing(losses=3)
    with Client(base_url=url, transport=transport, profile=profile, retries=QUICK) as api:
        answer = api.post("/orders", json={"sku": "mug"})

    told = outcome_of(answer)
    assert told is not None
    assert (answer.status_code, answer.json()["run"]) == (201, 1)
    assert (told.attempts, told.replayed, shop.runs) == (4, True, 1)
    assert told.expires is not None


def test_one_who_is_impatient_meets_its_own_first_try_and_waits_for_it(
    shop: Shop, url: str, profile: str
) -> None:
    """The first try runs on when its client has hung up: a retry is told so, or waits for it."""
    shop.handler = shop.held

    def release(event: object) -> None:
        """After the second try, which met the first."""
        if getattr(event, "attempt", 0) >= 2 and shop.started.is_set():
            shop.go_on.set()

    with Client(base_url=url, profile=profile, retries=QUICK, timeout=0.3, hooks=[release]) as api:
        answer = api.post("/orders", json={"sku": "mug"})

    told = outcome_of(answer)
    assert told is not None
    assert (answer.status_code, told.replayed, shop.runs) == (201, True, 1)
    assert told.attempts >= 3


def test_another_request_under_the_same_key_is_a_mismatch(
    shop: Shop, url: str, profile: str
) -> None:
    key = "018bcfe5-6800-7000-8000-000000000001"
    with Client(base_url=url, profile=profile, retries=QUICK) as api:
        api.post("/orders", json={"sku": "mug"}, key=key)
        with pytest.raises(Mismatch):
            api.post("/orders", json={"sku": "cup"}, key=key)

    assert shop.runs == 1
