"""Callers' connections, one kind each: opened, written to, committed and rolled back alike; and a
store with the engine beside them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncmy
import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from oncekey._core.fingerprint import Fingerprint
from oncekey._core.policy import Policy
from oncekey._core.verbs import Find
from oncekey._engine.attempt import Attempt
from oncekey._engine.guard import Call, Execute
from oncekey._engine.runtime import Runtime
from tests.places import Place, mariadb_place, postgres_place, sqlite_place
from tests.servers.mariadb import mysql_connection

ORDER = "INSERT INTO orders (item) VALUES ('tea')"
ORDERS = "CREATE TABLE IF NOT EXISTS orders (item TEXT NOT NULL)"


@dataclass(frozen=True)
class Joinable:
    """A transaction of the caller's: what `complete_in` is given, and the ways to end it."""

    connection: Any
    write: Callable[[], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]


async def do(result: Any) -> None:
    if hasattr(result, "__await__"):
        await result


def _libpq(url: str) -> str:
    return url.partition("?")[0]


def _alchemy(url: str, driver: str) -> str:
    return _libpq(url).replace("postgresql://", f"postgresql+{driver}://")


@asynccontextmanager
async def by_asyncpg(url: str) -> AsyncIterator[Joinable]:
    connection = await asyncpg.connect(_libpq(url), statement_cache_size=0)
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield Joinable(
            connection, lambda: connection.execute(ORDER), transaction.commit, transaction.rollback
        )
    finally:
        await connection.close()


@asynccontextmanager
async def by_asyncpg_pool(url: str) -> AsyncIterator[Joinable]:
    created = asyncpg.create_pool(_libpq(url), min_size=1, statement_cache_size=0)
    async with created as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield Joinable(
            connection, lambda: connection.execute(ORDER), transaction.commit, transaction.rollback
        )


@asynccontextmanager
async def by_psycopg(url: str) -> AsyncIterator[Joinable]:
    with psycopg.connect(_libpq(url), prepare_threshold=None) as c:
        yield Joinable(c, lambda: c.execute(ORDER), c.commit, c.rollback)
        c.rollback()


@asynccontextmanager
async def by_async_psycopg(url: str) -> AsyncIterator[Joinable]:
    connected = await psycopg.AsyncConnection.connect(_libpq(url), prepare_threshold=None)
    async with connected as c:
        yield Joinable(c, lambda: c.execute(ORDER), c.commit, c.rollback)
        await c.rollback()


def _sqlalchemy(driver: str) -> Callable[[str], AbstractAsyncContextManager[Joinable]]:
    @asynccontextmanager
    async def open_one(url: str) -> AsyncIterator[Joinable]:
        engine = _engine(url, driver)
        with engine.connect() as c:
            c.begin()
            yield Joinable(c, lambda: c.exec_driver_sql(ORDER), c.commit, c.rollback)
        engine.dispose()

    return open_one


def _session(driver: str) -> Callable[[str], AbstractAsyncContextManager[Joinable]]:
    @asynccontextmanager
    async def open_one(url: str) -> AsyncIterator[Joinable]:
        engine = _engine(url, driver)
        with Session(engine) as s:
            yield Joinable(s, lambda: s.connection().exec_driver_sql(ORDER), s.commit, s.rollback)
        engine.dispose()

    return open_one


def _engine(url: str, driver: str) -> Any:
    if driver == "pysqlite":
        return create_engine(url)
    if driver == "pymysql":
        return create_engine(_libpq(url).replace("mariadb://", "mariadb+pymysql://"))
    return create_engine(_alchemy(url, driver), connect_args={"prepare_threshold": None})


def _async_engine(url: str, driver: str) -> Any:
    if driver == "aiosqlite":
        return create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
    if driver == "asyncmy":
        return create_async_engine(_libpq(url).replace("mariadb://", "mariadb+asyncmy://"))
    off = {"asyncpg": "statement_cache_size", "psycopg": "prepare_threshold"}
    arguments = {off[driver]: 0 if driver == "asyncpg" else None}
    if driver == "asyncpg":
        arguments["prepared_statement_cache_size"] = 0
    return create_async_engine(_alchemy(url, driver), connect_args=arguments)


def _async_sqlalchemy(driver: str) -> Callable[[str], AbstractAsyncContextManager[Joinable]]:
    @asynccontextmanager
    async def open_one(url: str) -> AsyncIterator[Joinable]:
        engine = _async_engine(url, driver)
        async with engine.connect() as c:
            await c.begin()
            yield Joinable(c, lambda: c.exec_driver_sql(ORDER), c.commit, c.rollback)
        await engine.dispose()

    return open_one


def _async_session(driver: str) -> Callable[[str], AbstractAsyncContextManager[Joinable]]:
    @asynccontextmanager
    async def open_one(url: str) -> AsyncIterator[Joinable]:
        engine = _async_engine(url, driver)
        async with AsyncSession(engine) as s:

            async def write() -> None:
                connection: AsyncConnection = await s.connection()
                await connection.exec_driver_sql(ORDER)

            yield Joinable(s, write, s.commit, s.rollback)
        await engine.dispose()

    return open_one


@asynccontextmanager
async def by_sqlite3(url: str) -> AsyncIterator[Joinable]:
    c = sqlite3.connect(url.removeprefix("sqlite:///"))
    try:
        yield Joinable(c, lambda: c.execute(ORDER), c.commit, c.rollback)
    finally:
        c.close()


@asynccontextmanager
async def by_pymysql(url: str) -> AsyncIterator[Joinable]:
    with mysql_connection(url, autocommit=False) as c:
        yield Joinable(c, lambda: c.cursor().execute(ORDER), c.commit, c.rollback)


@asynccontextmanager
async def by_asyncmy(url: str) -> AsyncIterator[Joinable]:
    parts = urlsplit(url)
    c = await asyncmy.connect(
        host=parts.hostname,
        port=parts.port,
        user=parts.username,
        password=parts.password,
        database=parts.path[1:],
    )

    async def write() -> None:
        async with c.cursor() as cursor:
            await cursor.execute(ORDER)

    try:
        yield Joinable(c, write, c.commit, c.rollback)
    finally:
        c.close()


POSTGRES: dict[str, Callable[[str], AbstractAsyncContextManager[Joinable]]] = {
    "asyncpg": by_asyncpg,
    "asyncpg pool": by_asyncpg_pool,
    "psycopg": by_psycopg,
    "async psycopg": by_async_psycopg,
    "SQLAlchemy on psycopg": _sqlalchemy("psycopg"),
    "Session on psycopg": _session("psycopg"),
    "async SQLAlchemy on asyncpg": _async_sqlalchemy("asyncpg"),
    "async SQLAlchemy on psycopg": _async_sqlalchemy("psycopg"),
    "AsyncSession on asyncpg": _async_session("asyncpg"),
    "AsyncSession on psycopg": _async_session("psycopg"),
}
SQLITE: dict[str, Callable[[str], AbstractAsyncContextManager[Joinable]]] = {
    "sqlite3": by_sqlite3,
    "SQLAlchemy on sqlite3": _sqlalchemy("pysqlite"),
    "Session on sqlite3": _session("pysqlite"),
    "async SQLAlchemy on aiosqlite": _async_sqlalchemy("aiosqlite"),
    "AsyncSession on aiosqlite": _async_session("aiosqlite"),
}
MARIADB: dict[str, Callable[[str], AbstractAsyncContextManager[Joinable]]] = {
    "PyMySQL": by_pymysql,
    "asyncmy": by_asyncmy,
    "SQLAlchemy on PyMySQL": _sqlalchemy("pymysql"),
    "Session on PyMySQL": _session("pymysql"),
    "async SQLAlchemy on asyncmy": _async_sqlalchemy("asyncmy"),
    "AsyncSession on asyncmy": _async_session("asyncmy"),
}
KINDS = POSTGRES | SQLITE | MARIADB


@dataclass
class World:
    """A store, the engine on it, and what a caller can open beside it."""

    kind: str
    place: Place
    runtime: Runtime
    policy: Policy
    url: str

    def open(self) -> AbstractAsyncContextManager[Joinable]:
        return KINDS[self.kind](self.url)

    async def attempt(self, key: str) -> Attempt:
        decision = await self.runtime.drive(self.runtime.guard.begin(call(key), self.policy))
        assert isinstance(decision, Execute)
        decision.attempt.ports = self.runtime.ports()
        return decision.attempt

    async def record(self, attempt: Attempt) -> Any:
        return await self.runtime.async_gatherer.ask(Find(attempt.held.id))

    def orders(self) -> int:
        return count_orders(self.place)


def call(key: str) -> Call:
    return Call("acme", "POST /orders", key, Fingerprint(1, bytes(32)))


def prepare_place(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> Place:
    made = postgres_place if kind in POSTGRES else sqlite_place
    made = mariadb_place if kind in MARIADB else made
    place = made(request, tmp_path)
    place.migrate()
    make_orders(place)
    return place


def make_orders(place: Place) -> None:
    """The table of the orders, empty."""
    if place.name == "sqlite":
        with closing(sqlite3.connect(place.url.removeprefix("sqlite:///"))) as db, db:
            db.execute(ORDERS)
    elif place.name in ("mariadb", "mysql"):
        with mysql_connection(place.url) as my, my.cursor() as cursor:
            cursor.execute("DROP TABLE IF EXISTS orders")
            cursor.execute(ORDERS)
    else:
        with psycopg.connect(place.url.partition("?")[0]) as pg:
            pg.execute("DROP TABLE IF EXISTS orders")
            pg.execute(ORDERS.encode())


def count_orders(place: Place) -> int:
    count: Any
    if place.name == "sqlite":
        with closing(sqlite3.connect(place.url.removeprefix("sqlite:///"))) as db:
            [count] = db.execute("SELECT count(*) FROM orders").fetchone()
    elif place.name in ("mariadb", "mysql"):
        with mysql_connection(place.url) as my, my.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM orders")
            [count] = cursor.fetchone()
    else:
        with psycopg.connect(place.url.partition("?")[0]) as pg:
            [count] = pg.execute("SELECT count(*) FROM orders").fetchone() or (0,)
    return int(count)
