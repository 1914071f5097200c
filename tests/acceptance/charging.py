"""`POST /charges`, which needs a key, in applications whose routers read paths as they like."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from oncekey import Policy, single_tenant
from oncekey.web.asgi import IdempotencyMiddleware as AsgiMiddleware
from oncekey.web.wsgi import IdempotencyMiddleware as WsgiMiddleware

WSGI = ("flask", "flask-not-strict", "flask-extension", "flask-mounted")
ASGI = ("quart", "litestar", "fastapi", "fastapi-route")


def build(kind: str, store: str, named: bool = True) -> Any:
    """An application. Unless its route is `named`, all its routes have the same rules."""
    charge = Policy(required=True, recovery="block")
    rules: dict[str, Any] = {"routes": {"POST /charges": charge}} if named else {"policy": charge}
    made = _APPLICATIONS[kind]({"store": store, "tenant": single_tenant, **rules})
    return made


def close(app: Any) -> None:
    """Stop what works beside the requests of a WSGI application."""
    extension = getattr(app, "extensions", {}).get("oncekey")
    if extension is not None:
        extension.close()
    for guard in (app, getattr(app, "wsgi_app", None)):
        if isinstance(guard, WsgiMiddleware):
            guard.close()


def _flask(settings: dict[str, Any], *, strict: bool = True) -> Any:
    app = _plain_flask(strict)
    app.wsgi_app = WsgiMiddleware(app.wsgi_app, **settings)
    return app


def _extension(settings: dict[str, Any]) -> Any:
    from oncekey.web.flask import Oncekey

    app = _plain_flask(strict=False)
    Oncekey(app, **settings)
    return app


def _mounted(settings: dict[str, Any]) -> Any:
    """Guarded from outside of what mounts it; so the mount is part of the path."""
    from werkzeug.exceptions import NotFound
    from werkzeug.middleware.dispatcher import DispatcherMiddleware

    rules = settings.get("routes", {})
    settings["routes"] = {text.replace("/", "/shop/"): rule for text, rule in rules.items()}
    inner = DispatcherMiddleware(NotFound(), {"/shop": _plain_flask(strict=True).wsgi_app})
    return WsgiMiddleware(inner, **settings)


def _plain_flask(strict: bool) -> Any:
    from flask import Flask

    app, runs = Flask("shop"), itertools.count(1)
    app.url_map.strict_slashes = strict

    @app.post("/charges")
    def charge() -> tuple[dict[str, int], int]:
        return {"run": next(runs)}, 201

    return app


def _quart(settings: dict[str, Any]) -> Any:
    from quart import Quart

    app, runs = Quart("shop"), itertools.count(1)

    @app.post("/charges")
    async def charge() -> tuple[dict[str, int], int]:
        return {"run": next(runs)}, 201

    made: Any = app
    made.asgi_app = AsgiMiddleware(made.asgi_app, **settings)
    return made


def _litestar(settings: dict[str, Any]) -> Any:
    from litestar import Litestar, post

    runs = itertools.count(1)

    async def charge() -> dict[str, int]:
        return {"run": next(runs)}

    # Litestar reads annotations when the route is made, as text they would need its globals.
    charge.__annotations__ = {"return": dict[str, int]}
    # It would set up logging for this whole process, and for the tests that follow.
    app: Any = Litestar([post("/charges")(charge)], logging_config=None)
    return AsgiMiddleware(app, **settings)


def _fastapi(settings: dict[str, Any]) -> Any:
    from fastapi import FastAPI

    app, runs = FastAPI(), itertools.count(1)

    @app.post("/charges", status_code=201)
    async def charge() -> dict[str, int]:
        return {"run": next(runs)}

    app.add_middleware(AsgiMiddleware, **settings)
    return app


def _fastapi_route(settings: dict[str, Any]) -> Any:
    from fastapi import FastAPI

    from oncekey.web.fastapi import Idempotency

    idempotency, runs = Idempotency(**settings), itertools.count(1)
    app = FastAPI(lifespan=idempotency.lifespan)
    app.router.route_class = idempotency.route_class

    @app.post("/charges", status_code=201)
    async def charge() -> dict[str, int]:
        return {"run": next(runs)}

    return app


_APPLICATIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "flask": _flask,
    "flask-not-strict": lambda settings: _flask(settings, strict=False),
    "flask-extension": _extension,
    "flask-mounted": _mounted,
    "quart": _quart,
    "litestar": _litestar,
    "fastapi": _fastapi,
    "fastapi-route": _fastapi_route,
}
