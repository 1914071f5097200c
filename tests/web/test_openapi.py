"""What an OpenAPI document says of a guarded operation."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, cast

import pytest
from fastapi import Header
from fastapi import Request as FastRequest
from fastapi.responses import JSONResponse

import oncekey
import oncekey.atomic
from oncekey import Policy
from oncekey._system.clock import FakeClock
from oncekey.stores.memory import MemoryStore
from tests.web.fastapi_world import Sent, World, ordering

pytestmark = pytest.mark.anyio


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
