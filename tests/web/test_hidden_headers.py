"""What is said of one client alone is hidden from guarded handlers, in every form; and an answer to
it is never stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from flask import Flask
from flask import request as flask_request
from starlette.requests import Request
from starlette.responses import Response

import oncekey
from oncekey import Policy, keep_errors_too, keep_success
from oncekey._core.policy import CONDITIONAL, Verdict, keep_definitive
from oncekey._core.record import State
from oncekey._core.verbs import Scan
from oncekey.errors import StoreUnavailable
from oncekey.stores.batching import AsyncGatherer, Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.web.asgi import IdempotencyMiddleware as AsgiMiddleware
from oncekey.web.fastapi import Idempotency
from oncekey.web.flask import Oncekey
from oncekey.web.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.web.client import Reply, ask, ask_wsgi

HIDDEN = {
    "accept-encoding": "gzip",
    "range": "bytes=0-3",
    "if-range": '"v1"',
    "if-modified-since": "Sat, 01 Jan 2000 00:00:00 GMT",
    "if-none-match": '"v1", *',
}
SHOWN = {
    "if-match": '"v1"',
    "if-unmodified-since": "Sat, 01 Jan 2000 00:00:00 GMT",
    "accept": "text/plain",
}
ANY = {"if-none-match": " * "}

Handler = Callable[[Mapping[str, str]], int]
"""From the headers that it sees to the status of its answer."""


class Form:
    """An application in one of the forms, whose handler a test can replace."""

    def __init__(self, kind: str, **settings: Any) -> None:
        self.handler: Handler = lambda seen: 201
        self.seen: list[dict[str, str]] = []
        self.store = MemoryStore()
        self.kind = kind
        self.settings = {"store": self.store, "tenant": oncekey.single_tenant, **settings}
        self.app, self.close = getattr(self, f"_{kind}")()

    def ask(self, key: str = "k1", headers: Mapping[str, str] | None = None) -> Reply:
        lines = headers or {}
        if self.kind in ("asgi", "fastapi"):
            raw = [(name.encode(), text.encode()) for name, text in lines.items()]
            return asyncio.run(ask(self.app, key, headers=raw))
        names: Any = {f"HTTP_{n.upper().replace('-', '_')}": text for n, text in lines.items()}
        return ask_wsgi(self.app, key, **names)

    def states(self) -> list[tuple[State, bool]]:
        return [(each.state, each.no_effect) for each in Gatherer(self.store).ask(Scan(10))]

    def answer(self, seen: Mapping[str, str]) -> int:
        self.seen.append({n: text for n, text in seen.items() if n in HIDDEN | SHOWN})
        return self.handler(seen)

    def _asgi(self) -> tuple[Any, Callable[[], None]]:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope["endpoint"] = app
            status = self.answer({n.decode(): text.decode() for n, text in scope["headers"]})
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        return AsgiMiddleware(app, **self.settings), lambda: None

    def _fastapi(self) -> tuple[Any, Callable[[], None]]:
        from fastapi import FastAPI

        idempotency = Idempotency(**self.settings)
        app = FastAPI()
        app.router.route_class = idempotency.route_class

        @app.post("/orders")
        async def order(request: Request) -> Response:
            return Response(status_code=self.answer(request.headers))

        order.__annotations__.update(request=Request)
        return app, lambda: None

    def _wsgi(self) -> tuple[Any, Callable[[], None]]:
        def app(environ: Any, start_response: Any) -> list[bytes]:
            environ["django.route"] = "orders"
            seen = {
                n[5:].lower().replace("_", "-"): t for n, t in environ.items() if n[:5] == "HTTP_"
            }
            start_response(f"{self.answer(seen)} said", [])
            return [b""]

        guard = WsgiMiddleware(app, **self.settings)
        return guard, guard.close

    def _flask(self) -> tuple[Any, Callable[[], None]]:
        app = Flask("orders")
        extension = Oncekey(app, **self.settings)

        @app.post("/orders")
        def order() -> tuple[str, int]:
            seen = {name.lower(): text for name, text in flask_request.headers.items()}
            return "", self.answer(seen)

        return app, extension.close


FORMS = ["asgi", "wsgi", "fastapi", "flask"]


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Any:
    made = Form(request.param)
    yield made
    made.close()


def test_e58_what_is_said_of_one_client_is_hidden(form: Form) -> None:
    form.ask(headers=HIDDEN | SHOWN)
    assert form.seen == [SHOWN]
    form.ask("k2", headers=SHOWN | ANY)
    assert {n: text.strip() for n, text in form.seen[1].items()} == SHOWN | {"if-none-match": "*"}


@pytest.mark.parametrize("kind", FORMS)
def test_e58_it_is_hidden_too_where_the_store_is_down_and_it_runs(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = Form(kind, policy=Policy(store_down="run"))

    def down(*_: Any) -> Any:
        raise StoreUnavailable("down", sent=False)

    monkeypatch.setattr(AsyncGatherer, "ask", down)
    monkeypatch.setattr(Gatherer, "ask", down)
    assert form.ask(headers=HIDDEN | SHOWN).header("idempotency-stored") == "false"
    assert form.seen == [SHOWN]
    form.close()


@pytest.mark.parametrize("status", [206, 304, 412, 428])
@pytest.mark.parametrize("said", ["nothing", "final"])
@pytest.mark.parametrize("keep", [keep_definitive, keep_success, keep_errors_too, None])
@pytest.mark.parametrize("kind", FORMS)
def test_e58_what_answers_a_condition_is_never_stored(
    kind: str, keep: Any, said: str, status: int
) -> None:
    form = Form(kind, policy=Policy(keep=keep or (lambda status: Verdict.KEEP)))

    def answer(seen: Mapping[str, str]) -> int:
        if said == "final":
            oncekey.current().final()
        return status if len(form.seen) == 1 else 201

    form.handler = answer
    assert form.ask().status == status
    assert form.states() == [(State.RELEASED, True)]
    assert form.ask().status == 201
    assert form.ask().replayed
    assert form.states() == [(State.COMPLETED, False)]
    form.close()


def test_e58_no_function_that_keeps_would_keep_it() -> None:
    for keep in (keep_definitive, keep_success, keep_errors_too):
        assert {keep(status) for status in CONDITIONAL} == {Verdict.NO_EFFECT}
    assert keep_success(200) is keep_success(226) is Verdict.KEEP


def test_e58_what_a_handler_could_not_do_stays_bound_to_its_request() -> None:
    form = Form("wsgi")

    def answer(seen: Mapping[str, str]) -> int:
        oncekey.current().transient()
        return 412

    form.handler = answer
    form.ask()
    assert form.states() == [(State.RELEASED, False)]
    form.close()


def test_e58_functions_of_flask_outside_the_view_see_the_request_as_it_came() -> None:
    form, seen = Form("flask"), []
    app = form.app

    def look(*_: Any) -> Any:
        parsed = flask_request.accept_encodings, flask_request.if_none_match, flask_request.range
        seen.append([str(each) for each in parsed] + [dict(flask_request.headers)["Range"]])
        return _[0] if _ else None

    def inside(headers: Mapping[str, str]) -> int:
        assert not flask_request.if_none_match
        assert flask_request.range is None
        assert flask_request.if_modified_since is None
        assert not flask_request.accept_encodings
        return 201

    app.before_request(look)
    app.after_request(look)
    form.handler = inside
    assert form.ask(headers=HIDDEN | {"if-none-match": '"v1"'}).status == 201
    assert seen[0] == seen[1] == ["gzip", '"v1"', "bytes=0-3", "bytes=0-3"]
    form.close()


def test_e58_a_file_is_sent_whole_whatever_a_client_has_of_it(tmp_path: Any) -> None:
    from flask import send_file

    path = tmp_path / "invoice"
    path.write_bytes(b"0123456789")
    app = Flask("orders")
    extension = Oncekey(app, store="memory://", tenant=oncekey.single_tenant)
    app.post("/orders")(lambda: send_file(path, mimetype="text/plain"))
    headers: Any = {"HTTP_RANGE": "bytes=0-3", "wsgi.file_wrapper": lambda *_: [b"past"]}
    first = ask_wsgi(app, "k1", **headers)
    again = ask_wsgi(app, "k1")
    assert (first.status, first.body) == (again.status, again.body) == (200, b"0123456789")
    assert again.replayed
    etag = str(first.header("etag"))
    assert ask_wsgi(app, "k2", HTTP_IF_NONE_MATCH=etag).status == 200
    extension.close()
