"""Endpoints that a time limit inside the application, or a server that stops, leaves running."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponse
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import oncekey
from oncekey import Policy, single_tenant
from oncekey._core.record import Record, State
from oncekey._core.verbs import Scan
from oncekey.stores.batching import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.stores.urls import as_store
from oncekey.web.asgi import IdempotencyMiddleware
from oncekey.web.fastapi import Idempotency
from tests.web.client import Reply, ask
from tests.web.django.site import Site, patient

END_S_MAX = 20.0


class Endpoint:
    """A blocking endpoint: its first run goes on until it is let go."""

    def __init__(self) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        self.runs = 0
        self.owned: list[bool] = []

    def __call__(self) -> dict[str, int]:
        self.runs += 1
        run = self.runs
        if run == 1:
            self.began.set()
            assert self.go_on.wait(END_S_MAX)
            oncekey.current().ensure_owned()
            self.owned.append(not oncekey.current().lost)
        return {"run": run}


class Limit:
    """A time limit as pure ASGI middleware: it answers 504 as soon as the endpoint runs."""

    def __init__(self, app: Any, endpoint: Endpoint) -> None:
        self.app = app
        self.endpoint = endpoint

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or self.endpoint.runs:
            await self.app(scope, receive, send)
            return
        task = asyncio.ensure_future(self.app(scope, receive, send))
        await until(self.endpoint.began.is_set)
        task.cancel()
        await asyncio.wait([task])
        await JSONResponse({"error": "too late"}, 504)(scope, receive, send)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(END_S_MAX):
        while not condition():  # noqa: ASYNC110  (nobody sets an event)
            await asyncio.sleep(0.005)


def record(store: Any) -> Record:
    with closing(Gatherer(as_store(store))) as gatherer:
        [found] = gatherer.ask(Scan(10))
    assert isinstance(found, Record)
    return found


def starlette(endpoint: Endpoint, store: MemoryStore) -> Any:
    def order(request: Request) -> JSONResponse:  # Starlette runs it in a thread
        return JSONResponse(endpoint(), 201)

    app = Limit(Starlette(routes=[Route("/orders", order, methods=["POST"])]), endpoint)
    return IdempotencyMiddleware(app, store=store, tenant=single_tenant)


def fastapi_middleware(endpoint: Endpoint, store: MemoryStore) -> Any:
    app = FastAPI()
    app.post("/orders", status_code=201)(endpoint.__call__)
    return IdempotencyMiddleware(Limit(app, endpoint), store=store, tenant=single_tenant)


def fastapi_route(endpoint: Endpoint, store: MemoryStore) -> Any:
    idempotency = Idempotency(store=store, tenant=single_tenant)

    async def order() -> Any:
        if endpoint.runs:
            return await asyncio.to_thread(endpoint)
        task = asyncio.ensure_future(asyncio.to_thread(endpoint))
        await until(endpoint.began.is_set)
        task.cancel()
        return JSONResponse({"error": "too late"}, 504)

    app, router = FastAPI(), APIRouter(route_class=idempotency.route_class)
    router.post("/orders", status_code=201)(order)
    app.include_router(router)
    return app


@pytest.mark.parametrize("form", [starlette, fastapi_middleware, fastapi_route])
async def test_p1_nobody_runs_beside_an_endpoint_that_a_time_limit_left_running(form: Any) -> None:
    endpoint, store = Endpoint(), MemoryStore()
    app = form(endpoint, store)
    assert (await ask(app, "k1")).status == 504
    assert (await ask(app, "k1")).kind == "in-flight"
    endpoint.go_on.set()
    await until(lambda: record(store).state is State.RELEASED)
    again = await ask(app, "k1")
    assert (again.status, again.json()) == (201, {"run": 2})
    assert endpoint.owned == [True]


def test_p1_nor_beside_a_view_of_django() -> None:
    endpoint, left = Endpoint(), list[Any]()

    async def order(request: HttpRequest) -> HttpResponse:
        if endpoint.runs:
            return HttpResponse(str(endpoint()), status=201)
        left.append(asyncio.ensure_future(sync_to_async(endpoint, thread_sensitive=False)()))
        await until(endpoint.began.is_set)
        return HttpResponse(status=504)

    async def asked(site: Site) -> None:
        app = patient(ASGIHandler())
        headers = [(b"authorization", b"ann"), (b"x-csrftoken", b"x" * 32)]
        headers.append((b"cookie", b"csrftoken=" + b"x" * 32))
        assert (await ask(app, "k1", headers=headers)).status == 504
        assert (await ask(app, "k1", headers=headers)).kind == "in-flight"
        endpoint.go_on.set()
        await until(lambda: site.records()[0].state is State.RELEASED)
        assert (await ask(app, "k1", headers=headers)).status == 201

    with Site("asgi, async views") as site:
        site.route("orders", order)
        asyncio.run(asked(site))
        assert endpoint.owned == [True]


def test_p1_a_process_that_ends_keeps_what_its_threads_still_do(tmp_path: Path) -> None:
    """Its loop cancels the handler, waits for the thread, and its store is closed meanwhile."""
    endpoint, url = Endpoint(), f"sqlite:///{tmp_path / 'keys.db'}"
    told: list[Reply] = []

    def order(request: Request) -> JSONResponse:
        return JSONResponse(endpoint(), 201)

    def process() -> Any:
        app = Starlette(routes=[Route("/orders", order, methods=["POST"])])
        policy = Policy(lease_s=0.5)
        settings: Any = {"store": url, "tenant": single_tenant, "drain_s_max": 0.01}
        return IdempotencyMiddleware(app, policy=policy, **settings)

    async def first() -> None:
        app = process()
        left = asyncio.ensure_future(ask(app, "k1"))
        await until(endpoint.began.is_set)
        await app.drain()
        await app.close()
        assert not left.done()

    def second() -> None:
        """Beside the first, which goes on for longer than one lease."""
        app, never = process(), threading.Event()
        while record(url).beat < 6:
            never.wait(0.02)
        told.append(asyncio.run(ask(app, "k1")))
        app.edge.stop()
        endpoint.go_on.set()

    other = threading.Thread(target=second)
    ending = threading.Thread(target=lambda: asyncio.run(first()))
    ending.start()
    assert endpoint.began.wait(END_S_MAX)
    other.start()
    other.join(END_S_MAX)
    ending.join(END_S_MAX)
    assert told[0].kind == "in-flight"
    asyncio.run(until(lambda: endpoint.owned == [True]))
    asyncio.run(until(lambda: record(url).state is State.RELEASED))
