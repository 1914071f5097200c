"""Which of FastAPI's routes are guarded, under which name, and by which rules."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from fastapi import Request as FastRequest

import oncekey
import oncekey.atomic
from oncekey import Misuse, Policy
from oncekey._system.clock import FakeClock
from oncekey.stores.memory import MemoryStore
from oncekey.web.asgi import IdempotencyMiddleware
from oncekey.web.fastapi import idempotent, not_idempotent
from tests.web.client import ask
from tests.web.fastapi_world import SIGNED_IN, TEA, World, ordering

pytestmark = pytest.mark.anyio


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
    store = MemoryStore(FakeClock())
    world.app.add_middleware(IdempotencyMiddleware, store=store, tenant=lambda request: "acme")
    with pytest.raises(Misuse, match="guarded twice"):
        await world.ask("k1")
    assert (await world.ask(None)).status == 201
    with pytest.raises(Misuse, match="POST /orders is guarded twice"):
        async with world.idempotency.lifespan(world.app):
            pass


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
