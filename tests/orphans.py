"""Orphans for tests: records of a middleware whose process died, and a recoverer for them."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import Any

from oncekey import Policy, current
from oncekey._core.record import Record, Step
from oncekey._core.verbs import AppendStep, Done, Find
from oncekey._engine.attempt import Attempt
from oncekey._engine.guard import Call, Execute
from oncekey._engine.recovery import Ending, Recovered, Recoverer
from oncekey._engine.steps import digest_of
from oncekey._system.clock import FakeClock
from oncekey.events import Event
from oncekey.stores.batching import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.web import _asgi_messages as messages
from oncekey.web import _wsgi_environ as environs
from oncekey.web import asgi, wsgi
from oncekey.web._body import Body
from tests.web.client import request_headers, scope_for

LEASE_S = 30.0
TENANT = "acme"


def nobody(request: object) -> str:
    """A tenant function that must not be asked."""
    raise AssertionError("the tenant function was called")


@dataclass
class Service:
    """An application behind the middleware. Its store's clock is moved by the test."""

    middleware: asgi.IdempotencyMiddleware | wsgi.IdempotencyMiddleware
    store: MemoryStore
    clock: FakeClock
    events: list[Event] = field(default_factory=list)
    endings: list[Recovered] = field(default_factory=list)

    @property
    def edge(self) -> Any:
        return self.middleware.edge

    def call(self, key: str, body: Any, path: str, headers: Any) -> tuple[Call, Policy]:
        raw = json.dumps(body).encode()
        lines = request_headers(key, raw, "application/json", headers)
        request = messages.request(scope_for("POST", path, lines))
        if isinstance(self.middleware, wsgi.IdempotencyMiddleware):
            request = environs.request(environ_of(lines, path, raw))
        route = self.edge.routes.match("POST", path)
        call = self.edge.call(request, route, TENANT, key, Body(raw))
        assert isinstance(call, Call)
        return call, route.policy

    def abandon(
        self,
        key: str = "k",
        body: Any = None,
        *,
        path: str = "/pay",
        headers: Any = (),
        **steps: Any,
    ) -> bytes:
        """A request began, took these steps, and its process died; its lease is over. Its id."""
        attempt = self.begin(key, body, path=path, headers=headers)
        for name, result in steps.items():
            kept = Step(name, digest_of(name, ((), {})), json.dumps(result).encode())
            held = attempt.held
            appended = self.ask(AppendStep(held.id, held.fence, held.token, kept))
            assert isinstance(appended, Done)
        self.clock.advance(LEASE_S)
        return attempt.held.id

    def begin(self, key: str, body: Any, *, path: str = "/pay", headers: Any = ()) -> Attempt:
        call, policy = self.call(key, body if body is not None else {}, path, headers)
        decision = self.edge.runtime.drive_sync(self.edge.guard.begin(call, policy))
        assert isinstance(decision, Execute)
        return decision.attempt

    def ask(self, verb: Any) -> Any:
        return Gatherer(self.store).ask(verb)

    def look(self, record_id: bytes) -> Record:
        found = self.ask(Find(record_id))
        assert isinstance(found, Record)
        return found

    def recoverer(self, **settings: Any) -> Recoverer:
        return Recoverer(
            self.store,
            report=self.endings.append,
            chance=lambda: 0.0,  # the next try is due as soon as the lease is over
            **settings,
        )

    async def recover(self, **settings: Any) -> list[tuple[Ending, str]]:
        """One round, to its end: what became of each orphan."""
        self.endings.clear()
        recoverer = self.recoverer(**settings)
        await recoverer.round()
        await recoverer.settle()
        return [(recovered.ending, recovered.reason) for recovered in self.endings]


def environ_of(lines: list[tuple[bytes, bytes]], path: str, body: bytes) -> dict[str, Any]:
    environ: dict[str, Any] = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": path,
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
    }
    for name, content in lines:
        variable = name.decode().upper().replace("-", "_")
        bare = variable in ("CONTENT_TYPE", "CONTENT_LENGTH")
        environ[variable if bare else f"HTTP_{variable}"] = content.decode("latin-1")
    return environ


@dataclass
class Shop:
    """The handler: notes every run, and answers what a test wants."""

    status: int = 201
    failure: Exception | None = None
    runs: list[dict[str, Any]] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)

    def note(self, body: bytes, headers: dict[str, str]) -> None:
        attempt = current()
        self.runs.append(
            {
                "body": json.loads(body),
                "headers": headers,
                "attempt": attempt.attempt,
                "recovering": attempt.recovering,
                "tenant": attempt.tenant,
                "key": attempt.key,
            }
        )
        if self.failure is not None:
            raise self.failure

    def effect(self, name: str) -> str:
        self.effects.append(name)
        return f"{name} by {current().child_key(name)}"

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        self.note(body, {n.decode(): v.decode() for n, v in scope["headers"]})
        scope["endpoint"] = self
        for name in ("authorise", "capture"):
            await current().step(name, lambda name=name: self.effect(name))
        line = (b"content-type", b"application/json")
        await send({"type": "http.response.start", "status": self.status, "headers": [line]})
        await send({"type": "http.response.body", "body": b'{"paid": true}'})

    def wsgi(self, environ: Any, start_response: Any) -> list[bytes]:
        headers = {
            n[5:].lower().replace("_", "-"): v for n, v in environ.items() if n[:5] == "HTTP_"
        }
        self.note(environ["wsgi.input"].read(), headers)
        environ["django.route"] = "pay"
        for name in ("authorise", "capture"):
            current().step_sync(name, lambda name=name: self.effect(name))
        start_response(f"{self.status} said", [("content-type", "application/json")])
        return [b'{"paid": true}']


def service(
    shop: Shop, kind: str = "asgi", store: MemoryStore | None = None, **policy: Any
) -> Service:
    """The shop behind the middleware, in one of the two ways."""
    clock = FakeClock()
    store, events = store or MemoryStore(clock), list[Event]()
    rules = Policy(**{"lease_s": LEASE_S, "recovery": "resume", **policy})
    middleware: asgi.IdempotencyMiddleware | wsgi.IdempotencyMiddleware
    if kind == "asgi":
        middleware = asgi.IdempotencyMiddleware(
            shop.asgi, store=store, tenant=nobody, policy=rules, hooks=[events.append]
        )
    else:
        middleware = wsgi.IdempotencyMiddleware(
            shop.wsgi, store=store, tenant=nobody, policy=rules, hooks=[events.append]
        )
    return Service(middleware, store, clock, events)
