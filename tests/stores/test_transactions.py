"""Records that commit with the caller's rows, on every kind of connection that can be joined."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from django.db import connections, transaction
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from oncekey import current, single_tenant
from oncekey._core.endings import End
from oncekey._core.op import run
from oncekey._core.policy import Policy
from oncekey._core.record import Answer, State
from oncekey._core.verbs import Find
from oncekey._engine.guard import Given, Refuse, Replay, Stored
from oncekey._engine.runtime import Runtime
from oncekey.errors import LeaseLost, Misuse
from oncekey.stores import transactions
from oncekey.stores.base import Store
from oncekey.stores.memory import MemoryStore
from oncekey.stores.urls import open_store
from oncekey.web.asgi import IdempotencyMiddleware
from tests.atomic.shop import django_alias
from tests.places import postgres_place
from tests.stores.joining import KINDS, MARIADB, ORDER, POSTGRES, World, call, do, prepare_place
from tests.web.client import ask

pytestmark = pytest.mark.anyio
LEASE_S = 30.0


# Where drivers do not differ, one of each family will do.
few = pytest.mark.parametrize(
    "world",
    [
        *("asyncpg", "Session on psycopg", "sqlite3", "AsyncSession on aiosqlite"),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("PyMySQL", "asyncmy")),
    ],
    indirect=True,
)


_PARAMETERS = [
    pytest.param(kind, marks=[pytest.mark.slow] if kind in MARIADB else []) for kind in KINDS
]


@pytest.fixture(params=_PARAMETERS)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    place = prepare_place(request, tmp_path, request.param)
    runtime = Runtime(f"{place.url}{'&' if '?' in place.url else '?'}timeout_s=0.2")
    policy = Policy(lease_s=LEASE_S).settled()
    yield World(request.param, place, runtime, policy, place.url)
    await runtime.aclose()


async def test_p2_what_is_committed_is_both(world: World) -> None:
    key = str(uuid.uuid4())
    attempt = await world.attempt(key)
    async with world.open() as caller:
        await do(caller.write())
        answer = await attempt.complete_in(caller.connection, 201, {"id": 1})
        before = await world.record(attempt)
        await do(caller.commit())
    found = await world.record(attempt)
    assert (before.state, found.state) == (State.RUNNING, State.COMPLETED)
    assert found.answer == answer == Answer(201, answer.headers, b'{"id":1}')
    assert world.orders() == 1
    guard = world.runtime.guard
    finished = await world.runtime.drive(
        guard.ownership.conclude(attempt, End.FAILED, None, call(key))
    )
    assert finished == Stored(finished.expires_in_s, answer)  # type: ignore[union-attr]


async def test_p2_what_is_rolled_back_is_neither_and_the_attempt_goes_on(world: World) -> None:
    key = str(uuid.uuid4())
    attempt = await world.attempt(key)
    async with world.open() as caller:
        await do(caller.write())
        await attempt.complete_in(caller.connection, 201, {"id": 1})
        await do(caller.rollback())
    assert (await world.record(attempt)).state is State.RUNNING
    assert world.orders() == 0
    guard = world.runtime.guard
    finished = await world.runtime.drive(
        guard.ownership.conclude(attempt, End.KEPT, Answer(402), call(key))
    )
    assert isinstance(finished, Stored)
    assert (await world.record(attempt)).answer == Answer(402)


async def test_p2_whoever_was_taken_over_commits_nothing(world: World) -> None:
    key = str(uuid.uuid4())
    late = await world.attempt(key)
    world.place.elapse(LEASE_S)
    other = await world.attempt(key)
    async with world.open() as caller:
        await do(caller.write())
        with pytest.raises(LeaseLost):
            await late.complete_in(caller.connection, 201, {"id": 1})
        await do(caller.rollback())
    assert late.lost
    assert world.orders() == 0
    assert (await world.record(other)).fence == other.fence


@pytest.mark.slow
@few
async def test_p1_until_the_commit_nobody_takes_over(world: World) -> None:
    """The lease runs out between `complete_in` and the commit: whoever comes waits or is
    refused.
    """
    key = str(uuid.uuid4())
    attempt = await world.attempt(key)
    guard, drive = world.runtime.guard, world.runtime.drive
    world.place.elapse(LEASE_S)
    async with world.open() as caller:
        await attempt.complete_in(caller.connection, 201, {"id": 1})
        decision = await drive(guard.begin(call(key), world.policy))
        await do(caller.commit())
    assert isinstance(decision, Refuse)
    assert isinstance(await drive(guard.begin(call(key), world.policy)), Replay)


@few
async def test_the_heartbeat_stops_before_it(world: World) -> None:
    attempt = await world.attempt(str(uuid.uuid4()))
    heartbeat = world.runtime.heartbeat
    heartbeat.add(attempt)
    async with world.open() as caller:
        await attempt.complete_in(caller.connection, 201)
        scheduled = heartbeat._schedule.next_at()
        await do(caller.rollback())
    assert scheduled is None


async def test_a_step_is_kept_with_the_rows_that_it_wrote(world: World) -> None:
    attempt = await world.attempt(str(uuid.uuid4()))
    async with world.open() as caller:
        await attempt.step("order", lambda: do(caller.write()), within=caller.connection)
        await do(caller.commit())
    assert world.orders() == 1
    [step] = await world.runtime.drive(world.runtime.guard.ownership.steps(attempt))
    assert (step.name, step.result) == ("order", b"null")


@few
async def test_p2_a_step_of_whoever_was_taken_over_is_refused_within_its_transaction(
    world: World,
) -> None:
    key = str(uuid.uuid4())
    late = await world.attempt(key)
    world.place.elapse(LEASE_S)
    other = await world.attempt(key)
    async with world.open() as caller:
        with pytest.raises(LeaseLost):
            await late.step("order", lambda: do(caller.write()), within=caller.connection)
        await do(caller.rollback())
    assert late.lost
    assert world.orders() == 0
    assert await world.runtime.drive(world.runtime.guard.ownership.steps(other)) == []


@few
async def test_a_step_that_was_rolled_back_is_not_kept(world: World) -> None:
    attempt = await world.attempt(str(uuid.uuid4()))
    async with world.open() as caller:
        await attempt.step("order", lambda: do(caller.write()), within=caller.connection)
        await do(caller.rollback())
    assert world.orders() == 0
    assert await world.runtime.drive(world.runtime.guard.ownership.steps(attempt)) == []


async def test_a_later_attempt_finds_a_step_though_the_store_waits_for_its_transaction(
    world: World,
) -> None:
    key = str(uuid.uuid4())
    first = await world.attempt(key)
    await first.step("order", lambda: 17)
    await world.runtime.drive(world.runtime.guard.ownership.abandon(first, no_effect=False))
    second = await world.attempt(key)
    async with world.open() as caller:
        await do(caller.write())
        verb = world.runtime.guard.ownership.renewal(second)
        renewal = asyncio.ensure_future(world.runtime.async_gatherer.ask(verb))
        found = await second.step("order", lambda: 18, within=caller.connection)
        await do(caller.commit())
    assert found == 17
    await asyncio.wait([renewal])
    renewal.exception()  # it may have waited in vain


@pytest.mark.parametrize(
    "world",
    ["Session on psycopg", pytest.param("Session on PyMySQL", marks=pytest.mark.slow)],
    indirect=True,
)
async def test_a_transaction_that_began_before_the_attempt_does_not_hide_what_is_kept(
    world: World,
) -> None:
    """As when a retry waits in a session that has read before, while the first attempt goes on."""
    key = str(uuid.uuid4())
    async with world.open() as caller:
        connection = caller.connection.connection()
        if "psycopg" in world.kind:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.exec_driver_sql("SELECT * FROM orders").all()
        first = await world.attempt(key)
        await first.step("order", lambda: 17)
        await world.runtime.drive(world.runtime.guard.ownership.abandon(first, no_effect=False))
        second = await world.attempt(key)
        assert await second.step("order", lambda: 18, within=caller.connection) == 17


@few
async def test_a_released_attempt_that_completed_in_vain_is_given_back(world: World) -> None:
    key = str(uuid.uuid4())
    attempt = await world.attempt(key)
    async with world.open() as caller:
        await attempt.complete_in(caller.connection, 201)
        await do(caller.rollback())
    guard = world.runtime.guard
    finished = await world.runtime.drive(
        guard.ownership.conclude(attempt, End.FAILED, None, call(key))
    )
    assert isinstance(finished, Given)
    assert (await world.record(attempt)).state is State.RELEASED


# ---------------------------------------------------------------------------------------- Django


@pytest.mark.parametrize("kind", ["asyncpg", "sqlite3"])  # on either database
async def test_p2_djangos_transactions_are_joined(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    place = prepare_place(request, tmp_path, kind)
    alias = django_alias(place.url.partition("?")[0])
    world = World(kind, place, Runtime(place.url), Policy().settled(), place.url)
    kept, undone = [await world.attempt(str(uuid.uuid4())) for _ in range(2)]

    def complete() -> None:
        with transaction.atomic(using=alias):
            connections[alias].cursor().execute(ORDER)
            kept.complete_in_sync(alias, 201, {"id": 1})
        with transaction.atomic(using=alias):
            connections[alias].cursor().execute(ORDER)
            undone.complete_in_sync(connections[alias], 201)
            transaction.set_rollback(True, using=alias)
        refuses(world.runtime.store, alias, r"transaction\.atomic\(\)")
        connections.close_all()

    await asyncio.to_thread(complete)
    assert (await world.record(kept)).state is State.COMPLETED
    assert (await world.record(undone)).state is State.RUNNING
    assert world.orders() == 1
    await world.runtime.aclose()


# ------------------------------------------------------------------------ what the client is told


@pytest.mark.parametrize("kind", ["asyncpg", "sqlite3"])
@pytest.mark.parametrize("commits", [True, False])
async def test_p4_what_was_committed_is_answered_whatever_the_handler_does_then(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, commits: bool
) -> None:
    place = prepare_place(request, tmp_path, kind)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async with KINDS[kind](place.url) as caller:
            await do(caller.write())
            await current().complete_in(caller.connection, 201, {"id": 1})
            await do(caller.commit() if commits else caller.rollback())
        raise RuntimeError("the handler failed")

    guarded = IdempotencyMiddleware(app, store=place.url, tenant=single_tenant)
    key = str(uuid.uuid4())
    if commits:
        first, again = await ask(guarded, key), await ask(guarded, key)
        assert (first.status, first.body, again.replayed) == (201, b'{"id":1}', True)
    else:
        with pytest.raises(RuntimeError, match="the handler failed"):
            await ask(guarded, key)
        found = place.look(key, "POST /orders")
        assert found is not None
        assert found.state is State.RELEASED
    await guarded.close()


# ------------------------------------------------------------------------------------- PgBouncer


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(POSTGRES))
async def test_it_works_through_pgbouncer_in_transaction_mode(
    request: pytest.FixtureRequest, tmp_path: Path, pgbouncer_url: str, kind: str
) -> None:
    place = prepare_place(request, tmp_path, kind)
    runtime = Runtime(f"{pgbouncer_url}?pgbouncer=true&allow=unsafe-durability")
    world = World(kind, place, runtime, Policy().settled(), pgbouncer_url)
    try:
        for _ in range(2):
            attempt = await world.attempt(str(uuid.uuid4()))
            async with world.open() as caller:
                await do(caller.write())
                await attempt.complete_in(caller.connection, 201, {"id": 1})
                await do(caller.commit())
            assert (await world.record(attempt)).state is State.COMPLETED
        assert world.orders() == 2
    finally:
        await runtime.aclose()


# ---------------------------------------------------------------------------------------- misuse

SOME = Find(bytes(32))


def refuses(store: Store, connection: Any, match: str) -> None:
    with pytest.raises(Misuse, match=match):
        transactions.perform(store, connection, [SOME])


async def arefuses(store: Store, connection: Any, match: str) -> None:
    with pytest.raises(Misuse, match=match):
        await transactions.aperform(store, connection, [SOME])


async def test_nothing_is_written_outside_a_transaction(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = postgres_place(request, tmp_path).url
    libpq, store = url.partition("?")[0], open_store(url)
    connection = await asyncpg.connect(libpq)
    await arefuses(store, connection, r"async with connection.transaction\(\)")
    await connection.close()
    with psycopg.connect(libpq, autocommit=True) as pg:
        refuses(store, pg, r"with connection.transaction\(\)")
    async with await psycopg.AsyncConnection.connect(libpq, autocommit=True) as apg:
        await arefuses(store, apg, "no transaction is open")
    engine = create_engine(libpq.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as alchemy:
        refuses(store, alchemy, r"engine.begin\(\)")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as alchemy:
        alchemy.begin()
        refuses(store, alchemy, "AUTOCOMMIT")
    engine.dispose()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_nothing_is_written_by_an_engine_in_autocommit(
    request: pytest.FixtureRequest, tmp_path: Path, driver: str
) -> None:
    url = postgres_place(request, tmp_path).url
    libpq, store = url.partition("?")[0], open_store(url)
    engine = create_async_engine(
        libpq.replace("postgresql:", f"postgresql+{driver}:"), isolation_level="AUTOCOMMIT"
    )
    async with engine.begin() as connection:
        await arefuses(store, connection, "AUTOCOMMIT")
    await engine.dispose()


def test_sqlite_in_autocommit_is_refused(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/keys.db")
    store.connect().close()
    with closing(sqlite3.connect(tmp_path / "keys.db", isolation_level=None)) as db:
        refuses(store, db, "BEGIN IMMEDIATE")


def test_another_file_is_refused(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/keys.db")
    store.connect().close()
    with closing(sqlite3.connect(tmp_path / "other.db")) as db, db:
        db.execute("CREATE TABLE orders (item)")
        refuses(store, db, r"keys\.db.*other\.db")
    with closing(sqlite3.connect(":memory:")) as db:
        refuses(store, db, "memory")


def test_another_kind_of_database_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = postgres_place(request, tmp_path).url
    with psycopg.connect(url.partition("?")[0]) as pg:
        refuses(MemoryStore(), pg, "connection to postgres, but the records are in memory")
    with closing(sqlite3.connect(":memory:")) as db:
        refuses(open_store(url), db, "connection to sqlite, but the records are in postgres")


def test_what_is_no_connection_is_told_apart() -> None:
    with pytest.raises(Misuse, match=r"builtins\.object is no connection"):
        transactions.perform(MemoryStore(), object(), [SOME])


async def test_a_database_without_our_tables_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = prepare_place(request, tmp_path, "asyncpg")
    store, libpq = open_store(place.url), place.url.partition("?")[0]
    with psycopg.connect(libpq, options="-c search_path=pg_catalog") as pg:
        refuses(store, pg, "has no oncekey tables")


async def test_other_tables_of_ours_are_refused(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """By a search_path of its own the connection sees tables of ours, but not those of the
    store.
    """
    place = prepare_place(request, tmp_path, "psycopg")
    libpq, schema = place.url.partition("?")[0], f"s{uuid.uuid4().hex}"
    with psycopg.connect(libpq, autocommit=True) as pg:
        pg.execute(f"CREATE SCHEMA {schema}".encode())
    elsewhere = f"{libpq}?options=-c%20search_path%3D{schema}"
    other = open_store(f"{elsewhere}&allow=unsafe-durability")
    with closing(other.connect()) as connection:
        run(other.migrate(), connection.ask)
    world = World("psycopg", place, Runtime(place.url), Policy().settled(), place.url)
    attempt = await world.attempt(str(uuid.uuid4()))
    try:
        with psycopg.connect(elsewhere) as pg:
            with pytest.raises(Misuse, match="search_path"):
                await attempt.complete_in(pg, 201)
            pg.rollback()
        assert (await world.record(attempt)).state is State.RUNNING
    finally:
        await world.runtime.aclose()
