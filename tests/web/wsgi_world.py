"""An application behind the WSGI middleware, on the memory store with a clock that is driven."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

import oncekey
from oncekey._core.record import State
from oncekey._core.verbs import Count, Scan
from oncekey._system.clock import FakeClock
from oncekey.stores.batching import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.web.wsgi import IdempotencyMiddleware
from tests.clocks import set_clock


class World:
    """An application whose handler a test can replace, its store and its clock."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.runs = 0
        self.handler = self.answer_with({"ok": True})
        settings = {"store": self.store, "tenant": tenant_of, **settings}
        self.app = IdempotencyMiddleware(self._app, **settings)
        self.app.edge.clock = self.clock
        set_clock(self.app.edge.guard, self.clock)

    def _app(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        self.runs += 1
        environ["werkzeug.request"] = Matched()
        answered: Iterable[bytes] = self.handler(environ, start_response)
        return answered

    def answer_with(self, body: Any, status: str = "201 Created", headers: Any = ()) -> Any:
        def handler(environ: Any, start_response: Any) -> Iterable[bytes]:
            start_response(status, [("Content-Type", "application/json"), *headers])
            return [body if isinstance(body, bytes) else json.dumps(body).encode()]

        return handler

    def counting(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        answered: Iterable[bytes] = self.answer_with({"run": self.runs})(environ, start_response)
        return answered

    def states(self) -> list[State]:
        return [record.state for record in Gatherer(self.store).ask(Scan(100))]

    def stored(self) -> int:
        return int(sum(Gatherer(self.store).ask(Count()).values()))


class Matched:
    url_rule = "/orders"


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.app.close()


def tenant_of(request: oncekey.Request) -> str | None:
    return request.headers.get("x-account", "acme")
