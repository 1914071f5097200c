"""Applications that are started without a server: their middleware is found, whoever wraps it, and
what they left unfinished runs as it would have.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi import Request as FastRequest
from flask import Flask, jsonify
from flask import request as flask_request
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from oncekey import Policy, current, single_tenant
from oncekey._core.lifecycle import lapse
from oncekey._core.record import Record
from oncekey._core.verbs import Done, Find
from oncekey._engine.guard import Execute
from oncekey._engine.recovery import Recoverer
from oncekey._engine.runtime import Runtime
from oncekey._system.clock import FakeClock
from oncekey.errors import Misuse
from oncekey.stores.base import Store
from oncekey.stores.batching import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.web import _asgi_messages as messages
from oncekey.web import asgi, wsgi
from oncekey.web._body import Body
from oncekey.web._edge import Edge
from oncekey.web._lifespan import start_application
from tests.web.client import request_headers, scope_for

POLICY = Policy(recovery="resume", lease_s=30.0)


def abandon(
    store: str | Store, path: str = "/pay", root: str = "", *, lapsed: bool = False
) -> bytes:
    """What another process left: it had the same settings, and died. The record's id."""
    edge = Edge(store=store, tenant=single_tenant, policy=POLICY)
    body = b'{"amount": 7}'
    lines = request_headers("k", body, "application/json", ())
    request = messages.request(scope_for("POST", root + path, lines, root_path=root))
    route = edge.routes.match("POST", root + path, root)
    call: Any = edge.call(request, route, "single", "k", Body(body))
    decision = edge.runtime.drive_sync(edge.guard.begin(call, route.policy))
    assert isinstance(decision, Execute)
    held = decision.attempt.held
    if lapsed:
        assert isinstance(edge.runtime.gatherer.ask(lapse(held, retention_s=600)), Done)
    edge.runtime.close()
    return held.id


async def recovered(app: Any, store: MemoryStore, clock: FakeClock, orphan: bytes) -> Any:
    """The answer that was recorded when the application was started and its orphan recovered."""
    clock.advance(30.0)
    async with start_application(app):
        recoverer = Recoverer(store)
        await recoverer.round()
        await recoverer.settle()
    found: Record = Gatherer(store).ask(Find(orphan))
    assert found.answer is not None, found
    assert found.answer.status == 201
    return json.loads(found.answer.body or b"")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock)


def guarded(app: Any, store: MemoryStore) -> Any:
    app.add_middleware(asgi.IdempotencyMiddleware, store=store, tenant=single_tenant, policy=POLICY)
    return app


async def pay(request: Request) -> JSONResponse:
    said = {"amount": (await request.json())["amount"], "url": str(request.url)}
    return JSONResponse({**said, "app": request.app is not None}, status_code=201)


async def test_starlette(store: MemoryStore, clock: FakeClock) -> None:
    app = guarded(Starlette(routes=[Route("/pay", pay, methods=["POST"])]), store)

    answer = await recovered(app, store, clock, abandon(store))

    assert answer == {"amount": 7, "url": "http://test/pay", "app": True}


async def test_fastapi_with_what_its_lifespan_made(store: MemoryStore, clock: FakeClock) -> None:
    ended: list[bool] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        yield {"bank": "open"}
        ended.append(True)

    app: FastAPI = guarded(FastAPI(lifespan=lifespan), store)

    @app.post("/pay", status_code=201)
    def charge(order: dict[str, int], request: FastRequest) -> dict[str, Any]:
        return {**order, "bank": request.state.bank, "recovering": current().recovering}

    answer = await recovered(app, store, clock, abandon(store))

    assert answer == {"amount": 7, "bank": "open", "recovering": True}
    assert ended == [True]


async def test_an_application_that_is_mounted(store: MemoryStore, clock: FakeClock) -> None:
    inner = guarded(Starlette(routes=[Route("/pay", pay, methods=["POST"])]), store)
    app = Starlette(routes=[Mount("/shop", inner)])

    answer = await recovered(app, store, clock, abandon(store, root="/shop"))

    assert answer == {"amount": 7, "url": "http://test/shop/pay", "app": True}


async def test_plain_asgi_without_a_lifespan(store: MemoryStore, clock: FakeClock) -> None:
    async def plain(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        scope["endpoint"] = plain
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": body})

    app = asgi.IdempotencyMiddleware(plain, store=store, tenant=single_tenant, policy=POLICY)

    assert await recovered(app, store, clock, abandon(store)) == {"amount": 7}


async def test_flask(store: MemoryStore, clock: FakeClock) -> None:
    app = Flask("shop")

    @app.post("/pay")
    def charge() -> Any:
        return jsonify(flask_request.get_json() | {"url": flask_request.url}), 201

    app.wsgi_app = wsgi.IdempotencyMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, store=store, tenant=single_tenant, policy=POLICY
    )

    answer = await recovered(app, store, clock, abandon(store))

    assert answer == {"amount": 7, "url": "http://test/pay"}


async def test_an_application_that_cannot_start_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("no bank")

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        fail()
        yield

    with pytest.raises(Misuse, match=r"^the application did not start: RuntimeError: no bank$"):
        async with start_application(Starlette(lifespan=lifespan)):
            pytest.fail("started")
    await asyncio.sleep(0)
    gc.collect()  # when a task goes whose failure nobody has heard, asyncio tells
    [told] = caplog.records
    assert 'raise RuntimeError("no bank")' in told.getMessage()


DJANGO = """
import json, sys
import django.conf
django.conf.settings.configure(
    DEBUG=False, ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="s", MIDDLEWARE=[]
)
import django
django.setup()
from django.core.wsgi import get_wsgi_application
from django.http import JsonResponse
from django.urls import path
from oncekey import Policy, single_tenant
from oncekey.web.wsgi import IdempotencyMiddleware

def pay(request):
    return JsonResponse(json.loads(request.body), status=201)

urlpatterns = [path("pay", pay)]
app = IdempotencyMiddleware(
    get_wsgi_application(), store={url!r}, tenant=single_tenant,
    policy=Policy(recovery="resume", lease_s=30.0),
)
"""


def test_django_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Its settings are one per process."""
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    orphan = abandon(url, lapsed=True)
    (tmp_path / "shop.py").write_text(textwrap.dedent(DJANGO.replace("{url!r}", repr(url))))
    look = Runtime(url)
    ran = subprocess.run(
        [sys.executable, "-m", "oncekey", "recover", "--once", "--json", "shop:app"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["ending"] == "finished", ran.stderr
    found: Record = look.gatherer.ask(Find(orphan))
    look.close()
    assert found.answer is not None
    assert json.loads(found.answer.body or b"") == {"amount": 7}
