"""Warnings: each once per process, by a logger of its own, and only of what nobody has decided."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import flask
import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from oncekey import Policy, Runtime, once, single_tenant
from oncekey._system import warn_once
from oncekey.web import flask as web_flask
from oncekey.web.asgi import IdempotencyMiddleware
from oncekey.web.fastapi import Idempotency, idempotent

pytestmark = pytest.mark.filterwarnings("error")


def nothing() -> dict[str, int]:
    return {}


Told = Callable[[], list[str]]
KEY = {"Idempotency-Key": "k"}
BLOCK = Policy(recovery="block")


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    """What was said of recovery, without what follows the names."""
    caplog.set_level(logging.WARNING, "oncekey")
    return lambda: [
        each.getMessage().partition("a retry runs it again: ")[2].partition(". Where")[0]
        for each in caplog.records
        if each.name == "oncekey.recovery"
    ]


async def order(request: Request) -> JSONResponse:
    return JSONResponse({})


def asgi(**settings: Any) -> Starlette:
    shop = [Route("/refunds/{id}", order, methods=["POST"])]
    routes = [Route("/orders", order, methods=["GET", "POST"]), Mount("/shop", routes=shop)]
    app = Starlette(routes=routes)
    given = {"store": "memory://", "tenant": single_tenant, **settings}
    app.add_middleware(IdempotencyMiddleware, **given)
    return app


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, ["POST /orders, POST /shop/refunds/{id}"]),
        ({"routes": {"POST /orders": BLOCK}}, ["POST /shop/refunds/{id}"]),
        ({"routes": {"/orders": BLOCK, "/shop/refunds/{n}": Policy(recovery="rerun")}}, []),
        ({"policy": Policy(recovery="rerun")}, []),
        ({"policy": BLOCK, "routes": {"POST /orders": Policy(required=True)}}, []),
        ({"policy": Policy(methods=())}, []),
    ],
)
def test_what_was_decided_is_not_warned_of(
    told: Told, settings: dict[str, Any], named: list[str]
) -> None:
    with TestClient(asgi(**settings)):
        assert told() == named


def test_what_many_applications_say_alike_is_said_once(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        with TestClient(asgi()):
            pass
    assert len(told()) == 1
    assert [each.name for each in caplog.records].count("oncekey.store") == 1
    for each in caplog.records:
        assert f"logging.getLogger({each.name!r}).setLevel('ERROR') silences" in each.getMessage()


def test_it_is_silenced_as_it_says(told: Told) -> None:
    logger = logging.getLogger("oncekey.recovery")
    logger.setLevel("ERROR")
    try:
        with TestClient(asgi()):
            assert told() == []
    finally:
        logger.setLevel(logging.NOTSET)


def test_route_by_route_the_marks_count(told: Told) -> None:
    guard = Idempotency(store="memory://", tenant=single_tenant)
    router = APIRouter(route_class=guard.route_class)
    router.post("/plain")(nothing)

    @router.post("/blocked")
    @idempotent(BLOCK)
    def blocked() -> dict[str, int]:
        return {}

    @router.post("/required")
    @idempotent(Policy(required=True))
    def required() -> dict[str, int]:
        return {}

    app = FastAPI(lifespan=guard.lifespan)
    app.include_router(router, prefix="/v1")
    app.post("/unguarded")(nothing)
    with TestClient(app):
        assert told() == ["POST /v1/plain, POST /v1/required"]


def test_of_flask_s_views_the_marks_count(told: Told) -> None:
    app = flask.Flask("shop")
    guard = web_flask.Oncekey(app, store="memory://", tenant=single_tenant)

    @app.post("/plain/<int:number>")
    def plain(number: int) -> dict[str, int]:
        return {}

    @app.post("/blocked")
    @web_flask.idempotent(BLOCK)
    def blocked() -> dict[str, int]:
        return {}

    @app.put("/required")
    @web_flask.idempotent(Policy(required=True))
    def required() -> dict[str, int]:
        return {}

    @app.post("/not")
    @web_flask.not_idempotent
    def unguarded() -> dict[str, int]:
        return {}

    assert app.test_client().post("/plain/7", headers=KEY).status_code == 200
    [named] = told()
    assert sorted(named.split(", ")) == ["POST /plain/{number}", "PUT /required"]
    guard.close()


def test_a_function_whose_recovery_was_chosen_is_not_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "oncekey.recovery")
    with Runtime("memory://") as runtime:
        once(runtime, key="{n}", name="f", policy=Policy(recovery="rerun"))(lambda n: n)("1")
        assert "oncekey.recovery" not in {each.name for each in caplog.records}
        once(runtime, key="{n}", name="g")(lambda n: n)("1")
    assert "while it runs g, the next call runs it again" in caplog.text


def test_a_long_list_is_cut() -> None:
    assert warn_once.listed(["a", "b"]) == "a, b"
    assert warn_once.listed(list("abcdefg")) == "a, b, c, d, e and 2 more"
