"""The example applications of atomic mode, each against its real database."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from examples import (
    atomic_asyncmy,
    atomic_asyncpg,
    atomic_psycopg,
    atomic_sqlalchemy,
    atomic_sqlite,
)
from tests.places import mariadb_place, postgres_place
from tests.servers.mariadb import mysql_connection
from tests.stores.joining import count_orders
from tests.web.client import Reply, ask, ask_wsgi

pytestmark = pytest.mark.anyio
ORDER = {"item": "tea"}


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    place = postgres_place(request, tmp_path)
    place.migrate()
    with psycopg.connect(place.url.partition("?")[0]) as db:
        db.execute("DROP TABLE IF EXISTS orders")
    return place.url.partition("?")[0]


def orders_in(database: str) -> int:
    with psycopg.connect(database) as db:
        [count] = db.execute("SELECT count(*) FROM orders").fetchone() or (0,)
    return int(count)


async def twice(app: Any) -> tuple[Reply, Reply]:
    """Started, asked twice, and stopped, as a server does it."""
    key, messages = str(uuid.uuid4()), asyncio.Queue[dict[str, str]]()
    started, stopped = asyncio.Event(), asyncio.Event()

    async def send(message: dict[str, str]) -> None:
        assert "failed" not in message["type"], message
        (started if "startup" in message["type"] else stopped).set()

    lifespan = asyncio.create_task(app({"type": "lifespan"}, messages.get, send))
    messages.put_nowait({"type": "lifespan.startup"})
    await started.wait()
    replies = await ask(app, key, ORDER), await ask(app, key, ORDER)
    messages.put_nowait({"type": "lifespan.shutdown"})
    await stopped.wait()
    await lifespan
    return replies


def same(first: Reply, again: Reply) -> None:
    assert first.status == 201, first
    assert first.json() == {"id": 1, "item": "tea"}
    assert (again.body, again.replayed) == (first.body, True)


@pytest.mark.parametrize("example", [atomic_asyncpg, atomic_sqlalchemy])
async def test_orders_commit_with_their_answers(database: str, example: Any) -> None:
    same(*await twice(example.build(database, f"{database}?allow=unsafe-durability")))
    assert orders_in(database) == 1


@pytest.mark.slow
async def test_orders_commit_with_their_answers_on_mariadb(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = mariadb_place(request, tmp_path)
    place.migrate()
    with mysql_connection(place.url) as db, db.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS orders")
    same(*await twice(atomic_asyncmy.build(place.url.partition("?")[0], place.url)))
    assert count_orders(place) == 1


async def test_orders_commit_with_their_answers_under_wsgi(database: str) -> None:
    app = atomic_psycopg.build(database, f"{database}?allow=unsafe-durability")

    def order() -> tuple[Reply, Reply]:
        key = str(uuid.uuid4())
        try:
            return ask_wsgi(app, key, ORDER), ask_wsgi(app, key, ORDER)
        finally:
            app.wsgi_app.close()  # type: ignore[attr-defined]
            app.extensions["pool"].close()

    same(*await asyncio.to_thread(order))
    assert orders_in(database) == 1


async def test_orders_commit_with_their_answers_in_one_file(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    same(*await twice(atomic_sqlite.build(file)))
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("SELECT count(*) FROM orders").fetchone() == (1,)
