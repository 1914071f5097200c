"""What FastAPI does around an endpoint: background tasks, dependencies, lifespan; and faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, HTTPException
from fastapi import Request as FastRequest
from fastapi.routing import APIRoute
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles
from starlette.testclient import TestClient

import oncekey
import oncekey.atomic
from oncekey import Misuse, Policy
from oncekey._core.op import arun
from oncekey._engine.recovery import Ending
from oncekey._system.clock import FakeClock
from oncekey.errors import StoreUnavailable
from oncekey.stores.memory import MemoryStore
from oncekey.web.asgi import IdempotencyMiddleware
from oncekey.web.fastapi import Idempotency, IdempotentRoute, idempotent, not_idempotent
from oncekey.web.flask import idempotent as views_idempotent
from tests.orphans import LEASE_S, Shop, nobody, service
from tests.stores.unreliable import Unheard
from tests.web.fastapi_world import Order, World, account_of, ordering, stopping

pytestmark = pytest.mark.anyio


# ------------------------------------------------------------- background tasks and dependencies


async def test_background_tasks_run_once_and_after_the_answer_is_recorded() -> None:
    world = World()
    seen: list[str] = []

    def note() -> None:
        seen.extend(record.state.value for record in world.records())

    def noting(later: BackgroundTasks) -> None:
        later.add_task(note)

    @world.router.post("/orders", dependencies=[Depends(noting)])
    def order(later: BackgroundTasks) -> None:
        later.add_task(note)

    for _ in range(3):
        await world.ask("k1")
    assert seen == ["completed", "completed"], "the endpoint's and its dependency's, once each"


async def test_dependencies_that_yield_are_closed_however_it_ends() -> None:
    world = World()
    seen: list[str] = []

    async def session() -> AsyncIterator[str]:
        seen.append("open")
        try:
            yield "session"
            seen.append("commit")
        except Exception as error:
            seen.append(type(error).__name__)
            raise
        finally:
            seen.append("close")

    @world.router.post("/orders")
    async def order(order: Order, session: str = Depends(session)) -> str:
        if order.quantity == 0:
            raise HTTPException(400)
        return session

    async def endings(key: str, quantity: int) -> list[str]:
        seen.clear()
        await world.ask(key, {"item": "tea", "quantity": quantity})
        return seen[:]

    assert await endings("k1", 1) == ["open", "commit", "close"]
    assert await endings("k1", 1) == ["open", "commit", "close"], "a replay"
    assert await endings("k1", 2) == ["open", "commit", "close"], "a refusal"
    assert await endings("k2", 0) == ["open", "HTTPException", "close"]


async def test_a_dependency_of_the_function_commits_before_the_answer_is_recorded() -> None:
    world = World()
    fails = [True]

    def transaction() -> Iterator[None]:
        yield
        if fails.pop():
            raise RuntimeError("the commit failed")

    @world.router.post("/orders", dependencies=[Depends(transaction, scope="function")])
    async def order() -> dict[str, int]:
        return {"run": world.run()}

    with pytest.raises(RuntimeError, match="the commit failed"):
        await world.ask("k1")
    fails.append(False)
    assert (await world.ask("k1")).json() == {"run": 2}


# ------------------------------------------------------------------------------ faults, lifespan


async def test_e35_a_client_that_hangs_up_stops_nothing() -> None:
    world = World()
    entered, leave = stopping(world)
    first = asyncio.create_task(world.ask("k1"))
    await entered.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    leave.set()
    await world.idempotency.guard.drain()
    again = await world.ask("k1")
    assert (again.json(), again.replayed) == ({"run": 1}, True)


@pytest.mark.parametrize("store_down", ["refuse", "run"])
async def test_e42_a_store_that_is_down(store_down: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = ordering(policy=Policy(store_down=store_down))

    async def down(verb: Any) -> Any:
        raise StoreUnavailable("down", sent=False)

    monkeypatch.setattr(world.idempotency.edge.runtime, "drive", partial(arun, ask=down))
    reply = await world.ask("k1")
    if store_down == "refuse":
        assert (reply.status, reply.kind, world.runs) == (503, "store-unavailable", 0)
    else:
        assert (reply.status, reply.header("idempotency-stored")) == (201, "false")


async def test_a_stream_that_is_not_guarded_learns_that_its_client_has_left() -> None:
    world = World(profile="square")

    @world.router.post("/orders")
    async def order(request: FastRequest) -> dict[str, bool]:
        await request.body()
        return {"left": await request.is_disconnected()}

    assert (await world.ask(None, {"item": "tea"})).json() == {"left": True}


async def test_p7_a_claim_whose_reply_was_lost_is_released_in_the_background() -> None:
    store = Unheard()
    world = ordering(store=store)
    assert ((await world.ask("k1")).kind, world.runs) == ("store-unavailable", 0)
    assert await asyncio.to_thread(store.given_back.wait, 20)
    store.heard = True
    assert (await world.ask("k1", {"item": "coffee"})).status == 201


async def test_ask_finds_out_what_became_of_an_attempt_that_died() -> None:
    def find_out(attempt: oncekey.Attempt) -> oncekey.Answer:
        return oncekey.Answer(201, ((b"content-type", b"text/plain"),), b"it was done")

    clock = FakeClock()
    world = World(store=MemoryStore(clock), policy=Policy(recovery="ask", ask=find_out, lease_s=5))
    closed: list[str] = []

    async def session() -> AsyncIterator[None]:
        yield
        closed.append("closed")

    @world.router.post("/orders", dependencies=[Depends(session)])
    async def order() -> None:
        world.run()
        raise asyncio.CancelledError  # as if its process had died: nothing more is heard of it

    with pytest.raises(asyncio.CancelledError):
        await world.ask("k1")
    clock.advance(6)
    settled, again = await world.ask("k1"), await world.ask("k1")
    assert (settled.status, settled.body, settled.replayed) == (201, b"it was done", False)
    assert (again.body, again.replayed, world.runs) == (b"it was done", True, 1)
    assert closed == ["closed"] * 2, "once per request that was answered"


@pytest.mark.parametrize("marked", [True, False])
async def test_atomic_mode_commits_claim_rows_and_answer_together(
    tmp_path: Path, marked: bool
) -> None:
    store = f"sqlite:///{tmp_path / 'shop.db'}"
    policy = Policy(atomic=True)
    world = World(store=store, atomic=oncekey.atomic.Sqlite(), policy=None if marked else policy)

    async def order() -> dict[str, int]:
        connection = oncekey.current().connection
        connection.execute("CREATE TABLE IF NOT EXISTS orders (run INT)")
        connection.execute("INSERT INTO orders VALUES (?)", (world.run(),))
        if world.runs == 1:
            raise ValueError("broken")
        [count] = connection.execute("SELECT count(*) FROM orders").fetchone()
        return {"orders": count}

    world.router.post("/orders")(idempotent(policy)(order) if marked else order)
    async with world.idempotency.lifespan():
        with pytest.raises(ValueError, match="broken"):
            await world.ask("k1")
        assert [(await world.ask("k1")).json() for _ in range(2)] == [{"orders": 1}] * 2
    assert world.runs == 2


async def test_the_lifespan_ends_what_the_routes_began() -> None:
    world = ordering()
    async with world.app.router.lifespan_context(world.app):
        assert (await world.ask("k1")).status == 201
    async with world.app.router.lifespan_context(world.app):
        assert (await world.ask("k1")).replayed


async def test_a_request_of_the_middleware_on_the_same_store_is_recovered_by_the_middleware() -> (
    None
):
    beside = service(Shop())
    Idempotency(
        store=beside.store, tenant=nobody, policy=Policy(recovery="resume", lease_s=LEASE_S)
    )
    beside.abandon()
    assert await beside.recover() == [(Ending.FINISHED, "status 201")]


@pytest.mark.parametrize("above", [False, True])
async def test_a_mark_without_effect_is_told_at_the_start(above: bool) -> None:
    world = ordering()
    nested = APIRouter(route_class=world.idempotency.route_class if above else APIRoute)

    async def cancel() -> None: ...

    if above:
        idempotent(nested.delete("/orders")(cancel))
    else:
        nested.delete("/orders")(idempotent(cancel))
    world.router.include_router(nested, prefix="/nested")
    world.include()
    said = "below the route" if above else "router guards nothing"
    with pytest.raises(Misuse, match=f"/orders: cancel .*{said}"):
        async with world.idempotency.lifespan(world.app):
            pass


def test_a_mark_that_is_for_views_is_told_where_it_is_routed() -> None:
    with pytest.raises(Misuse, match=r"from oncekey\.web\.fastapi import idempotent"):
        World().router.post("/orders")(views_idempotent(lambda: None))


async def test_a_mark_without_effect_in_a_mounted_application_is_told_at_the_start() -> None:
    world, mounted = ordering(), FastAPI()
    mounted.delete("/orders")(idempotent(lambda: None))
    world.include()
    world.app.mount("/v1", mounted)
    with pytest.raises(Misuse, match=r"/orders: .* router guards nothing"):
        async with world.idempotency.lifespan(world.app):
            pass


def test_a_mark_that_the_middleware_does_not_heed_is_told_at_the_start() -> None:
    app = FastAPI()
    app.post("/charges")(idempotent(Policy(recovery="block"))(lambda: None))
    app.add_middleware(IdempotencyMiddleware, store="memory://", tenant=oncekey.single_tenant)
    with pytest.raises(Misuse, match=r"/charges: .* heeds no marks: .* routes="), TestClient(app):
        pass


@pytest.mark.parametrize("late", [False, True])
async def test_an_application_none_of_whose_routes_is_guarded_is_told_so(late: bool) -> None:
    idempotency = Idempotency(store="memory://", tenant=account_of)
    app = FastAPI()
    app.get("/orders")(lambda: None)
    async with idempotency.lifespan(app):
        pass  # there is nothing that would have to be
    app.post("/orders")(lambda: None)
    if late:
        app.router.route_class = idempotency.route_class
    with pytest.raises(Misuse, match="no route of this application is guarded, /orders neither"):
        async with idempotency.lifespan(app):
            pass
    app.mount("/other", StaticFiles(directory="."))  # nobody can look into this one
    with pytest.raises(Misuse, match="/orders neither"):
        async with idempotency.lifespan(app):
            pass


async def test_what_is_guarded_where_nobody_can_look_is_taken_to_be_a_part_of_the_application() -> (
    None
):
    idempotency = Idempotency(store="memory://", tenant=account_of)
    inner, app = FastAPI(), FastAPI()
    inner.router.route_class = idempotency.route_class
    inner.post("/orders")(lambda: None)
    app.post("/searches")(lambda: None)
    app.mount("/shop", GZipMiddleware(inner))
    async with idempotency.lifespan(app):
        pass


async def test_a_lifespan_that_is_not_told_its_application_looks_at_its_own_routes() -> None:
    idempotency = Idempotency(store="memory://", tenant=account_of)
    with pytest.raises(Misuse, match=r"no route is guarded: .*idempotency\.route_class"):
        async with idempotency.lifespan():
            pass
    router = APIRouter(route_class=idempotency.route_class)
    router.post("/orders")(lambda: None)
    async with idempotency.lifespan():
        pass


def test_what_is_given_in_place_of_a_part_of_it_is_told() -> None:
    idempotency = Idempotency(store="memory://", tenant=account_of)
    whole: Any = idempotency
    with pytest.raises(Misuse, match=r"itself: write route_class=idempotency\.route_class"):
        APIRouter(route_class=whole).post("/orders")(lambda: None)
    with pytest.raises(Misuse, match=r"lifespan=idempotency\.lifespan"):
        TestClient(FastAPI(lifespan=whole)).__enter__()
    with pytest.raises(Misuse, match=r"route_class=idempotency\.route_class"):
        APIRouter(route_class=IdempotentRoute).post("/orders")(lambda: None)


@pytest.mark.parametrize(("method", "policy"), [("GET", None), ("PUT", Policy(methods=("POST",)))])
def test_a_mark_that_guards_none_of_its_methods_is_told(method: str, policy: Policy | None) -> None:
    idempotency = Idempotency(store="memory://", tenant=account_of)
    router = APIRouter(route_class=idempotency.route_class)
    mark = idempotent if policy is None else idempotent(policy)
    with pytest.raises(Misuse, match=rf"Policy\(methods=\('{method}',\)\)"):
        router.add_api_route("/orders", mark(lambda: None), methods=[method])
    own = idempotent(Policy(methods=(method,)))
    router.add_api_route("/orders", own(lambda: None), methods=[method])


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_routes_of_methods_that_no_policy_guards_are_told(method: str) -> None:
    """They have the route class, and a key that they are sent would be ignored."""
    idempotency = Idempotency(store="memory://", tenant=account_of)

    def app_with(endpoint: Callable[[], None], idempotency: Idempotency = idempotency) -> FastAPI:
        app = FastAPI()
        app.router.route_class = idempotency.route_class
        app.add_api_route("/orders/7", endpoint, methods=[method])
        return app

    told = rf"/orders/7 neither: .* are PATCH, POST. .* Policy\(methods=\('{method}',\)\)"
    with pytest.raises(Misuse, match=told):
        async with idempotency.lifespan(app_with(lambda: None)):
            pass
    for mark in (idempotent, not_idempotent):
        async with idempotency.lifespan(app_with(mark(lambda: None))):
            pass
    named = Idempotency(
        store="memory://", tenant=account_of, policy=Policy(methods=("POST", method))
    )
    async with named.lifespan(app_with(lambda: None, named)):
        pass
    bare = FastAPI()
    bare.add_api_route("/orders/7", lambda: None, methods=[method])
    with pytest.raises(Misuse, match="APIRouter\\(route_class="):
        async with idempotency.lifespan(bare):
            pass


async def test_an_adapter_that_no_policy_asks_for_is_told() -> None:
    """What handlers take for their connection would be None."""
    for policy in (None, Policy(atomic=False)):
        idempotency = Idempotency(
            store="sqlite:///keys.db",
            tenant=account_of,
            atomic=oncekey.atomic.Sqlite(),
            policy=policy,
        )
        app = FastAPI()
        app.router.route_class = idempotency.route_class
        app.post("/orders")(lambda: None)
        app.mount("/other", StaticFiles(directory="."))
        with pytest.raises(Misuse, match=r"is given, but no policy says Policy\(atomic=True\)"):
            async with idempotency.lifespan(app):
                pass


@pytest.mark.parametrize("marked", [False, True])
def test_an_endpoint_in_a_thread_cannot_await_its_connection(marked: bool) -> None:
    """It would be answered, and kept, and no row would be there."""
    policy = Policy(atomic=True)
    idempotency = Idempotency(
        store="postgresql://127.0.0.1/shop",
        tenant=account_of,
        atomic=oncekey.atomic.Asyncpg(lambda: None),
        policy=None if marked else policy,
    )
    app = FastAPI()
    app.router.route_class = idempotency.route_class

    def blocking() -> None: ...

    async def awaiting() -> None: ...

    mark = idempotent(policy) if marked else idempotent
    app.post("/awaiting")(mark(awaiting))
    with pytest.raises(Misuse, match=r"blocking is written with def.*Asyncpg.*async def"):
        app.post("/blocking")(mark(blocking))
    app.post("/other")(idempotent(Policy(atomic=False))(lambda: None))
