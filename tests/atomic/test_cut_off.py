"""Handlers that return while one of their threads or tasks still runs a statement."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest

import oncekey
from oncekey.atomic import _loans as loan
from tests.atomic.shop import (
    MARIADB,
    MYSQL,
    POSTGRES,
    SQLITE,
    Opener,
    Pools,
    Shop,
    engine_of,
    kinds_as_params,
    new_key,
    opener,
)
from tests.places import Place
from tests.servers.mariadb import mysql_connection
from tests.stores.joining import ORDER

__all__ = ["opener"]

pytestmark = pytest.mark.anyio

KINDS = POSTGRES | SQLITE | MARIADB | MYSQL
AWAITED = ["asyncpg", "async psycopg", "asyncmy", *(k for k in KINDS if k.startswith("Async"))]
BLOCKING = [kind for kind in [*POSTGRES, *SQLITE, *MARIADB] if kind not in AWAITED]

SLOW = {
    "postgres": "SELECT pg_sleep(60)",
    "mariadb": "SELECT SLEEP(60)",
    "mysql": "SELECT SLEEP(60)",
    "sqlite": "WITH RECURSIVE c(n) AS (SELECT here() UNION ALL SELECT n + 1 FROM c) "
    "SELECT max(n) FROM c",
}


@pytest.fixture
async def shop(
    request: pytest.FixtureRequest, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Shop]:
    """A shop whose next request gets the connection that the last one had, if it goes back."""
    monkeypatch.setattr(Pools, "size", 1)
    monkeypatch.setattr("oncekey.atomic.postgres.LEAVE_S_MAX", 10.0)
    async with opener(request.param) as shop:
        yield shop


def of(kinds: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("shop", kinds_as_params(*kinds), indirect=True)


# ------------------------------------------------------------------- whether it is in there


def is_running(place: Place) -> bool:
    """Whether the server is in the slow statement. SQLite's calls `here()`."""
    url = place.url.partition("?")[0]
    if place.name == "postgres":
        with psycopg.connect(url) as db:
            [count] = db.execute(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE state = 'active' AND query LIKE 'SELECT pg_sleep%' "
                "AND datname = current_database()"
            ).fetchone() or (0,)
        return bool(count)
    if place.name in ("mariadb", "mysql"):
        with mysql_connection(url) as db, db.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM information_schema.processlist "
                "WHERE db = DATABASE() AND info LIKE 'SELECT SLEEP%'"
            )
            [count] = cursor.fetchone() or (0,)
        return bool(count)
    return True


def end_slow_statements(place: Place) -> None:
    """MariaDB and MySQL go on with a statement whose client has hung up."""
    if place.name in ("mariadb", "mysql"):
        with mysql_connection(place.url.partition("?")[0]) as db, db.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM information_schema.processlist "
                "WHERE db = DATABASE() AND info LIKE 'SELECT SLEEP%'"
            )
            for (connection_id,) in cursor.fetchall():
                cursor.execute(f"KILL {connection_id}")


async def again(shop: Shop, key: str) -> int:
    """The status of a retry, once the server has let go of the first attempt."""
    await asyncio.to_thread(end_slow_statements, shop.place)
    async with asyncio.timeout(20):
        while (reply := await shop.order(key)).status in (409, 503):
            pass
    return reply.status


def driver_of(shop: Shop, lent: Any) -> Any:
    """The connection to SQLite."""
    if shop.kind.startswith("Session"):
        return lent.connection().connection.driver_connection
    if shop.kind.startswith("Connection"):
        return lent.connection.driver_connection
    return lent.connection if shop.kind.startswith("Django") else lent


def wait_until_it_runs(place: Place) -> None:
    for _ in range(1000):
        if is_running(place):
            return
        threading.Event().wait(0.01)
    raise AssertionError("it does not run")


# --------------------------------------------------------------------------------- threads


class Thread:
    """A thread that a handler leaves behind, in a statement."""

    def __init__(self, shop: Shop, lent: Any) -> None:
        self._shop, self._lent = shop, lent
        self.begins, self._here = threading.Event(), threading.Event()
        self.errors: list[Exception] = []
        if engine_of(shop.kind) == "sqlite":
            driver_of(shop, lent).create_function("here", 0, self._is_here)
        else:
            self._is_here()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self.begins.wait(20)
        assert self._here.wait(20)
        wait_until_it_runs(shop.place)

    def _is_here(self) -> int:
        self._here.set()
        return 1

    def _run(self) -> None:
        use = self._use()
        self.begins.set()
        for statement in (SLOW[engine_of(self._shop.kind)], ORDER):
            try:
                use(statement)
            except Exception as error:
                self.errors.append(error)

    def _use(self) -> Callable[[str], Any]:
        lent, kind = self._lent, self._shop.kind
        if kind.startswith("Session"):
            return lambda statement: lent.connection().exec_driver_sql(statement).fetchall()
        if kind.startswith("Connection"):
            return lambda statement: lent.exec_driver_sql(statement).fetchall()
        if kind.startswith("Django"):
            lent.inc_thread_sharing()
        cursor = lent.cursor()
        return lambda statement: (cursor.execute(statement), cursor.fetchall())

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


@of(BLOCKING)
@pytest.mark.parametrize("status", [504, 201])
async def test_p5_a_thread_in_a_statement_is_cut_off_with_its_transaction(
    shop: Shop, status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that says it worked is undone: nobody knows what its thread would still have done."""
    if status == 201:
        for name in ("mysql", "postgres", "sqlite"):
            monkeypatch.setattr(f"oncekey.atomic.{name}.LEAVE_S_MAX", 0.2)
    write, threads, key = shop.write, list[Thread](), new_key()

    def leave(lent: Any) -> None:
        write(lent)
        threads.append(Thread(shop, lent))

    shop.write = leave
    reply = await shop.order(key, status=status)
    assert reply.status == (504 if status == 504 else 503)
    shop.write = write
    assert (await shop.order(new_key())).status == 201
    threads[0].join()
    assert len(threads[0].errors) == 2, threads[0].errors
    assert shop.orders() == 1
    assert shop.look(key) is None
    assert await again(shop, key) == 201
    if status == 201:
        assert loan.STILL_IN_USE in caplog.text


# ----------------------------------------------------------------------------------- tasks


async def run_slowly(kind: str, lent: Any, engine: str) -> None:
    if kind.startswith("AsyncSession"):
        lent = await lent.connection()
    if kind.startswith("Async"):
        await lent.exec_driver_sql(SLOW[engine])
    elif kind.startswith("asyncmy"):
        async with lent.cursor() as cursor:
            await cursor.execute(SLOW[engine])
    else:
        await lent.execute(SLOW[engine])


@of(AWAITED)
@pytest.mark.parametrize("status", [504, 201])
async def test_p5_a_task_in_a_statement_is_cut_off_with_its_transaction(
    shop: Shop, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if status == 201:
        for name in ("mysql", "postgres", "_sqlalchemy_loans"):
            monkeypatch.setattr(f"oncekey.atomic.{name}.LEAVE_S_MAX", 0.2)
    write, tasks, key = shop.write, list[asyncio.Task[None]](), new_key()
    engine = engine_of(shop.kind)

    async def leave(lent: Any) -> None:
        await write(lent)
        tasks.append(asyncio.create_task(run_slowly(shop.kind, lent, engine)))
        await asyncio.to_thread(wait_until_it_runs, shop.place)

    shop.write = leave
    reply = await shop.order(key, status=status)
    assert reply.status == (504 if status == 504 else 503)
    shop.write = write
    assert (await shop.order(new_key())).status == 201
    async with asyncio.timeout(30):
        [error] = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(error, Exception)
    assert shop.orders() == 1
    assert shop.look(key) is None
    assert await again(shop, key) == 201


# -------------------------------------------------------------------------- without waiting


@pytest.mark.parametrize(
    "shop", ["sqlite3", "Session on sqlite3", "Django on sqlite3"], indirect=True
)
async def test_p6_who_cannot_be_waited_for_closes_the_connection_when_it_leaves(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a function of Python that SQL calls: no interrupt ends it."""
    monkeypatch.setattr("oncekey.atomic.sqlite.LEAVE_S_MAX", 0.05)
    inside, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    write, key = shop.write, new_key()

    def stay() -> int:
        inside.set()
        go_on.wait(30)
        return 1

    def run(cursor: Any) -> None:
        try:
            cursor.execute("SELECT stay()").fetchall()
        except Exception:
            ended.set()

    def leave(lent: Any) -> None:
        write(lent)
        db = driver_of(shop, lent)
        db.create_function("stay", 0, stay)
        threading.Thread(target=run, args=(db.cursor(),), daemon=True).start()
        assert inside.wait(20)

    shop.write = leave
    assert (await shop.order(key, status=504)).status == 504
    shop.write = write
    path = shop.place.url.removeprefix("sqlite:///").partition("?")[0]
    locked = pytest.raises(sqlite3.OperationalError, match="locked")
    with closing(sqlite3.connect(path, timeout=0)) as other, locked:  # its transaction is open
        other.execute("BEGIN IMMEDIATE")
    assert (await shop.order(key)).kind == "in-flight"
    go_on.set()
    assert await asyncio.to_thread(ended.wait, 20)
    assert (await again(shop, key), shop.orders()) == (201, 1)


async def test_a_handler_that_is_cancelled_leaves_a_whole_pool(opener: Opener) -> None:
    async with opener("async psycopg") as shop:

        async def cancelled(send: Any) -> None:
            await oncekey.current().connection.execute(ORDER)
            raise asyncio.CancelledError

        shop.instead = cancelled
        for _ in range(5):
            with pytest.raises(asyncio.CancelledError):
                await shop.order(new_key())
        shop.instead = None
        assert (await shop.order(new_key())).status == 201
        assert shop.orders() == 1
