"""A stand-in passes for the driver's connection: what people do with one works."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncmy
import asyncmy.cursors
import psycopg
import pymysql
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types import TypeInfo
from psycopg.types.json import Jsonb, set_json_dumps
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import oncekey
from tests.atomic.shop import Opener, Shop, kinds_as_params, new_key, opener
from tests.stores.joining import ORDER

__all__ = ["opener"]

pytestmark = pytest.mark.anyio


@pytest.fixture
async def shop(request: pytest.FixtureRequest, opener: Opener) -> AsyncIterator[Shop]:
    async with opener(request.param) as shop:
        yield shop


async def handled(shop: Shop, use: Callable[[Any], Any]) -> None:
    """A handler that does this, and answers 201."""
    shop.write = use
    assert (await shop.order(new_key())).status == 201


def of(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("shop", kinds_as_params(*kinds), indirect=True)


@of("psycopg", "psycopg in threads", "psycopg's connect")
async def test_psycopg(shop: Shop) -> None:
    def use(connection: Any) -> None:
        assert isinstance(connection, psycopg.Connection)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        assert not connection.closed
        with connection.cursor(row_factory=dict_row) as cursor:
            assert cursor.execute("SELECT 1 AS one").fetchone() == {"one": 1}
            assert cursor.connection is connection
        with connection.transaction():
            connection.execute(ORDER)
        with contextlib.suppress(psycopg.errors.DivisionByZero), connection.transaction():
            connection.execute(ORDER)
            connection.execute("SELECT 1 / 0")
        named = sql.SQL("SELECT {}").format(sql.Identifier("item"))
        assert named.as_string(connection) == 'SELECT "item"'
        info = TypeInfo.fetch(connection, "int4")
        assert info is not None
        info.register(connection)
        set_json_dumps(lambda value: '{"set": true}', connection)
        found = connection.execute("SELECT %s::jsonb", (Jsonb({"a": 1}),)).fetchone()
        assert found == ({"set": True},)
        with connection.cursor("rows") as rows:
            rows.execute("SELECT generate_series(1, 3)")
            assert [number for (number,) in rows] == [1, 2, 3]
        with connection.cursor() as cursor, cursor.copy("COPY orders FROM STDIN") as copy:
            copy.write_row(("coffee",))
        with connection.pipeline():
            connection.execute(ORDER)
        connection.row_factory = dict_row

    await handled(shop, use)
    assert shop.orders() == 3


@of("async psycopg")
async def test_async_psycopg(shop: Shop) -> None:
    async def use(connection: Any) -> None:
        assert isinstance(connection, psycopg.AsyncConnection)
        async with connection.cursor() as cursor:
            await cursor.execute(ORDER)
            assert cursor.rowcount == 1
        async with connection.transaction():
            await connection.execute(ORDER)
        assert (await TypeInfo.fetch(connection, "int4")) is not None
        async with connection.cursor("rows") as rows:
            await rows.execute("SELECT generate_series(1, 3)")
            assert [number async for (number,) in rows] == [1, 2, 3]
        streamed = connection.cursor().stream("SELECT generate_series(1, 3)")
        assert [number async for (number,) in streamed] == [1, 2, 3]
        assert sql.Literal("it's").as_string(connection) == "'it''s'"

    await handled(shop, use)
    assert shop.orders() == 2


@of("asyncpg")
async def test_asyncpg(shop: Shop) -> None:
    async def use(connection: Any) -> None:
        async with connection.transaction():
            await connection.execute(ORDER)
        statement = await connection.prepare("SELECT count(*) FROM orders")
        assert await statement.fetchval() == 1
        assert [row[0] async for row in connection.cursor("SELECT generate_series(1, 3)")]
        await connection.copy_records_to_table("orders", records=[("coffee",)])

    await handled(shop, use)
    assert shop.orders() == 2


@of("PyMySQL", "PyMySQL in threads")
async def test_pymysql(shop: Shop) -> None:
    def use(connection: Any) -> None:
        assert isinstance(connection, pymysql.Connection)
        with connection.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.executemany("INSERT INTO orders (item) VALUES (%s)", [("tea",), ("milk",)])
            cursor.execute("SELECT count(*) AS n FROM orders")
            assert cursor.fetchone() == {"n": 2}
        with connection.cursor(pymysql.cursors.SSCursor) as cursor:
            cursor.execute("SELECT item FROM orders")
            assert len(list(cursor)) == 2
        connection.ping(reconnect=False)
        assert connection.escape("it's") == "'it\\'s'"
        unread = connection.cursor(pymysql.cursors.SSCursor)
        unread.execute("SELECT item FROM orders")
        assert unread.fetchone() is not None
        unread.close()

    await handled(shop, use)
    assert shop.orders() == 2


@of("asyncmy")
async def test_asyncmy(shop: Shop) -> None:
    async def use(connection: Any) -> None:
        assert isinstance(connection, asyncmy.Connection)
        async with connection.cursor(asyncmy.cursors.DictCursor) as cursor:
            await cursor.execute(ORDER)
            await cursor.execute("SELECT count(*) AS n FROM orders")
            assert await cursor.fetchone() == {"n": 1}
        async with connection.cursor(asyncmy.cursors.SSCursor) as cursor:
            await cursor.execute("SELECT item FROM orders")
            assert await cursor.fetchall() == [("tea",)]
        prepared: Any = connection
        async with await prepared.prepare("SELECT ?") as statement:
            assert (await statement.execute((1,))).rows == ((1,),)

    await handled(shop, use)
    assert shop.orders() == 1


@of("sqlite3", "sqlite3 in threads")
async def test_sqlite3(shop: Shop) -> None:
    def use(connection: Any) -> None:
        assert isinstance(connection, sqlite3.Connection)
        connection.create_function("twice", 1, lambda n: 2 * n)
        assert connection.execute("SELECT twice(21)").fetchone() == (42,)
        connection.row_factory = sqlite3.Row
        cursor = connection.cursor()
        assert isinstance(cursor, sqlite3.Cursor)
        assert cursor.connection is connection
        assert cursor.execute("SELECT 1 AS one") is cursor
        assert [row["one"] for row in cursor] == [1]
        assert next(iter(connection.execute("SELECT 2")))[0] == 2
        connection.executemany("INSERT INTO orders VALUES (?)", [("tea",), ("milk",)])
        assert connection.in_transaction
        assert connection.total_changes == 2
        assert connection.execute("INSERT INTO orders VALUES ('juice')").lastrowid == 3
        connection.row_factory = None
        assert any("INSERT INTO" in line for line in connection.iterdump())
        with sqlite3.connect(":memory:") as copy:
            copy.execute("SELECT 1")
        copy.close()
        assert bool(connection)
        with pytest.raises(sqlite3.OperationalError):
            connection.execute("not SQL")

    await handled(shop, use)
    assert shop.orders() == 3


@of("sqlite3", "sqlite3 in threads")
async def test_another_thread_may_interrupt_a_statement(shop: Shop) -> None:
    """As a handler does that bounds its own queries; all that it wrote is undone with that."""

    def use(connection: Any) -> None:
        rows = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n FROM c"
        inside, ended = threading.Event(), threading.Event()
        connection.create_function("enter", 1, lambda n: inside.set())

        def interrupt() -> None:
            assert inside.wait(20)
            while not ended.wait(0.01):
                connection.interrupt()

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            connection.execute(f"SELECT max(coalesce(enter(n), n)) FROM ({rows})")
        except sqlite3.OperationalError as error:
            interrupted.append(str(error))
        ended.set()
        thread.join()

    interrupted, shop.write = list[str](), use
    assert (await shop.order(new_key())).status == 503
    assert interrupted == ["interrupted"]


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    item: Mapped[str] = mapped_column(primary_key=True)


@of("Session", "Session on sqlite3", "Session on sqlite3 in a loop", "Session on PyMySQL")
async def test_a_session(shop: Shop) -> None:
    def use(session: Any) -> None:
        assert isinstance(session, Session)
        assert session is oncekey.current().connection
        order = Order(item="tea")
        session.add(order)
        session.flush()
        assert order in session
        session.refresh(order)
        with session.begin_nested():
            session.merge(Order(item="milk"))
        if "sqlite3" not in shop.kind:  # whose driver begins no savepoints by itself
            with contextlib.suppress(ZeroDivisionError), session.begin_nested():
                session.add(Order(item="gone"))
                session.flush()
                raise ZeroDivisionError
        assert session.scalar(select(func.count()).select_from(Order)) == 2
        assert session.execute(text("SELECT 1")).scalar_one() == 1
        many = session.scalars(select(Order).order_by(Order.item).execution_options(yield_per=1))
        assert [each.item for each in many] == ["milk", "tea"]
        assert session.connection().connection.driver_connection is not None
        session.add(Order(item="at the end"))

    await handled(shop, use)
    assert shop.orders() == 3


@of("AsyncSession on asyncpg", "AsyncSession on psycopg", "AsyncSession on asyncmy")
async def test_an_async_session(shop: Shop) -> None:
    async def use(session: Any) -> None:
        assert isinstance(session, AsyncSession)
        session.add(Order(item="tea"))
        await session.flush()
        async with session.begin_nested():
            session.add(Order(item="milk"))
        assert await session.scalar(select(func.count()).select_from(Order)) == 2
        streamed = await session.stream_scalars(select(Order).order_by(Order.item))
        assert [each.item async for each in streamed] == ["milk", "tea"]
        assert await session.run_sync(lambda s: s.scalar(text("SELECT 1"))) == 1
        raw = await (await session.connection()).get_raw_connection()
        assert raw.driver_connection is not None
        session.add(Order(item="at the end"))

    await handled(shop, use)
    assert shop.orders() == 3
    await again(shop)


async def again(shop: Shop) -> None:
    """The next request finds a connection that works."""

    async def count(session: Any) -> None:
        await session.scalar(select(func.count()).select_from(Order))

    await handled(shop, count)
