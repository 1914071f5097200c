"""An application of Flask with guarded views, for tests."""

from __future__ import annotations

from typing import Any

from flask import Flask, abort, g, request

from oncekey._core.record import Record
from oncekey._core.verbs import Scan
from oncekey._system.clock import FakeClock
from oncekey.stores.batching import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.web.flask import Oncekey
from tests.web.client import Reply, ask_wsgi


def account_of(request: Any) -> str | None:
    account: str | None = g.account
    return account


def sign_in() -> None:
    g.account = request.headers.get("Authorization")
    if g.account == "eve":
        abort(403)


class World:
    """An application, its store, and how often its views ran."""

    def __init__(self, **settings: Any) -> None:
        self.store = MemoryStore(FakeClock())
        self.app = Flask("orders")
        self.app.secret_key = "sessions"
        self.extension = Oncekey(**{"store": self.store, "tenant": account_of, **settings})
        self.extension.init_app(self.app)
        self.app.before_request(sign_in)
        self.runs = 0

    def run(self) -> int:
        self.runs += 1
        return self.runs

    def ask(self, key: str | None, body: Any = b"{}", *, who: str = "ann", **more: Any) -> Reply:
        return ask_wsgi(self.app, key, body, HTTP_AUTHORIZATION=who, **more)

    def records(self) -> list[Record]:
        return list(Gatherer(self.store).ask(Scan(100)))


def ordering(**settings: Any) -> World:
    """A world with one view: `POST /orders`."""
    world = World(**settings)

    @world.app.post("/orders")
    def order() -> tuple[dict[str, int], int, dict[str, str]]:
        return {"run": world.run()}, 201, {"Location": "/orders/1"}

    return world
