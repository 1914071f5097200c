"""P11: what clients can make up takes no label of a metric from operations that have a name."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

import oncekey
from oncekey import Policy
from oncekey._engine.runtime import Runtime
from oncekey.events import Event
from oncekey.metrics import _catalogue as catalogue
from oncekey.metrics._measurements import OPERATIONS_MAX, Measure
from oncekey.web._routes import NAMES_MAX, Routes
from oncekey.web.asgi import IdempotencyMiddleware as AsgiMiddleware
from oncekey.web.fastapi import Idempotency
from oncekey.web.flask import Oncekey
from oncekey.web.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.web.client import ask, ask_wsgi

FLOOD = OPERATIONS_MAX + 1


class Labels:
    """Counts the label under which each completion and replay is measured."""

    def __init__(self) -> None:
        self.measure, self.counts = Measure(), Counter[str]()
        self.settings: Any = {
            "store": "memory://",
            "tenant": oncekey.single_tenant,
            "hooks": [self],
        }

    def __call__(self, event: Event) -> None:
        for measured in self.measure(event):
            if measured.metric in (catalogue.COMPLETIONS, catalogue.REPLAYS) and measured.value:
                self.counts[measured.labels[0]] += 1


@pytest.fixture
def labels() -> Labels:
    return Labels()


async def order(request: Request) -> Response:
    return Response(status_code=201)


def starlette(labels: Labels, **settings: Any) -> Any:
    inner = Starlette(routes=[Route("/orders", order, methods=["POST"])])
    routes = [
        Route("/orders", order, methods=["POST"]),
        Mount("/shop", inner),
        Mount("/shops/{shop}", inner),
        Route("/any/{path:path}", order, methods=["POST"]),
        Mount("/all", _answering),
    ]
    return AsgiMiddleware(Starlette(routes=routes), **labels.settings, **settings)


async def _answering(scope: Any, receive: Any, send: Any) -> None:
    """An application that has no routes: it takes any path."""
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def flask(labels: Labels, guard: Any = WsgiMiddleware, **settings: Any) -> tuple[Any, Any]:
    app: Any = Flask("orders")
    app.post("/orders", endpoint="orders")(lambda: ("", 201))
    app.post("/any/<path:path>", endpoint="any")(lambda path: ("", 201))
    if guard is Oncekey:
        return app, Oncekey(app, **labels.settings, **settings)
    app.wsgi_app = guarded = guard(app.wsgi_app, **labels.settings, **settings)
    return app, guarded


@pytest.mark.parametrize("prefix", ["/any/", "/all/", "/nowhere/", "/shops/", "//any//"])
def test_p11_paths_share_one_label_and_take_none_from_routes(labels: Labels, prefix: str) -> None:
    app = starlette(labels, routes={"POST /any/template": Policy(), "POST /{name}": Policy()})

    async def flooded() -> None:
        for n in range(FLOOD):
            await ask(app, f"k{n}", path=f"{prefix}{n}/orders")
        labels.counts.clear()
        for path in ("/any/template", "/orders", "/shop/orders"):
            for _ in range(2):
                await ask(app, "k", path=path)
        await ask(app, "other", path=f"{prefix}more/orders")

    asyncio.run(flooded())
    named = {"POST /any/template", "POST /{name}", "POST /shop/orders"}
    assert {label: labels.counts[label] for label in named} == dict.fromkeys(named, 2)
    assert labels.counts.keys() - named <= {"other"}


def test_p11_methods_that_are_made_up_are_no_names(labels: Labels) -> None:
    """A template without a method stands for any, and a second one is looked at with the first."""
    app = starlette(labels, routes={"/orders": Policy()})
    named = [(b"x-http-method-override", b"POST")]

    async def flooded() -> None:
        assert (await ask(app, "k", method="MADEUP", headers=named)).status == 400
        assert (await ask(app, "k")).status == 201

    asyncio.run(flooded())
    assert app.edge.routes.names == {"POST /orders"}


def test_p11_a_static_route_is_known_by_its_first_answer(labels: Labels) -> None:
    app, guard = flask(labels)
    for n in range(FLOOD):
        ask_wsgi(app, f"k{n}", path=f"/any/{n}")
    for path in ("/orders", "//orders"):
        ask_wsgi(app, path, path=path)
    assert labels.counts == {"other": FLOOD, "POST /orders": 2}
    guard.close()


def test_p11_rules_of_flask_keep_their_labels(labels: Labels) -> None:
    app, guard = flask(labels, Oncekey)
    for n in range(FLOOD):
        ask_wsgi(app, f"k{n}", path=f"/any/{n}")
    ask_wsgi(app, "k", path="/orders")
    assert labels.counts == {"POST /any/{path}": FLOOD, "POST /orders": 1}
    guard.close()


def test_p11_routes_of_fastapi_keep_their_labels(labels: Labels) -> None:
    idempotency, app = Idempotency(**labels.settings), FastAPI()
    app.router.route_class = idempotency.route_class

    @app.post("/any/{path:path}")
    async def any_path(path: str) -> None:
        """Nothing."""

    async def flooded() -> None:
        for n in range(FLOOD):
            await ask(app, f"k{n}", path=f"/any/{n}")

    asyncio.run(flooded())
    assert labels.counts == {"POST /any/{path}": FLOOD}


def test_p11_functions_keep_their_labels(labels: Labels) -> None:
    with Runtime("memory://", hooks=[labels]) as runtime:
        for n in range(3):
            oncekey.once(runtime, key="{order}", name=f"charge {n}")(_charge)("o1")
    assert labels.counts == {f"charge {n}": 1 for n in range(3)}


def _charge(order: str) -> str:
    return order


def test_p11_names_have_a_limit_too() -> None:
    """A proxy may let its client say where an application is mounted."""
    routes = Routes(Policy())
    for n in range(NAMES_MAX + 2):
        routes.note(f"POST /{n}/orders")
    assert len(routes.names) == NAMES_MAX
