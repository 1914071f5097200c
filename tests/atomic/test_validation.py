"""Atomic settings that cannot work are refused at startup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncpg
import pytest
from django.db import connections
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import oncekey
from oncekey import Policy, atomic, migrate, open_store, single_tenant
from oncekey.errors import Misuse
from oncekey.stores.memory import MemoryStore
from oncekey.web import asgi, wsgi
from tests.atomic.shop import Opener, django_alias, new_key, opener
from tests.places import mariadb_place, postgres_place
from tests.servers.mariadb import mysql_connection

__all__ = ["opener"]

pytestmark = pytest.mark.anyio


async def app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("never called")


REFUSED: dict[str, tuple[Any, Any, Policy, str]] = {
    "no adapter": ("sqlite:///{}/k.db", None, Policy(atomic=True), r"add atomic=oncekey\.atomic"),
    "no policy": ("sqlite:///{}/k.db", atomic.Sqlite(), Policy(), r"no policy says Policy\(atom"),
    "a class": ("sqlite:///{}/k.db", atomic.Sqlite, Policy(atomic=True), "not the class Sqlite"),
    "a name": ("sqlite:///{}/k.db", "default", Policy(atomic=True), "takes an adapter, .* str"),
    "memory": (MemoryStore(), atomic.Sqlite(), Policy(atomic=True), "records in memory cannot"),
    "redis": ("redis://h", atomic.Asyncpg(None), Policy(atomic=True), "records in redis cannot"),
    "MySQL": ("mysql://u@h/d", None, Policy(atomic=True), r"one of Asyncmy\(pool\), PyMySQL"),
    "another database": (
        *("sqlite:///{}/k.db", atomic.Asyncpg(None), Policy(atomic=True)),
        r"Asyncpg\(…\) is for postgres, but the records are in sqlite",
    ),
    "too long": (
        *("sqlite:///{}/k.db", atomic.Sqlite(), Policy(atomic=True, lease_s=15, atomic_s_max=5)),
        "less than a third of lease_s",
    ),
    "Django in a loop": ("sqlite:///{}/k.db", None, Policy(atomic=True), "belong to a thread"),
}


@pytest.mark.parametrize("name", list(REFUSED))
async def test_wrong_combinations_are_refused_at_the_start(name: str, tmp_path: Path) -> None:
    store, adapter, policy, match = REFUSED[name]
    if isinstance(store, str):
        store = store.format(tmp_path)
    if name == "Django in a loop":
        adapter = atomic.Django(django_alias(f"sqlite:///{tmp_path}/k.db"))
    with pytest.raises(Misuse, match=match):
        asgi.IdempotencyMiddleware(
            app, store=store, tenant=single_tenant, policy=policy, atomic=adapter
        )


@pytest.mark.parametrize("name", ["SQLAlchemy", "Django"])
def test_another_file_of_sqlite_is_found_out_each_time(name: str, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    engine = create_engine(other)
    adapter: Any = (
        atomic.SQLAlchemy(engine) if name == "SQLAlchemy" else atomic.Django(django_alias(other))
    )
    store = open_store(f"sqlite:///{tmp_path}/keys.db")
    for each in (store, other):  # both have the tables: only their names tell them apart
        migrate(each)
    for _ in range(2):
        with pytest.raises(Misuse, match="they commit together only in one file"):
            adapter.begin(store, bytes(32), 1.0)
    engine.dispose()
    connections.close_all()


@pytest.mark.parametrize(
    "kind",
    [
        *(atomic.Asyncpg, atomic.Psycopg, atomic.AsyncPsycopg, atomic.Asyncmy, atomic.PyMySQL),
        *(atomic.SQLAlchemy, atomic.AsyncSQLAlchemy),
    ],
)
def test_p12_a_url_is_no_pool_and_is_not_shown(kind: Any) -> None:
    with pytest.raises(Misuse) as refused:
        kind("postgresql://shop:secret@db.internal/shop")
    said = str(refused.value)
    assert said.startswith(f"{kind.__name__}(…) takes a")
    assert "secret" not in said


def test_an_engine_of_the_other_kind_or_a_session_is_refused() -> None:
    engine = create_engine("postgresql+psycopg://db.internal/shop")
    awaited = create_async_engine("postgresql+asyncpg://db.internal/shop")
    maker = sessionmaker(engine)
    for given in (awaited, async_sessionmaker(awaited), Session(engine), 7):
        with pytest.raises(Misuse, match=r"^SQLAlchemy\(…\) takes an engine, a sessionmaker, or"):
            atomic.SQLAlchemy(given)
    for other in (engine, maker, AsyncSession(awaited)):
        with pytest.raises(Misuse, match=r"^AsyncSQLAlchemy\(…\) takes an async engine, or an"):
            atomic.AsyncSQLAlchemy(other)
    assert atomic.SQLAlchemy(scoped_session(maker)).engine == "postgres"
    assert atomic.SQLAlchemy(maker).engine == atomic.AsyncSQLAlchemy(awaited).engine == "postgres"


async def test_an_async_adapter_is_refused_under_wsgi(postgres_url: str) -> None:
    with pytest.raises(Misuse, match="needs an event loop"):
        wsgi.IdempotencyMiddleware(
            lambda environ, start: [],
            store=postgres_url,
            tenant=single_tenant,
            policy=Policy(atomic=True),
            atomic=atomic.Asyncpg(None),
        )


async def test_atomic_handlers_take_no_steps(opener: Opener) -> None:
    async with opener("sqlite3") as shop:
        refused = []

        def step() -> None:
            try:
                oncekey.current().step_sync("charge", lambda: 1)
            except Misuse as error:
                refused.append(str(error))

        shop.during = step
        await shop.order(new_key())
        assert "commits with its answer" in refused[0]


@pytest.mark.slow
async def test_another_database_of_a_mariadb_is_found_out_at_the_start(
    mariadb_url: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = mariadb_place(request, tmp_path)
    place.migrate()
    elsewhere = mariadb_url.rpartition("/")[0]
    guarded = asgi.IdempotencyMiddleware(
        app,
        store=place.url,
        tenant=single_tenant,
        policy=Policy(atomic=True),
        atomic=atomic.PyMySQL(lambda: mysql_connection(f"{elsewhere}/mysql")),
    )
    with pytest.raises(Misuse, match=r"has no oncekey tables.* run `oncekey migrate URL`"):
        await guarded.start()
    await guarded.close()


@pytest.mark.slow
async def test_a_connection_of_mariadb_that_comes_with_a_transaction_is_found_out(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Its isolation cannot be set any more."""
    place = mariadb_place(request, tmp_path)
    place.migrate()

    def connect() -> Any:
        connection = mysql_connection(place.url, autocommit=False)
        connection.cursor().execute("SELECT * FROM oncekey_schema")
        return connection

    guarded = asgi.IdempotencyMiddleware(
        app,
        store=place.url,
        tenant=single_tenant,
        policy=Policy(atomic=True),
        atomic=atomic.PyMySQL(connect),
    )
    with pytest.raises(Misuse, match="on which nothing was asked yet"):
        await guarded.start()
    await guarded.close()


async def test_another_database_is_found_out_at_the_start(
    postgres_url: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The adapter's connections see other tables than the store's."""
    place = postgres_place(request, tmp_path)
    place.migrate()
    elsewhere = {"search_path": "pg_catalog"}
    async with asyncpg.create_pool(postgres_url, min_size=1, server_settings=elsewhere) as pool:
        guarded = asgi.IdempotencyMiddleware(
            app,
            store=place.url,
            tenant=single_tenant,
            policy=Policy(atomic=True),
            atomic=atomic.Asyncpg(pool),
        )
        with pytest.raises(Misuse, match="has no oncekey tables"):
            await guarded.start()
        await guarded.close()
