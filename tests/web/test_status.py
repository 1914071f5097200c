"""The status query: what became of a key, for whoever may ask."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import oncekey
from oncekey import Policy
from tests.web.asgi_world import World, down, flaky_world, held, tenant_of
from tests.web.client import Reply, ask, scope_for

pytestmark = pytest.mark.anyio


async def test_e66_a_client_may_ask_what_became_of_its_key() -> None:
    world = World(status_path="/idempotency")
    world.handler, started, go_on = held(world)
    first = asyncio.ensure_future(ask(world.app, "k1"))
    await started.wait()

    async def status(key: str, account: bytes = b"acme") -> Reply:
        return await ask(
            world.app,
            key,
            b"",
            method="GET",
            path="/idempotency",
            query=b"operation=POST%20/orders",
            headers=[(b"x-account", account)],
        )

    assert (await status("k1")).json()["state"] == "running"
    go_on.set()
    await first
    told = (await status("k1")).json()
    assert (told["state"], told["status"]) == ("completed", 201)
    assert (await status("k2")).kind == "key-not-found"
    assert (await status("k1", b"mallory")).kind == "key-not-found"
    assert (await status("null")).kind == "invalid-key"


async def test_e66_the_status_query_needs_to_know_the_operation() -> None:
    world = World(status_path="/idempotency")
    reply = await ask(world.app, "k1", b"", method="GET", path="/idempotency")
    assert (reply.status, reply.kind) == (400, "malformed-request")


async def test_e66_the_status_query_is_one_also_where_requests_of_its_method_are_guarded() -> None:
    world = World(status_path="/idempotency", routes={"GET /report": Policy()})
    await ask(world.app, "k1")
    at: dict[str, Any] = {"path": "/idempotency", "query": b"operation=POST%20/orders"}
    assert (await ask(world.app, "k1", b"", method="GET", **at)).json()["state"] == "completed"
    assert (await ask(world.app, "k1", b"", method="OPTIONS", **at)).status == 201  # its own
    assert world.runs == 2


async def test_e66_the_status_query_says_when_the_store_is_down() -> None:
    world, store = flaky_world(status_path="/idempotency")
    store.before = [down(False)] * 4
    query = b"operation=POST%20/orders"
    told = await ask(world.app, "k1", b"", method="GET", path="/idempotency", query=query)
    assert (told.status, told.kind) == (503, "store-unavailable")


async def test_e66_the_status_query_compares_keys_as_the_profile_does() -> None:
    profile = oncekey.PROFILES["oncekey"].derive(name="folding", case_insensitive=True)
    world = World(status_path="/idempotency", profile=profile)
    await ask(world.app, "Key-1")
    query = b"operation=POST%20/orders"
    told = await ask(world.app, "KEY-1", b"", method="GET", path="/idempotency", query=query)
    assert told.json()["state"] == "completed"


async def test_others_can_look_at_what_became_of_a_key_without_claiming_it() -> None:
    """P7: a rate limiter that stands outside asks before anything is spent."""
    world = World(routes={"POST /orders": Policy(scope="tenant")})

    async def look(key: str | None, account: bytes = b"acme", method: str = "POST") -> str | None:
        lines = [(b"x-account", account), *([(b"idempotency-key", key.encode())] if key else [])]
        return await world.app.state_of(scope_for(method, "/orders", lines))

    world.handler, started, go_on = held(world)
    assert await look("k1") is None
    assert world.stored() == 0
    first = asyncio.ensure_future(ask(world.app, "k1"))
    await started.wait()
    assert await look("k1") == "running"
    go_on.set()
    await first
    assert await look("k1") == "completed"
    assert await look("k1", b"mallory") is None
    assert await look("k1", method="GET") is None
    assert await look("null") is None
    assert await look(None) is None
    assert (world.stored(), world.runs) == (1, 1)


async def test_whose_key_is_looked_at_may_have_to_be_awaited() -> None:
    async def account_of(request: oncekey.Request) -> str | None:
        return tenant_of(request)

    world = World(status_path="/idempotency", tenant=account_of)
    await ask(world.app, "k1")
    at: dict[str, Any] = {"path": "/idempotency", "query": b"operation=POST%20/orders"}
    assert (await ask(world.app, "k1", b"", method="GET", **at)).json()["state"] == "completed"
    lines = [(b"idempotency-key", b"k1")]
    assert await world.app.state_of(scope_for("POST", "/orders", lines)) == "completed"


async def test_a_look_while_the_store_is_down_says_so() -> None:
    world, store = flaky_world()
    store.before = [down(False)] * 4
    with pytest.raises(oncekey.StoreUnavailable):
        await world.app.state_of(scope_for("POST", "/orders", [(b"idempotency-key", b"k1")]))
