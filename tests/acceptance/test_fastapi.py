"""FastAPI with the middleware around the whole application."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Header, HTTPException
from fastapi.exception_handlers import request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

import oncekey
from oncekey.web.asgi import IdempotencyMiddleware
from tests.acceptance.client import Client
from tests.acceptance.serve import serving
from tests.acceptance.shop import kept

pytestmark = pytest.mark.slow


class Order(BaseModel):
    item: str
    quantity: int = 1


def signed_in(authorization: Annotated[str | None, Header()] = None) -> str:
    if authorization is None:
        raise HTTPException(401, "who are you?")
    return authorization


def anybody(request: oncekey.Request) -> str:
    """It lets those pass, too, whom the route refuses. `single_tenant` would not be let start."""
    return "shop"


class Shop:
    def __init__(self, store: str) -> None:
        self.store = store
        self.orders: list[Order] = []
        self.mails: list[int] = []
        self.app = FastAPI()
        self.app.post("/orders", status_code=201)(self.order)
        router = APIRouter(prefix="/accounts/{account}")
        router.post("/orders", status_code=201)(self.order_for)
        self.app.include_router(router)
        self.app.add_middleware(IdempotencyMiddleware, store=store, tenant=anybody)

    def order(
        self, order: Order, later: BackgroundTasks, who: Annotated[str, Depends(signed_in)]
    ) -> dict[str, object]:
        """A sync endpoint: FastAPI runs it in a thread, where the attempt is known too."""
        self.orders.append(order)
        number = len(self.orders)
        later.add_task(self.mails.append, number)
        oncekey.current().resource_id = f"order_{number}"
        return {"number": number, "item": order.item}

    async def order_for(self, account: str, order: Order) -> dict[str, str]:
        self.orders.append(order)
        return {"account": account, "attempt": str(oncekey.current().attempt)}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(f"sqlite:///{tmp_path / 'keys.db'}")


@pytest.fixture
def client(shop: Shop) -> Iterator[Client]:
    with serving(shop.app) as client:
        yield client


SIGNED_IN = [("Authorization", "Bearer t")]
TEA = {"item": "tea"}


def test_p3_a_retry_gets_the_same_answer(shop: Shop, client: Client) -> None:
    first = client.ask("k1", TEA, headers=SIGNED_IN)
    again = client.ask("k1", TEA, headers=SIGNED_IN)
    assert (first.status, first.json()) == (201, {"number": 1, "item": "tea"})
    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    assert len(shop.orders) == 1
    [record] = kept(shop.store)
    assert record.resource_id == "order_1"


def test_background_tasks_run_once(shop: Shop) -> None:
    with serving(shop.app) as client:
        for _ in range(3):
            client.ask("k1", TEA, headers=SIGNED_IN)
    assert shop.mails == [1]  # and the server waited for it before it ended


def test_a_route_of_an_included_router_is_a_route(shop: Shop, client: Client) -> None:
    path = "/accounts/7/orders"
    first, again = client.ask("k1", TEA, path=path), client.ask("k1", TEA, path=path)
    assert first.json() == {"account": "7", "attempt": "1"}
    assert again.replayed
    lost = client.ask("k1", TEA, path="/accounts/7/nothing")
    assert (lost.status, client.ask("k1", TEA, path="/accounts/7/nothing").replayed) == (404, False)


def test_p7_a_dependency_that_refuses_spends_nothing(shop: Shop, client: Client) -> None:
    refused = client.ask("k1", TEA)
    accepted = client.ask("k1", {"item": "coffee"}, headers=SIGNED_IN)
    assert (refused.status, accepted.status) == (401, 201)


def test_e40_a_validation_error_is_kept_like_any_other_answer(shop: Shop, client: Client) -> None:
    """In this form nobody tells the middleware that the 422 came from FastAPI and not from the
    handler: it is kept, and a corrected request needs a new key. The form for single routes, which
    runs after validation, will not see it at all.
    """
    bad = client.ask("k1", {"quantity": 2}, headers=SIGNED_IN)
    again = client.ask("k1", {"quantity": 2}, headers=SIGNED_IN)
    corrected = client.ask("k1", TEA, headers=SIGNED_IN)
    assert (bad.status, again.replayed, again.body) == (422, True, bad.body)
    assert (corrected.status, corrected.kind) == (422, "mismatch")
    assert client.ask("k2", TEA, headers=SIGNED_IN).status == 201
    assert len(shop.orders) == 1


def test_p7_a_validation_error_can_be_told_to_spend_nothing(shop: Shop) -> None:
    """The precise way until then: whoever renders the error says that nothing happened."""

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        if (attempt := oncekey.current_or_none()) is not None:
            attempt.no_effect()
        return await request_validation_exception_handler(request, error)

    shop.app.add_exception_handler(RequestValidationError, refuse)
    with serving(shop.app) as client:
        bad = client.ask("k1", {"quantity": 2}, headers=SIGNED_IN)
        corrected = client.ask("k1", TEA, headers=SIGNED_IN)
        without_key = client.ask(None, {"quantity": 2}, headers=SIGNED_IN)
    assert (bad.status, corrected.status, without_key.status) == (422, 201, 422)
    assert len(shop.orders) == 1
