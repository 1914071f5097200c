"""Around expiry, over HTTP: what a client may ask for, what it is told too late, and its quota."""

from __future__ import annotations

from typing import Any

import fastapi
import flask
import pytest
from starlette.testclient import TestClient

import oncekey
from oncekey import Policy, Quota
from oncekey._core.key_age import older_than_memory
from oncekey._core.verbs import Scan
from oncekey.stores.batching import Gatherer
from oncekey.stores.connection import StoreConnection
from oncekey.stores.memory import MemoryStore
from oncekey.web.fastapi import Idempotency
from oncekey.web.flask import Oncekey
from tests.core.test_key_age import uuid7_of
from tests.web import wsgi_world
from tests.web.asgi_world import World
from tests.web.client import Reply, ask, ask_wsgi

pytestmark = pytest.mark.anyio

DECLARED = Policy(retention_s=100, retention_declared_s=(60, 3600))


async def send(world: World, key: str, retention: bytes | None = None) -> Reply:
    headers = [] if retention is None else [(b"idempotency-retention", retention)]
    return await ask(world.app, key, headers=headers)


async def still_kept(world: World, key: str) -> bool:
    return (await send(world, key)).replayed


async def test_a_client_asks_for_a_retention_and_gets_it() -> None:
    world = World(policy=DECLARED, recent_s=0)
    await send(world, "short", b"60")
    await send(world, "usual")
    await send(world, "long", b"3600")
    world.clock.advance(59)
    assert [await still_kept(world, key) for key in ("short", "usual", "long")] == [True] * 3
    world.clock.advance(1)
    assert not await still_kept(world, "short")
    assert await still_kept(world, "usual")
    world.clock.advance(40)
    assert not await still_kept(world, "usual")
    assert await still_kept(world, "long")


@pytest.mark.parametrize(("profile", "kept_s"), [("oncekey", 86_400), ("stripe", 86_390)])
async def test_retention_counts_from_where_the_profile_says(profile: str, kept_s: int) -> None:
    """From the end, or from the first use, which was ten seconds before it."""
    world = World(profile=profile)
    handler = world.handler

    async def slow(receive: Any, send: Any) -> None:
        world.clock.advance(10)
        await handler(receive, send)

    world.handler = slow
    await send(world, "k1")
    [record] = Gatherer(world.store).ask(Scan(10))
    assert record.expires_in_s == kept_s


async def test_what_it_got_stands_in_the_answer() -> None:
    world = World(policy=DECLARED)
    world.clock.step_wall(1_800_000_000 - world.clock.wall())
    reply = await send(world, "k1", b"3600")
    assert reply.header("idempotency-expires") == "Fri, 15 Jan 2027 09:00:00 GMT"


@pytest.mark.parametrize("retention", [b"3601", b"a week", b"-5", b""])
async def test_p7_what_cannot_be_given_is_refused_before_it_runs(retention: bytes) -> None:
    world = World(policy=DECLARED)
    reply = await send(world, "k1", retention)
    assert (reply.status, reply.kind, world.runs) == (400, "malformed-request", 0)
    assert (await send(world, "k1")).status == 201


async def test_where_it_may_not_ask_it_is_not_heard() -> None:
    world = World(policy=Policy(retention_s=100), recent_s=0)
    assert (await send(world, "k1", b"a week")).status == 201
    world.clock.advance(99)
    assert await still_kept(world, "k1")


async def test_a_tombstone_over_http() -> None:
    world = World(policy=Policy(retention_s=100, tombstone_s=1000), status_path="/status")
    world.handler = world.answer_with({"ok": True}, headers=[(b"location", b"/orders/7")])
    first, again = await send(world, "k1"), await send(world, "k1")
    assert again.replayed
    lines = [*first.headers, *again.headers]
    assert not [name for name, _ in lines if name.startswith(b":")]
    assert first.header("idempotency-expires") == again.header("idempotency-expires")
    world.clock.advance(100)
    late = await send(world, "k1")
    assert (late.status, late.kind, world.runs) == (409, "key-expired", 1)
    assert late.header("x-should-retry") == "false"
    told = await ask(
        world.app, "k1", method="GET", path="/status", query=b"operation=POST%20/orders", body=b""
    )
    assert (told.json()["state"], told.json()["expires_in_s"]) == ("completed", 0)
    world.clock.advance(1000)
    assert (await send(world, "k1")).status == 201


async def test_an_upcast_does_not_see_the_tombstone() -> None:
    versions = oncekey.Versions()
    seen: list[oncekey.Answer] = []

    @versions.upcast(0, 1)
    def newer(answer: oncekey.Answer) -> oncekey.Answer:
        seen.append(answer)
        return answer

    policy = Policy(tombstone_s=1000)
    world = World(policy=policy)
    await send(world, "k1")
    after = Policy(schema_version=1, upcasts=versions).over(policy)
    later = World(store=world.store, policy=after)
    assert (await send(later, "k1")).replayed
    assert [name for name, _ in seen[0].headers] == [b"content-type"]


async def test_e67_keys_of_clients_that_came_too_late() -> None:
    world = World(policy=Policy(key_age_s_max=3600, key_time_required=True))
    now = world.clock.wall()
    assert (await send(world, uuid7_of(now - 3600))).status == 201
    late = await send(world, uuid7_of(now - 3601))
    assert (late.status, late.kind) == (412, "too-old")
    assert (await send(world, "order-17")).kind == "invalid-key"
    assert world.runs == 1
    assert older_than_memory("order-17", None, now, world.app.edge.routes.policies[0]) is None


# ---------------------------------------------------------------------------------- quotas

ONE = Quota(records_max=1)


async def test_e49_over_asgi() -> None:
    world = World(quota=ONE)
    assert (await send(world, "k1")).status == 201
    full = await send(world, "k2")
    assert (full.status, full.kind, full.header("retry-after")) == (429, "quota-exceeded", "60")
    assert (await send(world, "k1")).replayed
    assert world.runs == 1
    assert (await ask(world.app, "k2", headers=[(b"x-account", b"other")])).status == 201


async def test_e49_processes_count_together_for_all_routes() -> None:
    shared: dict[str, Any] = {
        "quota": Quota(records_max=2),
        "routes": {"POST /invoices": Policy(retention_s=30 * 86_400)},
    }
    one = World(**shared)
    other = World(**shared, store=one.store)
    for world, path in ((one, "/invoices"), (other, "/orders")):
        assert (await ask(world.app, "k1", path=path)).status == 201
        quotas = world.app.edge.guard.quotas
        assert quotas is not None
        quotas.work(StoreConnection(one.store), lambda: False)
    assert (await send(other, "k2")).kind == "quota-exceeded"


def test_e49_over_wsgi() -> None:
    world = wsgi_world.World(quota=ONE)
    assert [ask_wsgi(world.app, key).status for key in ("k1", "k2")] == [201, 429]
    world.app.close()


def test_e49_in_routes_of_fastapi() -> None:
    idempotency = Idempotency(store="memory://", tenant=lambda request: "acme", quota=ONE)
    app = fastapi.FastAPI(lifespan=idempotency.lifespan)
    app.router.route_class = idempotency.route_class

    @app.post("/orders")
    @oncekey.web.fastapi.idempotent()
    def order() -> dict[str, Any]:
        return {}

    with TestClient(app) as client:
        sent = [client.post("/orders", headers={"Idempotency-Key": key}) for key in ("k1", "k2")]
    assert [reply.status_code for reply in sent] == [200, 429]


def test_e49_in_views_of_flask() -> None:
    app = flask.Flask(__name__)
    store = MemoryStore()
    guard = Oncekey(app, store=store, tenant=lambda request: "acme", quota=ONE)

    @app.post("/orders")
    def order() -> dict[str, Any]:
        return {}

    client = app.test_client()
    sent = [client.post("/orders", headers={"Idempotency-Key": key}) for key in ("k1", "k2")]
    assert [reply.status_code for reply in sent] == [200, 429]
    guard.views.close()
    assert [record.replays for record in Gatherer(store).ask(Scan(9, tenant="oncekey"))] == [1]
