"""The application under attack: orders come in by one edge of oncekey, a route for each way to be
safe.

python -m soak.application SETTINGS STORE_URL LEDGER MARK LISTENING_FD
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
import werkzeug
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from werkzeug.serving import make_server

from oncekey import Policy, Runtime
from oncekey._core.op import arun, run
from oncekey._engine.recovery import Recoverer
from oncekey.messaging import Limits, Message, Outbox, Publisher
from oncekey.web import asgi, wsgi
from soak import calls, drivers, engines, handler
from soak.calls import Functions, Messages, Told
from soak.hands import Hands
from soak.ledger import Id, Ledger
from soak.settings import BLOCKING, Settings
from soak.wall import Wall


class Application:
    """One worker's: its store, its driver, its ledger, and the two ways to serve them."""

    def __init__(self, settings: Settings, url: str, ledger: Ledger, mark: Path) -> None:
        self.settings = settings
        self.store = engines.open_store(url, sealed=settings.sealed)
        self.ledger = ledger
        self._mark = mark
        self.driver = None
        self.outbox = None
        if settings.driver:
            self.driver = drivers.open_driver(settings.driver, settings.engine, url)
            self.outbox = Outbox(engines.open_database(url))
        self.hands = Hands(self.driver, self.outbox)

    async def work(self, order: dict[str, Any]) -> dict[str, Any]:
        cut = order["how"] == handler.CUT_OFF
        async with asyncio.timeout(order["seconds"] + handler.LIMIT_S if cut else None):
            return await arun(handler.handle(self.ledger, order), self.hands.do)

    def work_sync(self, order: dict[str, Any]) -> dict[str, Any]:
        return run(handler.handle(self.ledger, order), self.hands.do_sync)

    def guarding(self) -> dict[str, Any]:
        """How the middleware is set, of either kind."""
        policies = {**handler.policies(self.ledger), "atomic": Policy(atomic=True)}
        return {
            "store": self.store,
            "tenant": lambda request: request.headers["x-account"],
            "routes": {f"POST /{name}": policies[name] for name in self.settings.routes},
            "atomic": None if self.driver is None else self.driver.adapter(),
            "hooks": [handler.watch],
        }

    def calling(self) -> Functions | Messages:
        """What is called where there is no middleware."""
        runtime = Runtime(self.store, hooks=[handler.watch, calls.watch])
        policies = {**handler.policies(self.ledger), "atomic": Policy()}
        policies = {name: policies[name] for name in self.settings.routes}
        if self.settings.kind.startswith("inbox"):
            return Messages(runtime, policies, self.work, self.work_sync, self.driver)
        work = self.work_sync if self.settings.kind in BLOCKING else self.work
        return Functions(runtime, policies, work)

    def publish(self, message: Message) -> None:
        told = json.loads(message.payload)
        self.ledger.note("published", Id(*told["id"]), told["run"], step=told["part"])

    def begin(self) -> None:
        """It serves from now on, and says so by its mark."""
        self._start_publishing()
        self._mark.write_text(str(os.getpid()))

    def _start_publishing(self) -> None:
        if self.outbox is not None:
            limits = Limits(lease_s=handler.LEASE_S, attempts_max=10_000)
            publisher = Publisher(self.outbox, self.publish, limits=limits)
            threading.Thread(target=publisher.run_sync, daemon=True).start()


def serve_asgi(listening: socket.socket, application: Application) -> None:
    calling = None if application.settings.kind == "asgi" else application.calling()

    async def order(request: Request) -> Response:
        sent = await request.json()
        if calling is None:
            try:
                told = calls.done(await application.work(sent))
            except handler.Broken:
                raise
            except Exception as error:
                told = calls.failed(error)
        else:
            route, headers = request.path_params["route"], request.headers
            key = headers["idempotency-key"]
            told = await calling.call(route, headers["x-account"], key, sent)
        body, status, lines = told
        return Response(handler.written(body), status, {**handler.JSON, **lines})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if isinstance(application.driver, drivers.Awaited):
            await application.driver.open()
        async with Recoverer(application.store):
            application.begin()
            yield

    app = Starlette(routes=[Route("/{route}", order, methods=["POST"])], lifespan=lifespan)
    if calling is None:
        app.add_middleware(asgi.IdempotencyMiddleware, **application.guarding())
    config = uvicorn.Config(app, access_log=False, log_level="warning")
    uvicorn.Server(config).run(sockets=[listening])


def serve_wsgi(listening: socket.socket, application: Application) -> None:
    calling = None if application.settings.kind == "wsgi" else application.calling()

    def order(request: werkzeug.Request) -> Told:
        if calling is None:
            try:
                return calls.done(application.work_sync(request.get_json()))
            except handler.Broken:
                raise
            except Exception as error:
                return calls.failed(error)
        headers, route = request.headers, request.path[1:]
        sent = headers["x-account"], headers["idempotency-key"], request.get_json()
        return calling.call_sync(route, *sent)

    @werkzeug.Request.application
    def app(request: werkzeug.Request) -> werkzeug.Response:
        body, status, lines = order(request)
        return werkzeug.Response(handler.written(body), status, {**handler.JSON, **lines})

    served: Any = app
    if calling is None:
        served = wsgi.IdempotencyMiddleware(app, **application.guarding())
    with Recoverer(application.store):
        application.begin()
        make_server("127.0.0.1", 0, served, threaded=True, fd=listening.fileno()).serve_forever()


def main() -> None:
    text, url, ledger, mark, descriptor = sys.argv[1:]
    settings = Settings.of_text(text)
    Wall(Path(mark).with_suffix(".wall")).follow()
    application = Application(settings, url, Ledger(ledger), Path(mark))
    serve = serve_wsgi if settings.kind in BLOCKING else serve_asgi
    serve(socket.socket(fileno=int(descriptor)), application)


if __name__ == "__main__":
    main()
