"""A shop whose orders are rows beside its records, on every kind of connection there is an adapter
for.
"""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncmy
import asyncpg
import django
import psycopg
import pymysql
import pytest
from django.conf import settings
from django.db import connections
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

import oncekey
from oncekey import Policy, atomic, single_tenant
from oncekey._core import fingerprint as fingerprints
from oncekey._core.endings import End
from oncekey._core.fingerprint import Fingerprint
from oncekey._core.key import record_id
from oncekey._core.record import Answer, Record
from oncekey._engine.attempt import Attempt
from oncekey._engine.guard import Call, Execute
from oncekey._engine.runtime import Runtime
from oncekey.web import asgi, wsgi
from tests.places import PLACES, Place
from tests.servers.mariadb import mysql_connection
from tests.servers.mysql import wanted
from tests.stores.joining import ORDER, count_orders, make_orders
from tests.web.client import Reply, ask, ask_wsgi

pymysql.install_as_MySQLdb()
if not settings.configured:
    settings.configure()
    django.setup()

Opened = tuple[atomic.Adapter, Callable[[Any], Any]]
Open = Callable[[str], AbstractAsyncContextManager[Opened]]


# ------------------------------------------------------------------------------- adapters


class Pools:
    """How many connections each has."""

    size = 4


@asynccontextmanager
async def by_asyncpg(url: str) -> AsyncIterator[Opened]:
    async with asyncpg.create_pool(
        url, min_size=1, max_size=Pools.size, statement_cache_size=0
    ) as pool:
        yield atomic.Asyncpg(pool), lambda connection: connection.execute(ORDER)


@asynccontextmanager
async def by_psycopg(url: str) -> AsyncIterator[Opened]:
    unprepared = {"prepare_threshold": None}
    with ConnectionPool(url, min_size=1, max_size=Pools.size, kwargs=unprepared) as pool:
        yield atomic.Psycopg(pool), lambda connection: connection.execute(ORDER)


@asynccontextmanager
async def by_psycopg_connect(url: str) -> AsyncIterator[Opened]:
    def connect() -> Any:
        return psycopg.connect(url, autocommit=True, prepare_threshold=None)

    yield atomic.Psycopg(connect), lambda connection: connection.execute(ORDER)


@asynccontextmanager
async def by_async_psycopg(url: str) -> AsyncIterator[Opened]:
    unprepared = {"prepare_threshold": None}
    pool = AsyncConnectionPool(url, min_size=1, max_size=Pools.size, open=False, kwargs=unprepared)
    async with pool:
        yield atomic.AsyncPsycopg(pool), lambda connection: connection.execute(ORDER)


_DRIVERS = {
    "postgresql": "psycopg",
    "mariadb": "pymysql",
    "mysql": "pymysql",
    "sqlite": "pysqlite",
}
_UNPREPARED: dict[str, dict[str, Any]] = {
    "psycopg": {"prepare_threshold": None},
    "asyncpg": {"statement_cache_size": 0, "prepared_statement_cache_size": 0},
}


def _sqlalchemy(*, session: bool) -> Open:
    @asynccontextmanager
    async def open_adapter(url: str) -> AsyncIterator[Opened]:
        scheme, _, rest = url.partition(":")
        driver = _DRIVERS[scheme]
        address, arguments = f"{scheme}+{driver}:{rest}", _UNPREPARED.get(driver, {})
        engine = create_engine(address, connect_args=arguments, pool_size=Pools.size)
        if session:
            maker = sessionmaker(engine)
            yield atomic.SQLAlchemy(maker), lambda s: s.connection().exec_driver_sql(ORDER)
        else:
            yield atomic.SQLAlchemy(engine), lambda c: c.exec_driver_sql(ORDER)
        engine.dispose()

    return open_adapter


def _async_sqlalchemy(driver: str, *, session: bool) -> Open:
    @asynccontextmanager
    async def open_adapter(url: str) -> AsyncIterator[Opened]:
        scheme, _, rest = url.partition(":")
        address, arguments = f"{scheme}+{driver}:{rest}", _UNPREPARED.get(driver, {})
        engine = create_async_engine(address, connect_args=arguments)

        async def write(s: Any) -> None:
            await (await s.connection()).exec_driver_sql(ORDER)

        if session:
            yield atomic.AsyncSQLAlchemy(async_sessionmaker(engine)), write
        else:
            yield atomic.AsyncSQLAlchemy(engine), lambda c: c.exec_driver_sql(ORDER)
        await engine.dispose()

    return open_adapter


@asynccontextmanager
async def by_pymysql(url: str) -> AsyncIterator[Opened]:
    yield atomic.PyMySQL(lambda: mysql_connection(url)), lambda c: c.cursor().execute(ORDER)


@asynccontextmanager
async def by_asyncmy(url: str, *, autocommit: bool = True) -> AsyncIterator[Opened]:
    parts = urlsplit(url)

    async def write(connection: Any) -> None:
        async with connection.cursor() as cursor:
            await cursor.execute(ORDER)

    created = asyncmy.create_pool(
        maxsize=Pools.size,
        autocommit=autocommit,
        host=parts.hostname,
        port=parts.port,
        user=parts.username,
        password=parts.password,
        database=parts.path[1:],
    )
    async with created as pool:
        yield atomic.Asyncmy(pool), write


@asynccontextmanager
async def by_sqlite(url: str) -> AsyncIterator[Opened]:
    yield atomic.Sqlite(), lambda connection: connection.execute(ORDER)


@asynccontextmanager
async def by_django(url: str) -> AsyncIterator[Opened]:
    alias = django_alias(url)

    def write(connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(ORDER)

    yield atomic.Django(alias), write


def django_alias(url: str) -> str:
    """A database of Django's, under a name of its own."""
    alias, parts = f"shop{uuid.uuid4().hex}", urlsplit(url)
    if parts.scheme == "sqlite":
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    else:
        vendor = "postgresql" if parts.scheme == "postgresql" else "mysql"
        database = {
            "ENGINE": f"django.db.backends.{vendor}",
            "NAME": parts.path[1:],
            "USER": parts.username or "",
            "PASSWORD": parts.password or "",
            "HOST": parts.hostname or "",
            "PORT": str(parts.port),
        }
    known = {**connections.settings, alias: database}
    connections.settings[alias] = connections.configure_settings(known)[alias]
    return alias


POSTGRES: dict[str, tuple[str, Open]] = {
    "asyncpg": ("asgi", by_asyncpg),
    "async psycopg": ("asgi", by_async_psycopg),
    "psycopg in threads": ("asgi", by_psycopg),
    "AsyncConnection on asyncpg": ("asgi", _async_sqlalchemy("asyncpg", session=False)),
    "AsyncSession on asyncpg": ("asgi", _async_sqlalchemy("asyncpg", session=True)),
    "AsyncSession on psycopg": ("asgi", _async_sqlalchemy("psycopg", session=True)),
    "psycopg": ("wsgi", by_psycopg),
    "psycopg's connect": ("wsgi", by_psycopg_connect),
    "Connection": ("wsgi", _sqlalchemy(session=False)),
    "Session": ("wsgi", _sqlalchemy(session=True)),
    "Django": ("wsgi", by_django),
}
SQLITE: dict[str, tuple[str, Open]] = {
    "sqlite3": ("asgi", by_sqlite),
    "sqlite3 in threads": ("wsgi", by_sqlite),
    "Connection on sqlite3": ("wsgi", _sqlalchemy(session=False)),
    "Session on sqlite3": ("wsgi", _sqlalchemy(session=True)),
    "Session on sqlite3 in a loop": ("asgi", _sqlalchemy(session=True)),
    "Django on sqlite3": ("wsgi", by_django),
}
MARIADB: dict[str, tuple[str, Open]] = {
    "asyncmy": ("asgi", by_asyncmy),
    "PyMySQL": ("wsgi", by_pymysql),
    "PyMySQL in threads": ("asgi", by_pymysql),
    "AsyncSession on asyncmy": ("asgi", _async_sqlalchemy("asyncmy", session=True)),
    "Session on PyMySQL": ("wsgi", _sqlalchemy(session=True)),
    "Django on PyMySQL": ("wsgi", by_django),
}
OF_MYSQL = " of MySQL"
MYSQL = {f"{kind}{OF_MYSQL}": way for kind, way in MARIADB.items()} if wanted() else {}
KINDS = POSTGRES | SQLITE | MARIADB | MYSQL


def kinds_as_params(*kinds: str) -> list[Any]:
    """Kinds as parameters of tests. Those of MariaDB are slow, and stand for MySQL too where it is
    tested.
    """
    slow = [each for kind in kinds if kind in MARIADB for each in (kind, f"{kind}{OF_MYSQL}")]
    return [
        *(kind for kind in kinds if kind not in MARIADB),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in slow if kind in KINDS),
    ]


_ENGINES = {"postgres": POSTGRES, "sqlite": SQLITE, "mariadb": MARIADB, "mysql": MYSQL}


def engine_of(kind: str) -> str:
    return next(engine for engine, kinds in _ENGINES.items() if kind in kinds)


def place_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The database of a kind, prepared."""
    place = PLACES[engine_of(kind)](request, tmp_path)
    prepare(place)
    return place


# ----------------------------------------------------------------------------------- shop


@dataclass
class Gate:
    """Where a handler stands until the test lets it go on."""

    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def stand(self) -> None:
        self.reached.set()
        assert self.opened.wait(20)

    async def stand_async(self) -> None:
        await asyncio.to_thread(self.stand)

    async def wait(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 20)


class Shop:
    """The application and its middleware."""

    def __init__(
        self,
        kind: str,
        place: Place,
        adapter_and_write: Opened,
        store: str | None = None,
        **policy: Any,
    ) -> None:
        self.kind, self.place = kind, place
        self.edge = KINDS[kind][0]
        self.adapter, self.write = adapter_and_write
        self.gate = Gate()
        self.runs = 0
        self.answer: bytes | None = None
        """What is answered; None: which run it is."""
        self.during: Callable[[], None] = lambda: None
        self.instead: Callable[[Any], Any] | None = None
        """The application, where it is to be another one."""
        given: dict[str, Any] = {
            "store": store or place.url,
            "tenant": single_tenant,
            "policy": Policy(atomic=True, **policy),
            "atomic": self.adapter,
        }
        self.app: Any = (
            asgi.IdempotencyMiddleware(self._asgi, **given)
            if self.edge == "asgi"
            else wsgi.IdempotencyMiddleware(self._wsgi, **given)
        )

    async def order(self, key: str | None, **order: Any) -> Reply:
        if self.edge == "asgi":
            return await ask(self.app, key, order)
        return await asyncio.to_thread(self._order, key, order)

    def _order(self, key: str | None, order: Any) -> Reply:
        try:
            return ask_wsgi(self.app, key, order)
        finally:
            connections.close_all()  # as Django does after a request

    async def _asgi(self, scope: Any, receive: Any, send: Any) -> None:
        if self.instead is not None:
            await self.instead(send)
            return
        order = json.loads((await receive())["body"])
        self.runs += 1
        written = self.write(oncekey.current().connection)
        if hasattr(written, "__await__"):
            await written
        self.during()
        if order.get("stand"):
            await self.gate.stand_async()
        if order.get("fail"):
            raise RuntimeError("the handler failed")
        status = order.get("status", 201)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": self._answer_body()})

    def _wsgi(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        if self.instead is not None:
            return self.instead(start_response)  # type: ignore[no-any-return]
        order = json.loads(environ["wsgi.input"].read())
        self.runs += 1
        self.write(oncekey.current().connection)
        self.during()
        if order.get("stand"):
            self.gate.stand()
        if order.get("fail"):
            raise RuntimeError("the handler failed")
        start_response(f"{order.get('status', 201)} Whatever", [])
        return [self._answer_body()]

    def _answer_body(self) -> bytes:
        return b"run %d" % self.runs if self.answer is None else self.answer

    def look(self, key: str) -> Record | None:
        return self.place.look(key, "POST /orders")

    def orders(self) -> int:
        return count_orders(self.place)

    async def close(self) -> None:
        if self.edge == "asgi":
            await self.app.close()
        else:
            await asyncio.to_thread(self.app.close)


def prepare(place: Place) -> None:
    """The tables of the records and of the orders, the latter empty."""
    place.migrate()
    make_orders(place)


def the_id(key: str) -> bytes:
    return record_id("single", "POST /orders", key)


# --------------------------------------------------------------------------- beside others

LEASE_S = 30.0
AT_ONCE_S = 10.0
"""Also on a slow machine. Whoever waited for a handler would do so until its gate opens, and for a
row of InnoDB for 50 s.
"""


def new_key() -> str:
    return str(uuid.uuid4())


def call(key: str, body: bytes = b"{}") -> Call:
    fingerprint = fingerprints.compute("POST", "/orders", b"", "application/json", body)
    assert isinstance(fingerprint, Fingerprint)
    return Call("single", "POST /orders", key, fingerprint)


@asynccontextmanager
async def claim_leased(
    shop: Shop, key: str, **policy: Any
) -> AsyncIterator[tuple[Runtime, Attempt]]:
    """The same operation, claimed by a process that knows nothing of atomic mode."""
    runtime = Runtime(shop.place.url)
    settled = Policy(lease_s=LEASE_S, **policy).settled()
    decision = await runtime.drive(runtime.guard.begin(call(key), settled))
    assert isinstance(decision, Execute)
    try:
        yield runtime, decision.attempt
    finally:
        await runtime.aclose()


async def finish(runtime: Runtime, attempt: Attempt, end: End) -> None:
    answer = Answer(202, (), b"leased") if end is End.KEPT else None
    await runtime.drive(
        runtime.guard.ownership.conclude(attempt, end, answer, call(attempt.key or ""))
    )


Opener = Callable[..., AbstractAsyncContextManager[Shop]]


@pytest.fixture
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens shops of any kind on one database."""

    @asynccontextmanager
    async def open_shop(kind: str, **policy: Any) -> AsyncIterator[Shop]:
        place = place_of(kind, request, tmp_path)
        async with KINDS[kind][1](place.url.partition("?")[0]) as adapter:
            shop = Shop(kind, place, adapter, **policy)
            yield shop
            await shop.close()

    return open_shop


@pytest.fixture(
    params=kinds_as_params(
        "asyncpg", "Session", "sqlite3", "sqlite3 in threads", "asyncmy", "Session on PyMySQL"
    )
)
async def shop(request: pytest.FixtureRequest, opener: Opener) -> AsyncIterator[Shop]:
    """One of each kind that differs when something goes wrong; every replay asks the store."""
    async with opener(request.param) as shop:
        shop.app.edge.recent.seconds = 0
        yield shop
