"""The same shop in every form: one guarded `POST /orders`, whose work a test can replace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django.http import HttpRequest, HttpResponse
from fastapi import APIRouter, FastAPI
from fastapi.responses import JSONResponse
from flask import Flask

from oncekey import Policy, single_tenant
from oncekey._core.record import Record
from oncekey._core.verbs import Scan
from oncekey._system.clock import FakeClock
from oncekey.stores.batching import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.web.asgi import IdempotencyMiddleware
from oncekey.web.fastapi import Idempotency
from oncekey.web.flask import Oncekey
from oncekey.web.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.web.client import Reply, ask, ask_wsgi
from tests.web.django.site import Site

Work = Callable[[], tuple[int, Any]]
"""What a handler does: gives the status and body of its answer, or raises."""

FORMS = (
    "asgi",
    "fastapi middleware",
    "fastapi route",
    "wsgi",
    "flask middleware",
    "flask extension",
    "django wsgi",
    "django asgi",
    "django asgi, async views",
)


class Shop:
    """A shop in one form, on a memory store with a clock that is driven."""

    def __init__(self, form: str, policy: Policy, **settings: Any) -> None:
        self.form = form
        self.clock = FakeClock()
        self.store = settings.pop("store", None) or MemoryStore(self.clock)
        self.runs = 0
        self.work: Work = lambda: (201, {"run": self.runs})
        self.settings = {"store": self.store, "policy": policy, **settings}
        self.raised: list[BaseException] = []
        """What left the application, for its server to log."""
        self._ask: Callable[..., Reply] = lambda *_, **__: Reply()
        self._closed = ExitStack()

    def ask(self, key: str | None, body: Any = b"{}", **more: Any) -> Reply:
        return self._ask(key, body, **more)

    def run(self) -> tuple[int, Any]:
        self.runs += 1
        return self.work()

    def records(self) -> list[Record]:
        return list(Gatherer(self.store).ask(Scan(100)))

    def __enter__(self) -> Shop:
        _OPENED[self.form](self, self._closed)
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.close()

    # --------------------------------------------------------------------------- clients

    def serve_asgi(self, app: Any) -> None:
        """As a server does: what leaves the application is logged, the client has what was sent."""

        async def served(scope: Any, receive: Any, send: Any) -> None:
            try:
                await app(scope, receive, send)
            except Exception as error:
                self.raised.append(error)

        def asked(key: Any, body: Any, **more: Any) -> Reply:
            reply = asyncio.run(ask(served, key, body, **more))
            return reply if reply.status else Reply(500)

        self._ask = asked

    def serve_wsgi(self, app: Any) -> None:
        """The same."""

        def asked(key: Any, body: Any, **more: Any) -> Reply:
            try:
                return ask_wsgi(app, key, body, **more)
            except Exception as error:
                self.raised.append(error)
                return Reply(500)

        self._ask = asked


def _asgi(shop: Shop, closed: ExitStack) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["endpoint"] = app
        status, body = shop.run()
        lines = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": lines})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    shop.serve_asgi(IdempotencyMiddleware(app, tenant=single_tenant, **shop.settings))


def _fastapi_middleware(shop: Shop, closed: ExitStack) -> None:
    app = FastAPI()

    @app.post("/orders")
    async def order() -> JSONResponse:
        status, body = shop.run()
        return JSONResponse(body, status)

    app.add_middleware(IdempotencyMiddleware, tenant=single_tenant, **shop.settings)
    shop.serve_asgi(app)


def _fastapi_route(shop: Shop, closed: ExitStack) -> None:
    idempotency = Idempotency(tenant=single_tenant, **shop.settings)
    app, router = FastAPI(), APIRouter(route_class=idempotency.route_class)

    @router.post("/orders")
    async def order() -> JSONResponse:
        status, body = shop.run()
        return JSONResponse(body, status)

    app.include_router(router)
    shop.serve_asgi(app)


def _wsgi(shop: Shop, closed: ExitStack) -> None:
    def app(environ: Any, start_response: Any) -> Any:
        status, body = shop.run()
        start_response(f"{status} Said", [("Content-Type", "application/json")])
        return [json.dumps(body).encode()]

    guarded = WsgiMiddleware(app, tenant=single_tenant, **shop.settings)
    closed.callback(guarded.close)
    shop.serve_wsgi(guarded)


def _flask(shop: Shop) -> Flask:
    app = Flask("shop")

    @app.post("/orders")
    def order() -> Any:
        status, body = shop.run()
        return body, status

    return app


def _flask_middleware(shop: Shop, closed: ExitStack) -> None:
    app = _flask(shop)
    guarded = WsgiMiddleware(app.wsgi_app, tenant=single_tenant, **shop.settings)
    closed.callback(guarded.close)
    shop.serve_wsgi(guarded)


def _flask_extension(shop: Shop, closed: ExitStack) -> None:
    app = _flask(shop)
    closed.callback(Oncekey(app, tenant=single_tenant, **shop.settings).close)
    shop.serve_wsgi(app)


def _django(handler: str) -> Callable[[Shop, ExitStack], None]:
    def opened(shop: Shop, closed: ExitStack) -> None:
        site = closed.enter_context(Site(handler, **shop.settings))

        def order(request: HttpRequest) -> HttpResponse:
            status, body = shop.run()
            return HttpResponse(json.dumps(body), status=status, content_type="application/json")

        site.route("orders", site.both(order))
        shop._ask = lambda key, body, **more: site.ask(key, body, **more)

    return opened


_OPENED: dict[str, Callable[[Shop, ExitStack], None]] = {
    "asgi": _asgi,
    "fastapi middleware": _fastapi_middleware,
    "fastapi route": _fastapi_route,
    "wsgi": _wsgi,
    "flask middleware": _flask_middleware,
    "flask extension": _flask_extension,
    "django wsgi": _django("wsgi"),
    "django asgi": _django("asgi"),
    "django asgi, async views": _django("asgi, async views"),
}


@contextmanager
def shop_of(form: str, **settings: Any) -> Iterator[Shop]:
    """A shop in this form, closed at the end; `policy` is its whole policy."""
    with Shop(form, settings.pop("policy", Policy()), **settings) as shop:
        yield shop
