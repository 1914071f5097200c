"""FastAPI's routes, each guarded after its own dependencies and validation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Header, HTTPException
from fastapi import Request as FastRequest
from fastapi import Response as FastResponse
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.staticfiles import StaticFiles
from starlette.testclient import TestClient

import oncekey
import oncekey.atomic
from oncekey import Misuse, Policy
from oncekey.clock import FakeClock
from oncekey.core.record import Record
from oncekey.core.verbs import Scan
from oncekey.errors import StoreUnavailable
from oncekey.recoverer import Ending
from oncekey.stores.gather import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.web.asgi import IdempotencyMiddleware
from oncekey.web.fastapi import Idempotency, idempotent, not_idempotent
from oncekey.web.flask import idempotent as views_idempotent
from tests.orphans import LEASE_S, Shop, nobody, service
from tests.web.client import Reply, ask

pytestmark = pytest.mark.anyio

SIGNED_IN = [(b"authorization", b"ann")]
TEA = {"item": "tea"}


class Order(BaseModel):
    item: str
    quantity: int = 1


class Sent(BaseModel):
    idempotency_key: str


def signed_in(request: FastRequest, authorization: Annotated[str | None, Header()] = None) -> str:
    if authorization is None:
        raise HTTPException(401, "who are you?")
    if authorization == "eve":
        raise HTTPException(403, "not you")
    request.state.account = authorization
    return authorization


def account_of(request: FastRequest) -> str:
    account: str = request.state.account
    return account


class World:
    """An application with guarded routes, its store, and how often its endpoints ran."""

    def __init__(self, **settings: Any) -> None:
        self.store = MemoryStore(FakeClock())
        settings = {"store": self.store, "tenant": account_of, **settings}
        self.idempotency = Idempotency(**settings)
        self.app = FastAPI(lifespan=self.idempotency.lifespan)
        self.router = APIRouter(
            route_class=self.idempotency.route_class, dependencies=[Depends(signed_in)]
        )
        self.included = False
        self.runs = 0

    async def ask(self, key: str | None, body: Any = TEA, **request: Any) -> Reply:
        self.include()
        request = {"headers": SIGNED_IN, **request}
        return await ask(self.app, key, body, **request)

    def include(self, prefix: str = "") -> None:
        """Once, with all that is routed by then."""
        if not self.included:
            self.included = True
            self.app.include_router(self.router, prefix=prefix)

    def run(self) -> int:
        self.runs += 1
        return self.runs

    def records(self) -> list[Record]:
        return list(Gatherer(self.store).ask(Scan(100)))


def ordering(**settings: Any) -> World:
    """A world with one endpoint: `POST /orders`."""
    world = World(**settings)

    @world.router.post("/orders", status_code=201)
    async def order(order: Order) -> dict[str, Any]:
        return {"run": world.run(), "item": order.item}

    return world


def stopping(world: World) -> tuple[asyncio.Event, asyncio.Event]:
    """An endpoint that stops in the middle; what is set when it is there, and lets it go on."""
    entered, leave = asyncio.Event(), asyncio.Event()

    @world.router.post("/orders")
    async def slow() -> dict[str, int]:
        entered.set()
        await leave.wait()
        return {"run": world.run()}

    return entered, leave


# -------------------------------------------------------------------------------- the main road


async def test_p3_a_retry_gets_the_same_answer() -> None:
    world = ordering()
    first, again = await world.ask("k1"), await world.ask("k1")
    assert (first.status, first.json(), first.replayed) == (201, {"run": 1, "item": "tea"}, False)
    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    assert again.header("content-type") == first.header("content-type") == "application/json"
    assert first.header("idempotency-key") == again.header("idempotency-key") == "k1"
    assert again.all("content-length") == [b"%d" % len(first.body)]


async def test_p5_another_request_or_account_never_gets_the_answer() -> None:
    world = ordering()
    await world.ask("k1")
    other_request = await world.ask("k1", {"item": "coffee"})
    other_account = await world.ask("k1", headers=[(b"authorization", b"bob")])
    assert (other_request.status, other_request.kind) == (422, "mismatch")
    assert (other_account.status, other_account.replayed) == (201, False)
    assert world.runs == 2


async def test_a_request_without_a_key_is_an_ordinary_one() -> None:
    world = ordering()
    assert [(await world.ask(None)).status for _ in range(2)] == [201, 201]
    assert (world.runs, world.records()) == (2, [])


async def test_a_required_key_is_asked_for_after_who_asks_and_what_is_valid() -> None:
    world = ordering(policy=Policy(required=True))
    assert (await world.ask(None, headers=[])).status == 401
    assert (await world.ask(None, {"no": "item"})).status == 422
    missing = await world.ask(None)
    assert (missing.status, missing.kind, world.runs) == (400, "missing-key", 0)
    assert (await world.ask("")).kind == "invalid-key"


async def test_e31_a_duplicate_in_flight_is_refused() -> None:
    world = World()
    entered, leave = stopping(world)
    first = asyncio.create_task(world.ask("k1"))
    await entered.wait()
    refused = await world.ask("k1")
    leave.set()
    assert (refused.status, refused.kind) == (409, "in-flight")
    assert refused.header("retry-after") is not None
    assert (await first).json() == (await world.ask("k1")).json() == {"run": 1}


async def test_a_sync_endpoint_runs_in_a_thread_and_knows_its_attempt() -> None:
    world = World()

    @world.router.post("/orders")
    def order(order: Order) -> dict[str, Any]:
        assert threading.current_thread() is not threading.main_thread()
        attempt = oncekey.current()
        charged = attempt.step_sync("charge", lambda: world.run())
        attempt.resource_id = "order_1"
        return {"charged": charged, "key": attempt.key}

    first, again = await world.ask("k1"), await world.ask("k1")
    assert first.json() == again.json() == {"charged": 1, "key": "k1"}
    assert [record.resource_id for record in world.records()] == ["order_1"]


async def test_a_retry_after_a_failure_continues_after_its_last_step() -> None:
    world = World()

    @world.router.post("/orders")
    async def order() -> dict[str, int]:
        charged = await oncekey.current().step("charge", world.run)
        if oncekey.current().attempt == 1:
            raise RuntimeError("out of paper")
        return {"charged": charged, "attempt": oncekey.current().attempt}

    with pytest.raises(RuntimeError, match="out of paper"):
        await world.ask("k1")
    assert (await world.ask("k1")).json() == {"charged": 1, "attempt": 2}


# --------------------------------------------------------------- what the route refuses by itself


async def test_p7_what_a_dependency_refuses_is_not_claimed() -> None:
    world = ordering()
    assert (await world.ask("k1", headers=[])).status == 401
    assert (await world.ask("k1", headers=[(b"authorization", b"eve")])).status == 403
    assert world.records() == []
    assert (await world.ask("k1", {"item": "coffee"})).status == 201


async def test_e40_p7_a_validation_error_is_not_claimed() -> None:
    world = ordering()
    for bad in ({"quantity": 2}, b"{", b""):
        refused = await world.ask("k1", bad)
        assert (refused.status, refused.header("content-type")) == (422, "application/json")
    assert world.records() == []
    corrected = await world.ask("k1")
    assert (corrected.status, corrected.json()["run"]) == (201, 1)


async def test_e18_a_replay_is_authorised_like_any_request() -> None:
    world = ordering()
    banned: set[str] = set()

    def not_banned(who: Annotated[str, Depends(signed_in)]) -> None:
        if who in banned:
            raise HTTPException(403)

    @world.router.post("/refunds", dependencies=[Depends(not_banned)])
    async def refund() -> dict[str, int]:
        return {"run": world.run()}

    assert (await world.ask("k1", path="/refunds")).json() == {"run": 1}
    banned.add("ann")
    refused = await world.ask("k1", path="/refunds")
    assert (refused.status, refused.replayed) == (403, False)
    banned.clear()
    assert (await world.ask("k1", path="/refunds")).replayed


async def test_e25_a_body_that_is_too_large_is_refused_before_it_is_read() -> None:
    world = ordering(policy=Policy(request_bytes_max=10))
    refused = await world.ask("k1")
    assert (refused.status, refused.kind, world.records()) == (413, "request-too-large", [])


async def test_e11_a_large_upload_that_can_bring_no_key_is_nobodys_business() -> None:
    world = World(profile="square", policy=Policy(request_bytes_max=10))

    @world.router.post("/pictures", status_code=201)
    async def picture(request: FastRequest) -> int:
        return len(await request.body())

    upload = await world.ask(None, b"x" * 100, path="/pictures", content_type="image/png")
    assert (upload.status, upload.body) == (201, b"100")


# ------------------------------------------------------------------------------ kinds of answers


async def test_e40_an_http_exception_of_the_endpoint_is_its_answer() -> None:
    world = World()

    @world.router.post("/orders")
    async def order(order: Order) -> None:
        raise HTTPException(order.quantity, {"run": world.run()}, {"x-reason": "none"})

    for status, replayed in ((402, True), (404, True), (422, True), (503, False), (403, False)):
        body = {"item": "tea", "quantity": status}
        first, again = await world.ask(f"k{status}", body), await world.ask(f"k{status}", body)
        assert (first.status, again.status, again.replayed) == (status, status, replayed)
        assert (first.body == again.body) is replayed
        assert again.header("x-reason") == "none"


async def test_an_exception_that_the_application_answers_is_kept_by_its_status() -> None:
    world = World()

    class SoldOut(Exception):
        pass

    @world.app.exception_handler(SoldOut)
    async def answer(request: FastRequest, error: Exception) -> JSONResponse:
        assert oncekey.current().key == "k1"
        return JSONResponse({"sold out": world.runs}, 410)

    @world.router.post("/orders")
    async def order() -> None:
        world.run()
        raise SoldOut

    first, again = await world.ask("k1"), await world.ask("k1")
    assert (first.status, again.status, again.body) == (410, 410, first.body)
    assert (again.replayed, world.runs) == (True, 1)


async def test_e38_an_exception_gives_the_key_back() -> None:
    world = World()

    @world.router.post("/orders")
    async def order() -> dict[str, int]:
        if world.run() == 1:
            raise ValueError("broken")
        return {"run": world.runs}

    with pytest.raises(ValueError, match="broken"):
        await world.ask("k1")
    assert (await world.ask("k1")).json() == {"run": 2}


async def test_an_answer_that_does_not_fit_its_model_gives_the_key_back() -> None:
    world = World()

    @world.router.post("/orders", response_model=Order)
    async def order() -> dict[str, Any]:
        return {"item": "tea", "secret": 1} if world.run() > 1 else {"quantity": "many"}

    with pytest.raises(Exception, match="validation error"):
        await world.ask("k1")
    first, again = await world.ask("k1"), await world.ask("k1")
    assert first.json() == {"item": "tea", "quantity": 1}, "by its response model"
    assert again.body == first.body


async def test_e60_a_stream_is_kept_whole() -> None:
    world = World()

    @world.router.post("/orders")
    async def order() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            for n in range(3):
                yield b"%d of run %d\n" % (n, world.run() - n)

        return StreamingResponse(parts(), 202, media_type="text/plain")

    first, again = await world.ask("k1"), await world.ask("k1")
    assert (again.status, again.body, again.replayed) == (202, first.body, True)
    assert first.body == b"0 of run 1\n1 of run 1\n2 of run 1\n"


async def test_a_response_of_another_class_and_headers_set_by_a_parameter_are_kept() -> None:
    world = World()

    @world.router.post("/text", response_class=PlainTextResponse)
    async def text(response: FastResponse) -> str:
        response.headers["Location"] = "/orders/1"
        response.status_code = 202
        return f"run {world.run()}"

    first, again = await world.ask("k1", path="/text"), await world.ask("k1", path="/text")
    assert (first.status, again.status, again.body) == (202, 202, b"run 1")
    assert again.header("location") == "/orders/1"
    assert str(again.header("content-type")).startswith("text/plain")


def test_an_endpoint_that_yields_its_answer_is_refused_when_it_is_written() -> None:
    world = World()

    def events() -> Iterator[str]:
        yield "one"

    with pytest.raises(Misuse, match="return a StreamingResponse"):
        world.router.post("/events")(events)
    world.router.post("/events")(not_idempotent(events))
    world.router.get("/events")(events)


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


# ------------------------------------------------------------------- operations, marks, policies


async def test_the_template_is_the_operation_and_the_concrete_path_is_compared() -> None:
    world = World()
    inner = APIRouter(prefix="/items", route_class=world.idempotency.route_class)

    @inner.post("/{item:path}/reserve")
    async def reserve(order_id: int, item: str) -> dict[str, int]:
        return {"run": world.run()}

    world.router.include_router(inner)
    world.include("/v1/orders/{order_id}")
    path = "/v1/orders/7/items/a/b/reserve"
    assert (await world.ask("k1", path=path)).status == 200
    other = await world.ask("k1", path="/v1/orders/8/items/a/b/reserve")
    assert (other.status, other.kind) == (422, "mismatch")
    [record] = world.records()
    assert record.operation == "POST /v1/orders/{order_id}/items/{item}/reserve"


async def test_an_application_below_a_mount_has_names_of_its_own() -> None:
    world = ordering()
    world.include()
    outer = FastAPI()
    outer.mount("/eu", world.app)
    reply = await ask(outer, "k1", TEA, path="/eu/orders", headers=SIGNED_IN)
    assert reply.status == 201
    assert [record.operation for record in world.records()] == ["POST /eu/orders"]


async def test_a_marked_endpoint_has_its_own_rules() -> None:
    world = ordering(policy=Policy(retention_s=60))

    @world.router.put("/orders/{number}")
    @idempotent(Policy(required=True, recovery="block"))
    async def change(number: int) -> dict[str, int]:
        return {"run": world.run(), "retention_s": int(oncekey.current().retention_s)}

    @world.router.post("/search")
    @not_idempotent
    async def search() -> dict[str, int]:
        return {"run": world.run()}

    put: dict[str, Any] = {"method": "PUT", "path": "/orders/1"}
    assert (await world.ask(None, **put)).kind == "missing-key"
    assert (await world.ask("k1", **put)).json() == {"run": 1, "retention_s": 60}
    assert (await world.ask("k1", **put)).replayed
    assert [(await world.ask("k1", path="/search")).json()["run"] for _ in range(2)] == [2, 3]
    assert (await world.ask(None)).status == 201, "the rules of one are not another's"


async def test_routes_have_policies_by_their_path_too() -> None:
    world = ordering(routes={"POST /v1/orders": Policy(required=True)})
    world.include("/v1")
    assert (await world.ask(None, path="/v1/orders")).kind == "missing-key"


async def test_two_guards_around_one_route_are_told_apart_at_once() -> None:
    world = ordering()
    world.app.add_middleware(
        IdempotencyMiddleware, store=MemoryStore(FakeClock()), tenant=oncekey.single_tenant
    )
    with pytest.raises(Misuse, match="guarded twice"):
        await world.ask("k1")
    assert (await world.ask(None)).status == 201


async def test_an_endpoint_may_send_requests_to_its_own_application() -> None:
    world = ordering()

    @world.router.post("/twice")
    async def twice() -> dict[str, Any]:
        keyed, bare = await world.ask("inner"), await world.ask(None)
        return {"inner": [keyed.json()["run"], bare.json()["run"]], "run": world.run()}

    first, again = await world.ask("k1", path="/twice"), await world.ask("k1", path="/twice")
    assert first.json() == again.json() == {"inner": [1, 2], "run": 3}
    assert len(world.records()) == 2


async def test_p1_what_a_dependency_sends_does_not_claim_for_the_request_that_it_serves() -> None:
    world = ordering()

    async def look_up() -> None:
        assert (await world.ask(None)).status == 201

    @world.router.post("/exchanges", dependencies=[Depends(look_up)])
    async def exchange() -> dict[str, int]:
        return {"run": world.run()}

    first, again = [await world.ask("k1", path="/exchanges") for _ in range(2)]
    assert first.json() == again.json() == {"run": 2}
    assert again.replayed
    assert [record.operation for record in world.records()] == ["POST /exchanges"]


async def test_a_tenant_may_be_async_and_must_be_found() -> None:
    async def unknown(request: FastRequest) -> None:
        return None

    world = ordering(tenant=unknown)
    refused = await world.ask("k1")
    assert (refused.status, refused.kind, world.runs) == (401, "no-tenant", 0)


async def test_what_dependencies_leave_in_the_state_is_seen_outside() -> None:
    world = ordering()
    seen: list[str] = []

    @world.app.middleware("http")
    async def log(request: FastRequest, call_next: Any) -> Any:
        response = await call_next(request)
        seen.append(request.state.account)
        return response

    await world.ask("k1")
    assert seen == ["ann"]


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

    monkeypatch.setattr(world.idempotency.guard.gatherer, "ask", down)
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
    async with idempotency.lifespan(app):
        pass


# -------------------------------------------------------------------------------------- OpenAPI


def test_guarded_routes_are_described_and_others_are_not() -> None:
    world = ordering()
    world.router.get("/orders")(lambda: None)
    world.app.post("/plain")(lambda: None)
    plain = world.app.openapi()
    assert "parameters" not in plain["paths"]["/plain"]["post"]
    world.app.openapi_schema = None
    world.include()
    paths = world.app.openapi()["paths"]
    [key] = [p for p in paths["/orders"]["post"]["parameters"] if p["name"] == "Idempotency-Key"]
    assert (key["in"], key["required"], key["schema"]["maxLength"]) == ("header", False, 255)
    assert "safe to retry" in key["description"]
    responses = paths["/orders"]["post"]["responses"]
    assert set(responses) == {"201", "400", "409", "422"}
    for status in ("400", "409", "422"):
        assert "application/problem+json" in responses[status]["content"]
    assert "application/json" in responses["422"]["content"], "FastAPI's own, beside ours"
    assert "still running" in responses["409"]["description"]
    assert set(paths["/orders"]["get"]["responses"]) == {"200", "422"}
    assert paths["/plain"] == plain["paths"]["/plain"]


def test_the_description_follows_profile_policy_and_what_the_route_declares() -> None:
    world = World(profile="paypal", policy=Policy(required=True))

    @world.router.post("/orders", openapi_extra={"responses": {"409": {"description": "mine"}}})
    async def order() -> None: ...

    @world.router.post("/declared")
    async def declared(paypal_request_id: Annotated[str, Header(description="mine")]) -> None: ...

    world.include()
    paths = world.app.openapi()["paths"]
    operation = paths["/orders"]["post"]
    assert [p["required"] for p in operation["parameters"] if p["name"] == "PayPal-Request-Id"] == [
        True
    ]
    assert "A key is required" in operation["responses"]["400"]["description"]
    assert operation["responses"]["409"]["description"] == "mine"
    names = [p["name"].lower() for p in paths["/declared"]["post"]["parameters"]]
    assert names.count("paypal-request-id") == 1


def test_what_a_route_describes_itself_counts_more_and_is_there_once() -> None:
    world = World()

    @world.router.post(
        "/orders",
        responses={409: {"description": "Sold out"}},
        openapi_extra={
            "parameters": [{"$ref": "#/components/parameters/trace"}],
            "responses": {422: {"description": "Nonsense"}},
        },
    )
    async def order(sent: Annotated[Sent, Header()]) -> None: ...

    world.include()
    described = world.app.openapi()["paths"]["/orders"]["post"]
    names = [each.get("name", each.get("$ref")) for each in described["parameters"]]
    assert sorted(names) == ["#/components/parameters/trace", "authorization", "idempotency-key"]
    said = {status: each["description"] for status, each in described["responses"].items()}
    assert (said["409"], said["422"]) == ("Sold out", "Nonsense")
    assert "application/problem+json" in described["responses"]["409"]["content"]


async def test_what_is_not_found_out_never_runs_unasked() -> None:
    """Also where the framework makes an answer of what `ask` did wrong."""
    clock = FakeClock()

    def find_out(attempt: oncekey.Attempt) -> oncekey.Answer:
        return oncekey.Answer(201, cast(Any, [("a header", "that is not bytes")]))

    policy = Policy(recovery="ask", ask=find_out, lease_s=30)
    world = World(store=MemoryStore(clock), policy=policy)

    @world.router.post("/orders")
    async def order() -> None:
        world.run()
        raise asyncio.CancelledError

    @world.app.exception_handler(TypeError)
    async def sorry(request: FastRequest, error: Exception) -> JSONResponse:
        return JSONResponse({"sorry": True}, status_code=500)

    with pytest.raises(asyncio.CancelledError):
        await world.ask("k1")
    for _ in range(2):
        clock.advance(30)
        assert (await world.ask("k1")).json() == {"sorry": True}
        assert (await world.ask("k1")).kind == "in-flight"
    assert world.runs == 1
