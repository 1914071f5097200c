"""Routed: what cannot be meant, seeing the routes, is told when the application starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Host, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.testclient import TestClient

from oncekey import Misuse, Policy, atomic, single_tenant
from oncekey.web.asgi import IdempotencyMiddleware
from oncekey.web.fastapi import Idempotency
from oncekey.web.flask import Oncekey

FOUND = (
    "POST /{kind}",
    "POST /orders",
    "/orders",
    "DELETE /orders/{number}",
    "POST /orders/{number}/items/{item}",
    "POST /orders/7/items/tea",
    "POST /v1/refunds/{id}",
    "POST /files/anything",
)
LOST = ("POST /order", "PUT /orders", "POST /orders/{number}/item", "POST /v1/refund", "/orders/")
BLOCK = Policy(recovery="block")


async def answer(request: Any = None) -> Response:
    return Response()


def starlette() -> Starlette:
    refunds = [Route("/refunds/{id:uuid}", answer, methods=["POST"])]
    routes = [
        Route("/orders", answer, methods=["POST"]),
        Route("/orders/{number:int}", answer, methods=["DELETE"]),
        Route("/orders/{number:int}/items/{item}", answer, methods=["POST"]),
        Mount("/v1", routes=refunds),
        Mount("/files", StaticFiles(directory=".")),
    ]
    return Starlette(routes=routes)


def starlette_with(endpoint: Callable[..., Any]) -> Starlette:
    return Starlette(routes=[Route("/orders", endpoint, methods=["POST"])])


def fastapi_with(endpoint: Callable[..., Any]) -> Starlette:
    app, orders = FastAPI(), APIRouter()
    orders.post("")(endpoint)
    app.include_router(orders, prefix="/orders")
    return app


def fastapi(**settings: Any) -> FastAPI:
    app, orders, refunds = FastAPI(**settings), APIRouter(), APIRouter()
    orders.post("")(lambda: None)
    orders.delete("/{number}")(lambda number: None)
    orders.post("/{number}/items/{item}")(lambda number, item: None)
    refunds.post("/refunds/{id}")(lambda id: None)
    app.include_router(orders, prefix="/orders")
    app.include_router(refunds, prefix="/v1")
    app.mount("/files", StaticFiles(directory="."))
    return app


def told(app: Any, caplog: pytest.LogCaptureFixture) -> list[str]:
    with TestClient(app):
        said = [each.getMessage() for each in caplog.records]
    return [each.split("'")[1] for each in said if "has no such route" in each]


@pytest.mark.parametrize("make", [starlette, fastapi])
def test_the_middleware_tells_of_rules_that_apply_to_nothing(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = make()
    routes = dict.fromkeys((*FOUND, *LOST), BLOCK)
    app.add_middleware(
        IdempotencyMiddleware, store="memory://", tenant=single_tenant, routes=routes
    )
    assert told(app, caplog) == list(LOST)


def test_fastapis_routes_tell_of_them_too(caplog: pytest.LogCaptureFixture) -> None:
    routes = dict.fromkeys((*FOUND, *LOST), BLOCK)
    idempotency = Idempotency(store="memory://", tenant=single_tenant, routes=routes)
    app, guarded = fastapi(lifespan=idempotency.lifespan), idempotency.route_class
    app.include_router(APIRouter(routes=[guarded("/gifts", answer, methods=["POST"])]))
    assert told(app, caplog) == list(LOST)


def test_flask_tells_of_them_at_its_first_request(caplog: pytest.LogCaptureFixture) -> None:
    app = Flask("shop")
    routes = dict.fromkeys((*FOUND, *LOST), BLOCK)
    Oncekey(app, store="memory://", tenant=single_tenant, routes=routes)
    app.post("/orders")(lambda: "")
    app.delete("/orders/<int:number>", endpoint="cancel")(lambda number: "")
    app.post("/orders/<int:number>/items/<item>", endpoint="add")(lambda number, item: "")
    app.post("/v1/refunds/<uuid:id>", endpoint="refund")(lambda id: "")
    app.post("/files/<path:name>", endpoint="file")(lambda name: "")
    for _ in range(2):
        assert app.test_client().post("/orders").status_code == 200
    said = [each.getMessage() for each in caplog.records]
    assert [each.split("'")[1] for each in said if "has no such route" in each] == list(LOST)


@pytest.mark.parametrize(
    "app", [Starlette(routes=[Host("api.example.com", starlette())]), starlette().router]
)
def test_nothing_is_told_of_what_nobody_can_look_through(
    app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    guarded = IdempotencyMiddleware(
        app, store="memory://", tenant=single_tenant, routes={"POST /order": BLOCK}
    )
    assert told(guarded, caplog) == []


@pytest.mark.parametrize("make", [starlette_with, fastapi_with])
def test_an_endpoint_in_a_thread_that_would_have_to_await_is_refused(
    make: Callable[[Callable[..., Any]], Starlette],
) -> None:
    """It would be answered, and kept, and no row would be there."""

    def blocking(request: Any = None) -> Response:
        return Response()

    def checked(endpoint: Callable[..., Any], *policies: Policy) -> None:
        default, *others = policies
        middleware = IdempotencyMiddleware(
            make(endpoint),
            store="postgresql://127.0.0.1/shop",
            tenant=single_tenant,
            policy=default,
            routes={f"POST /route-{number}": each for number, each in enumerate(others)},
            atomic=atomic.Asyncpg(lambda: None),
        )
        middleware._check_routes(middleware.app)

    with pytest.raises(Misuse, match=r"blocking is written with def.*Asyncpg"):
        checked(blocking, Policy(atomic=True))
    checked(answer, Policy(atomic=True))
    checked(blocking, Policy(), Policy(atomic=True))  # which of them it is about is not known here
