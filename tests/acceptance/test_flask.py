"""Flask on a real threaded server: many threads, one answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import flask
import pytest

from oncekey import Policy
from oncekey.web.wsgi import IdempotencyMiddleware
from tests.acceptance.client import Client
from tests.acceptance.serve import serving_wsgi
from tests.acceptance.shop import WAIT_S_MAX, kept

pytestmark = pytest.mark.slow


class Shop:
    def __init__(self, store: str) -> None:
        self.store = store
        self.runs = 0
        self.started = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.app = flask.Flask(__name__)
        self.app.post("/orders")(self.order)
        self.app.post("/exports")(self.export)
        self.guard = IdempotencyMiddleware(
            self.app.wsgi_app, store=store, tenant=lambda request: request.headers.get("x-account")
        )
        self.app.wsgi_app = self.guard  # type: ignore[method-assign]

    def order(self) -> Any:
        self.runs += 1
        self.started.set()
        assert self.go_on.wait(WAIT_S_MAX)
        got = flask.request.get_json(force=True)
        if got.get("item") == "ghost":
            flask.abort(404)
        answer = flask.jsonify(run=self.runs, item=got.get("item"))
        answer.set_cookie("session", "secret")
        answer.set_cookie("theme", "dark")
        return answer, 201

    def export(self) -> Any:
        self.runs += 1
        return flask.Response(f"line {n} of run {self.runs}\n" for n in range(1000))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(f"sqlite:///{tmp_path / 'keys.db'}")
    yield shop
    shop.guard.close()


@pytest.fixture
def client(shop: Shop) -> Iterator[Client]:
    with serving_wsgi(shop.app) as client:
        yield client


ACME = [("X-Account", "acme")]
TEA = {"item": "tea"}


def test_p3_a_retry_gets_the_same_answer(shop: Shop, client: Client) -> None:
    first = client.ask("k1", TEA, headers=ACME)
    again = client.ask("k1", TEA, headers=ACME)
    assert (first.status, first.json()) == (201, {"run": 1, "item": "tea"})
    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    assert len(first.all("set-cookie")) == 2
    assert again.all("set-cookie") == []
    assert client.ask("k1", {"item": "coffee"}, headers=ACME).kind == "mismatch"
    assert client.ask("k1", TEA, headers=[("X-Account", "other")]).json()["run"] == 2
    assert client.ask("k1", TEA).kind == "no-tenant"


def test_a_generated_answer_is_kept_whole(shop: Shop, client: Client) -> None:
    first = client.ask("k1", path="/exports", headers=ACME)
    again = client.ask("k1", path="/exports", headers=ACME)
    assert again.replayed
    assert first.body == again.body
    assert again.body.endswith(b"line 999 of run 1\n")


def test_e40_a_404_of_the_handler_is_kept_and_one_of_the_router_is_not(
    shop: Shop, client: Client
) -> None:
    ghosts = [client.ask("k1", {"item": "ghost"}, headers=ACME) for _ in range(2)]
    lost = [client.ask("k1", path="/nothing", headers=ACME) for _ in range(2)]
    assert [(reply.status, reply.replayed) for reply in ghosts] == [(404, False), (404, True)]
    assert [(reply.status, reply.replayed) for reply in lost] == [(404, False), (404, False)]


def test_p1_a_crowd_runs_it_once(shop: Shop, client: Client) -> None:
    shop.go_on.clear()
    with ThreadPoolExecutor(16) as threads:
        crowd = [threads.submit(client.ask, "k1", TEA, headers=ACME) for _ in range(16)]
        assert shop.started.wait(WAIT_S_MAX)
        in_flight = client.ask("k1", TEA, headers=ACME)
        shop.go_on.set()
        replies = [asked.result(WAIT_S_MAX) for asked in crowd]
    assert in_flight.kind == "in-flight"
    assert shop.runs == 1
    assert {reply.body for reply in replies if reply.status == 201} == {
        client.ask("k1", TEA, headers=ACME).body
    }
    assert {reply.status for reply in replies} <= {201, 409}


def test_e35_a_client_that_leaves_does_not_stop_the_handler(shop: Shop, client: Client) -> None:
    shop.go_on.clear()
    with client.open() as wire:
        wire.send(b"POST /orders HTTP/1.1\r\nHost: test\r\nX-Account: acme\r\n")
        wire.send(b"Content-Type: application/json\r\nContent-Length: 14\r\n")
        wire.send(b'Idempotency-Key: k1\r\n\r\n{"item":"tea"}')
        assert shop.started.wait(WAIT_S_MAX)
        wire.reset()
    shop.go_on.set()
    waiting = Policy(in_flight="wait", wait_s=WAIT_S_MAX)
    patient = IdempotencyMiddleware(
        no_other, store=shop.store, tenant=lambda request: "acme", policy=waiting
    )
    with serving_wsgi(patient) as other:
        again = other.ask("k1", TEA)
    patient.close()
    assert (again.json(), again.replayed) == ({"run": 1, "item": "tea"}, True)
    assert shop.runs == 1


def no_other(environ: Any, start_response: Any) -> Any:
    raise AssertionError("it ran a second time")


def test_e12_an_underscore_is_dropped_by_the_server(shop: Shop, client: Client) -> None:
    spoofed = [*ACME, ("Idempotency_Key", "k2")]
    assert client.ask("k1", TEA, headers=spoofed).status == 201
    assert client.ask(None, TEA, headers=spoofed).json()["run"] == 2  # a request without key
    assert [record.key for record in kept(shop.store)] == ["k1"]
