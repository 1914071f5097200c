"""Where a message ends, on real WSGI servers: nobody runs on a part of a body, and an answer to
HEAD leaves the connection as it should be.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask import request as flask_request

from oncekey import single_tenant
from oncekey.web.flask import Oncekey
from oncekey.web.wsgi import IdempotencyMiddleware
from tests.acceptance.client import Client
from tests.acceptance.serve import serving
from tests.acceptance.serve_wsgi import SERVERS, serving_by_gunicorn
from tests.acceptance.shop import kept
from tests.web.client import Reply, ask_wsgi

pytestmark = pytest.mark.slow

CHUNKED = "Transfer-Encoding: chunked\r\n"


class Till:
    """A WSGI application that notes the bodies it got."""

    def __init__(self, store: str) -> None:
        self.bodies: list[bytes] = []
        settings: Any = {"store": store, "tenant": single_tenant}
        self.app = IdempotencyMiddleware(self._app, status_path="/status", **settings)

    def _app(self, environ: Any, start_response: Any) -> list[bytes]:
        environ["django.route"] = "orders"
        self.bodies.append(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
        start_response("201 Created", [("Content-Length", "2")])
        return [b"ok"]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'keys.db'}"


@pytest.fixture
def till(store: str) -> Iterator[Till]:
    made = Till(store)
    yield made
    made.app.close()


def said(client: Client, lines: str, body: bytes) -> Reply:
    """The answer to a request whose client sends no more after this."""
    head = "POST /orders HTTP/1.1\r\nHost: host\r\nIdempotency-Key: k1\r\nConnection: close\r\n"
    with client.open() as wire:
        wire.send(f"{head}{lines}\r\n".encode() + body)
        wire.finish()
        return wire.read()


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("server", SERVERS)
def test_e66_a_status_query_by_head_has_no_body(server: str, method: str, till: Till) -> None:
    """A body behind it would be taken for the next answer on that connection."""
    path = "/status?operation=POST%20/orders"
    lines = "Host: host\r\nIdempotency-Key: k1\r\n"
    with SERVERS[server](till.app) as client:
        client.ask("k1")
        with client.open() as wire:
            for asked in (f"{method} {path}", f"GET {path}"):
                wire.send(f"{asked} HTTP/1.1\r\n{lines}\r\n".encode())
                reply = wire.read(asked.partition(" ")[0])
                assert reply.status == 200
                if reply.header("connection") == "close" or server == "wsgiref":
                    assert method == "GET" or wire.read_some(1) == b""
                    return
            assert reply.json()["state"] == "completed"


@pytest.mark.parametrize("parser", ["h11", "httptools"])
def test_e66_a_status_query_by_head_has_no_body_under_asgi(parser: str, store: str) -> None:
    from tests.acceptance.charging import build

    app = build("fastapi", store)
    for layer in app.user_middleware:
        layer.kwargs["status_path"] = "/status"
    with serving(app, http=parser, lifespan="auto") as client, client.open() as wire:
        for method in ("HEAD", "GET"):
            path = "/status?operation=POST%20/charges"
            wire.send(f"{method} {path} HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k\r\n\r\n".encode())
            assert wire.read(method).status == 404
        assert "json" in str(client.ask("k", method="GET", path=path).header("content-type"))


@pytest.mark.parametrize("server", SERVERS)
def test_e25_a_body_with_two_lengths_is_refused_or_read_whole(
    server: str, till: Till, store: str
) -> None:
    with SERVERS[server](till.app) as client:
        reply = said(client, f"{CHUNKED}Content-Length: 3\r\n", b"5\r\nhello\r\n0\r\n\r\n")
    assert till.bodies in ([], [b"hello"])
    assert reply.status in ((201,) if till.bodies else (400, 411, 501))
    assert len(kept(store)) == len(till.bodies)


def test_e25_two_lengths_are_refused_inside_of_flask_too(store: str) -> None:
    app, bodies = Flask("orders"), []
    extension = Oncekey(app, store=store, tenant=single_tenant)

    @app.post("/orders")
    def order() -> tuple[str, int]:
        bodies.append(flask_request.get_data())
        return "", 201

    both: Any = {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}
    assert ask_wsgi(app, "k1", **both).kind == "malformed-request"
    assert ask_wsgi(app, "k1", CONTENT_LENGTH="", **both).status == 201
    assert bodies == [b"{}"]
    extension.close()


@pytest.mark.parametrize("body", [b"5\r\nhello\r\n", b"9\r\nhello", b"5\r\nhello\r\nzz\r\n"])
@pytest.mark.parametrize("server", SERVERS)
def test_p5_a_body_in_chunks_that_is_cut_off_runs_nothing(
    server: str, body: bytes, till: Till, store: str
) -> None:
    with SERVERS[server](till.app) as client:
        assert said(client, CHUNKED, body).status in (0, 400, 501)
        whole = said(client, CHUNKED, b"5\r\nhello\r\n0\r\n\r\n")
    runs = [] if server == "wsgiref" else [b"hello"]  # which knows of no chunks
    assert (till.bodies, len(kept(store))) == (runs, len(runs))
    assert whole.status == (201 if runs else 400)


@pytest.mark.parametrize("body", [b"5\r\nhello\r\n", b"9\r\nhello"])
def test_p5_under_gunicorn_neither(body: bytes, store: str) -> None:
    json = "Content-Type: application/json\r\n"
    with serving_by_gunicorn(f"tests.acceptance.charging:build('flask', {store!r})") as client:
        lines = f"{json}{CHUNKED}"
        path = "POST /charges HTTP/1.1\r\nHost: host\r\nIdempotency-Key: k1\r\n"
        with client.open() as wire:
            wire.send(f"{path}{lines}\r\n".encode() + body)
            wire.finish()
            assert wire.read().status == 400
        assert kept(store) == []
        assert client.ask("k1", path="/charges").json() == {"run": 1}


@pytest.mark.parametrize("server", ["Granian", "granian/3"])
def test_p5_a_server_that_ends_what_was_cut_off_gets_no_bodies_in_chunks(
    server: str, till: Till, store: str
) -> None:
    chunked: Any = {"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked"}
    chunked |= {"wsgi.input_terminated": True, "SERVER_SOFTWARE": server}
    reply = ask_wsgi(till.app, "k1", b"hel", content_type="text/plain", **chunked)
    assert reply.kind == "malformed-request"
    assert (till.bodies, kept(store)) == ([], [])
