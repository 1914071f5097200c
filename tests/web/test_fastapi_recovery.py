"""FastAPI, route by route: what a client does not come back for is finished by the recoverer, which
the application lets in as whom it says; nobody else gets in that way, and no credential is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx2
import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.middleware.base import BaseHTTPMiddleware

import oncekey
from oncekey import Misuse, Policy, current, single_tenant
from oncekey._core.record import Record, State
from oncekey._core.verbs import Find, Requested, Scan
from oncekey._engine.guard import Execute
from oncekey._engine.recovery import Ending, Recovered, Recoverer
from oncekey._system.clock import FakeClock
from oncekey.stores.batching import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.web import _asgi_messages as messages
from oncekey.web._body import Body
from oncekey.web._lifespan import start_application
from oncekey.web._routes import Route
from oncekey.web.fastapi import Idempotency, idempotent
from tests.web.client import request_headers, scope_for

pytestmark = pytest.mark.anyio

RESUME = Policy(recovery="resume", lapses_max=2)
SECRET = "Bearer secret-1"


class Order(BaseModel):
    amount: int


def signed_in(request: Request, authorization: Annotated[str, Header()] = "") -> str:
    if authorization != SECRET:
        raise HTTPException(401)
    request.state.account = "acme"
    return "acme"


def as_recovered(request: Request) -> str:
    request.state.account = current().tenant
    return current().tenant


class World:
    """An application with one guarded route, behind a login, and a store whose time passes."""

    def __init__(self, recover_as: Any = None, *, prefix: str = "", **settings: Any) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.seen: list[Any] = []
        self.refuses: int | None = None
        given = {"policy": RESUME, "tenant": lambda request: request.state.account, **settings}
        self.idempotency = Idempotency(store=self.store, recover_as=recover_as, **given)
        self.router = APIRouter(route_class=self.idempotency.route_class)
        self.app = FastAPI(lifespan=self.idempotency.lifespan)

        def permitted(account: Annotated[str, Depends(signed_in)]) -> str:
            if self.refuses:
                raise HTTPException(self.refuses)
            return account

        @self.router.post("/orders/{number}", status_code=201)
        async def pay(number: int, order: Order, account: str = Depends(permitted)) -> Any:
            charged = await current().step("charge", self.charge, order.amount)
            self.seen.append((number, account, current().recovering))
            return {"charged": charged, "by": account}

        self.app.include_router(self.router, prefix=prefix)

        @self.app.post("/whoami")
        async def whoami(account: Annotated[str, Depends(signed_in)]) -> str:
            return account

    def charge(self, amount: int) -> int:
        return amount

    def abandon(self, path: str, body: bytes = b'{"amount": 7}', named: str = "") -> bytes:
        """What another process left: it had the same settings, and died. The record's id."""
        edge = self.idempotency.edge
        headers = request_headers("k", body, "application/json", [(b"authorization", b"x")])
        request = messages.request(scope_for("POST", path, headers))
        route = Route(f"POST {named or path}", RESUME.over(Policy()).settled())
        call: Any = edge.call(request, route, "acme", "k", Body(body))
        begun = edge.runtime.drive_sync(edge.guard.begin(call, route.policy))
        assert isinstance(begun, Execute)
        self.clock.advance(31.0)
        return begun.attempt.held.id

    def find(self, orphan: bytes) -> Record:
        record: Record = Gatherer(self.store).ask(Find(orphan))
        return record

    async def recover(self, app: Any = None) -> list[Recovered]:
        told: list[Recovered] = []
        async with start_application(app or self.app):
            recoverer = Recoverer(self.store, report=told.append)
            await recoverer.round()
            await recoverer.settle()
        return told


PATH, NAMED = "/v1/orders/7", "/v1/orders/{number}"


async def test_the_recoverer_passes_the_login_as_the_record_s_tenant() -> None:
    world = World({signed_in: as_recovered}, prefix="/v1")
    orphan = world.abandon(PATH, named=NAMED)

    [recovered] = await world.recover()

    assert recovered.ending is Ending.FINISHED
    assert world.seen == [(7, "acme", True)]
    found = world.find(orphan)
    assert found.answer is not None
    assert (found.answer.status, json.loads(found.answer.body or b"")["by"]) == (201, "acme")


async def test_a_request_that_came_in_is_finished_where_its_process_stands_still() -> None:
    world = World({signed_in: as_recovered}, prefix="/v1")
    begun, charge = asyncio.Event(), world.charge

    async def never(amount: int) -> int:
        begun.set()
        await asyncio.Event().wait()
        return amount

    world.charge = never  # type: ignore[assignment,method-assign]
    async with client(world.app) as api:
        headers = {"Idempotency-Key": "k", "Authorization": SECRET} | JSON
        sent = api.post(PATH, content=b'{"amount": 7}', headers=headers)
        frozen = asyncio.create_task(sent)
        await begun.wait()
        world.clock.advance(31.0)
        world.charge = charge  # type: ignore[method-assign]
        recoverer = Recoverer(world.store)
        await recoverer.round()
        await recoverer.settle()
        assert world.seen == [(7, "acme", True)]
        again = await api.post(PATH, content=b'{"amount": 7}', headers=headers)
        assert (again.status_code, again.headers["idempotent-replayed"]) == (201, "true")
        frozen.cancel()
    await world.idempotency.guard.edge.runtime.background.drain(0.0)


async def test_its_client_s_retry_gets_that_answer() -> None:
    world = World({signed_in: as_recovered}, prefix="/v1")
    world.abandon(PATH, named=NAMED)
    await world.recover()
    async with client(world.app) as api:
        headers = {"Idempotency-Key": "k", "Authorization": SECRET}
        again = await api.post(PATH, content=b'{"amount": 7}', headers=headers | JSON)
        assert (again.status_code, again.headers["idempotent-replayed"]) == (201, "true")
        nobody = await api.post(PATH, content=b'{"amount": 7}', headers={"Idempotency-Key": "k"})
        assert nobody.status_code == 401
    assert len(world.seen) == 1


JSON = {"Content-Type": "application/json"}


@contextlib.asynccontextmanager
async def client(app: Any) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as api:
        yield api


async def test_p12_the_request_is_kept_without_its_credentials() -> None:
    """A real request, cut off within its endpoint."""
    world = World({signed_in: as_recovered})
    kept: list[bytes | None] = []

    def look(amount: int) -> int:
        [record] = Gatherer(world.store).ask(Scan(10))
        kept.append(Gatherer(world.store).ask(Requested(record.id)))
        return amount

    world.charge = look  # type: ignore[method-assign]
    async with client(world.app) as api:
        headers = {"Idempotency-Key": "k", "Authorization": SECRET} | JSON
        assert (await api.post("/orders/7", content=b'{"amount": 7}', headers=headers)).is_success
    [request] = kept
    assert request is not None
    assert b'{"amount": 7}' in request
    assert b"secret" not in request
    assert b"authorization" not in request.lower()


async def test_without_being_let_in_it_leaves_it_to_its_client() -> None:
    world = World()
    world.abandon("/orders/7", named="/orders/{number}")
    [recovered] = await world.recover()
    assert recovered.ending is Ending.LEFT
    assert world.seen == []


async def test_its_other_dependencies_have_their_say() -> None:
    """A permission that was taken away since, and one that cannot be looked up just now."""
    world = World({signed_in: as_recovered})
    orphan = world.abandon("/orders/7", named="/orders/{number}")
    world.refuses = 503
    [failed] = await world.recover()
    world.refuses = 403
    world.clock.advance(31.0)
    [refused] = await world.recover()
    assert (failed.ending, refused.ending) == (Ending.FAILED, Ending.UNKNOWN)
    assert world.find(orphan).state is State.UNKNOWN
    assert world.seen == []


async def test_what_this_release_does_not_take_is_no_answer() -> None:
    """A 422 is kept where an endpoint gives it; here the endpoint had begun, and took the body."""
    world = World({signed_in: as_recovered})
    orphan = world.abandon("/orders/7", b'{"sum": 7}', named="/orders/{number}")
    [failed] = await world.recover()
    assert failed.ending is Ending.FAILED
    assert world.find(orphan).answer is None


async def test_a_dependency_that_was_not_replaced_says_what_to_write(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World({})
    world.abandon("/orders/7", named="/orders/{number}")
    [recovered] = await world.recover()
    assert recovered.ending is Ending.UNKNOWN
    assert "it was refused with status 401" in caplog.text
    assert "recover_as" in caplog.text


async def test_nothing_else_passes_as_the_recoverer() -> None:
    """What the endpoint sends to its own application is somebody's request like any other."""
    world = World({signed_in: as_recovered})
    asked: list[int] = []

    def ask_self(amount: int) -> int:
        return amount

    @world.app.post("/outer", status_code=201)
    async def unguarded() -> None:
        return None

    async def pay(account: Annotated[str, Depends(signed_in)]) -> dict[str, int]:
        async with client(world.app) as api:
            for path in ("/whoami", "/orders/8"):
                answer = await api.post(path, json={"amount": 1}, headers={"Idempotency-Key": "n"})
                asked.append(answer.status_code)
        return {}

    world.router.post("/asks", status_code=201)(pay)
    world.app.include_router(world.router, prefix="/v2")
    world.abandon("/v2/asks", named="/v2/asks")
    [recovered] = await world.recover()
    assert (recovered.ending, asked) == (Ending.FINISHED, [401, 401])


async def test_middleware_that_was_added_is_not_passed_but_handlers_of_exceptions_are() -> None:
    world = World({signed_in: as_recovered})

    class Broke(Exception):
        pass

    async def refuse(request: Request, call_next: Any) -> JSONResponse:
        return JSONResponse({}, status_code=401)

    async def told(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"broke": True}, status_code=402)

    def breaks(amount: int) -> int:
        raise Broke

    world.charge = breaks  # type: ignore[method-assign]
    world.app.add_middleware(BaseHTTPMiddleware, dispatch=refuse)
    world.app.add_exception_handler(Broke, told)
    orphan = world.abandon("/orders/7", named="/orders/{number}")
    [recovered] = await world.recover()
    assert recovered.ending is Ending.FINISHED
    answer = world.find(orphan).answer
    assert answer is not None
    assert (answer.status, answer.body) == (402, b'{"broke":true}')


async def test_an_application_that_is_mounted_in_another() -> None:
    world = World({signed_in: as_recovered})
    outer = FastAPI(lifespan=world.idempotency.lifespan)
    outer.mount("/shop", world.app)
    edge = world.idempotency.edge
    headers = request_headers("k", b'{"amount": 7}', "application/json", ())
    scope = scope_for("POST", "/shop/orders/7", headers, root_path="/shop", app_root_path="")
    request = messages.request(scope)
    route = Route("POST /shop/orders/{number}", RESUME.over(Policy()).settled())
    call: Any = edge.call(request, route, "acme", "k", Body(b'{"amount": 7}'))
    edge.runtime.drive_sync(edge.guard.begin(call, route.policy))
    world.clock.advance(31.0)
    [recovered] = await world.recover(outer)
    assert (recovered.ending, world.seen) == (Ending.FINISHED, [(7, "acme", True)])


@pytest.mark.parametrize("root", ["", "/v2"], ids=["plain", "behind a proxy"])
@pytest.mark.parametrize("path", ["/orders/7", "/v1/orders/7", "/v2/orders/7", "/of/ann/orders/7"])
async def test_of_applications_with_the_same_routes_the_one_that_was_asked_runs_it(
    path: str, root: str
) -> None:
    """In each version of an interface, say. Their operations may have one name behind a proxy."""
    world = World()
    idempotency = Idempotency(
        store=world.store,
        tenant=lambda request: request.state.account,
        policy=RESUME,
        recover_as={signed_in: as_recovered},
    )
    seen: list[Any] = []
    begun, goes_on = asyncio.Event(), asyncio.Event()

    def made(name: str, **settings: Any) -> FastAPI:
        app = FastAPI(**settings)
        router = APIRouter(route_class=idempotency.route_class, dependencies=[Depends(signed_in)])

        @router.post("/orders/{number}")
        async def order(number: int, request: Request) -> None:
            seen.append((name, number, request.path_params.get("who")))
            begun.set()
            if not current().recovering:
                await goes_on.wait()

        app.include_router(router)
        return app

    outer = made("outer", lifespan=idempotency.lifespan)
    for mount in ("/v1", "/v2", "/of/{who}"):
        outer.mount(mount, made(mount))
    async with start_application(outer):
        transport = httpx2.ASGITransport(app=outer, root_path=root)
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as api:
            headers = {"Idempotency-Key": "k", "Authorization": SECRET}
            frozen = asyncio.create_task(api.post(root + path, headers=headers))
            await begun.wait()
            world.clock.advance(31.0)
            told: list[Recovered] = []
            recoverer = Recoverer(world.store, report=told.append)
            await recoverer.round()
            await recoverer.settle()
            goes_on.set()
            await frozen
    assert [each.ending for each in told] == [Ending.FINISHED]
    assert seen == [seen[0]] * 2


async def test_another_application_s_request_is_not_run() -> None:
    world = World({signed_in: as_recovered})
    world.abandon("/whoami", named="/whoami")
    [recovered] = await world.recover()
    assert recovered.ending is Ending.LEFT


async def test_ask_is_asked_before_anything_runs() -> None:
    def find_out(attempt: oncekey.Attempt) -> oncekey.Answer:
        return oncekey.answer(201, {"found": attempt.key})

    policy = Policy(recovery="ask", ask=find_out)
    world = World({signed_in: as_recovered}, policy=policy)
    edge = world.idempotency.edge
    headers = request_headers("k", b"{}", "application/json", ())
    request = messages.request(scope_for("POST", "/orders/7", headers))
    route = Route("POST /orders/{number}", policy.settled())
    call: Any = edge.call(request, route, "acme", "k", Body(b"{}"))
    begun = edge.runtime.drive_sync(edge.guard.begin(call, route.policy))
    assert isinstance(begun, Execute)
    world.clock.advance(31.0)
    [recovered] = await world.recover()
    assert (recovered.ending, world.seen) == (Ending.FINISHED, [])
    answer = world.find(begun.attempt.held.id).answer
    assert answer is not None
    assert answer.body == b'{"found":"k"}'


async def test_overrides_of_a_test_s_own_go_on_working() -> None:
    world = World({signed_in: as_recovered})
    world.abandon("/orders/7", named="/orders/{number}")
    await world.recover()
    world.app.dependency_overrides[signed_in] = lambda: "tester"
    async with client(world.app) as api:
        assert (await api.post("/whoami")).json() == "tester"


# ----------------------------------------------------------------------------- at the start


async def test_who_is_not_let_in_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "oncekey.recovery")
    world = World(prefix="/v1", policy=Policy())

    @world.router.post("/refunds")
    @idempotent(RESUME)
    def refund() -> None:
        return None

    async with world.idempotency.lifespan(world.app):
        pass
    assert "no recoverer finishes POST /v1/refunds, only a retry of the client" in caplog.text
    assert "recover_as={signed_in: recovered}" in caplog.text


@pytest.mark.parametrize("wrong", [5, "signed_in", {"signed_in": as_recovered}, {signed_in: None}])
def test_what_replaces_nothing_is_refused(wrong: Any) -> None:
    with pytest.raises(Misuse, match="recover_as=… takes dependencies"):
        World(wrong)


async def test_a_dependency_that_no_route_has_is_refused_at_the_start() -> None:
    world = World({as_recovered: signed_in})
    with pytest.raises(Misuse, match="recover_as names as_recovered, on which no guarded route"):
        async with world.idempotency.lifespan(world.app):
            pass


def test_single_tenant_needs_nobody() -> None:
    assert World({}, tenant=single_tenant).idempotency.guard.lets_recoverer_in
