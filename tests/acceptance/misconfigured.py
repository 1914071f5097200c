"""An application with a mistake in its settings, as servers load it: `MISTAKE` says which.

`SERVED` says how `app` is made: as Starlette's with the middleware, as Flask's with that for WSGI,
or as FastAPI's, route by route.
"""

from __future__ import annotations

import os
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import oncekey
from oncekey import Policy

MISTAKES: dict[str, tuple[str, Any]] = {
    "no scheme": ("is not a URL", lambda: {"store": "keys.db"}),
    "unknown scheme": ("there is no store for", lambda: {"store": "nonsense://keys"}),
    "its driver": ("leave the driver out", lambda: {"store": "postgresql+asyncpg://u@h/d"}),
    "missing driver": ("pip install 'oncekey[mysql]'", lambda: {"store": "mysql://u:p@h/d"}),
    "no store": ("needs store=", lambda: {"store": ...}),
    "no tenant": ("needs tenant=", lambda: {"tenant": ...}),
    "tenant None": ("tenant=… takes a function", lambda: {"tenant": None}),
    "tenant text": ("tenant=… takes a function", lambda: {"tenant": "acme"}),
    "policy dict": ("takes an oncekey.Policy", lambda: {"policy": {"recovery": "block"}}),
    "policy recovery": ("choose one of", lambda: {"policy": Policy(recovery="blok")}),  # type: ignore[arg-type]
    "policy seconds": ("retention_s=-1", lambda: {"policy": Policy(retention_s=-1)}),
    "policy together": ("belong together", lambda: {"policy": Policy(recovery="ask")}),
    "profile": ("there is no profile 'strip'", lambda: {"profile": "strip"}),
    "unknown keyword": ("did you mean 'policy'?", lambda: {"polcy": None}),
    "routes a list": ("routes=… takes policies", lambda: {"routes": ["POST /orders"]}),
    "routes None": ("routes={'POST /orders': None}", lambda: {"routes": {"POST /orders": None}}),
    "routes a text": ("takes an oncekey.Policy", lambda: {"routes": {"POST /orders": "block"}}),
    "route": ("write a route as", lambda: {"routes": {"orders": Policy()}}),
    "hooks": ("hooks=", lambda: {"hooks": 5}),
    "none": ("", dict),
}
"""What is said of each, and the settings that it is."""


def settings() -> dict[str, Any]:
    mistake = os.environ.get("MISTAKE", "none")
    url = os.environ.get("STORE", "sqlite:///keys.db")
    given = {"store": url, "tenant": oncekey.single_tenant, **MISTAKES[mistake][1]()}
    return {name: value for name, value in given.items() if value is not ...}


async def order(request: Request) -> JSONResponse:
    return JSONResponse({"ordered": True}, status_code=201)


def _starlette() -> Any:
    from oncekey.web.asgi import IdempotencyMiddleware

    app = Starlette(routes=[Route("/orders", order, methods=["GET", "POST"])])
    app.add_middleware(IdempotencyMiddleware, **settings())
    return app


def _wsgi() -> Any:
    from flask import Flask

    from oncekey.web.wsgi import IdempotencyMiddleware

    app = Flask("orders")
    app.wsgi_app = IdempotencyMiddleware(app.wsgi_app, **settings())  # type: ignore[method-assign]
    return app


def _routed() -> Any:
    from fastapi import APIRouter, FastAPI

    from oncekey.web.fastapi import Idempotency

    idempotency = Idempotency(**settings())
    router = APIRouter(route_class=idempotency.route_class)
    router.post("/orders")(lambda: {"ordered": True})
    app = FastAPI(lifespan=idempotency.lifespan)
    app.include_router(router)
    return app


if "SERVED" in os.environ:
    app = {"starlette": _starlette, "wsgi": _wsgi, "routed": _routed}[os.environ["SERVED"]]()
