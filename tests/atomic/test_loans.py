"""A lent connection stops working when its transaction ends, whatever still runs then."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import warnings
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import psycopg
import pytest
from asyncmy.cursors import SSCursor as AsyncSSCursor
from django.db import DatabaseError, connections
from pymysql.cursors import SSCursor
from sqlalchemy import event
from sqlalchemy.util import await_only, greenlet_spawn

import oncekey
from oncekey.atomic._sqlalchemy_sessions import engine_of
from oncekey.errors import Misuse
from tests.atomic.shop import (
    MARIADB,
    POSTGRES,
    SQLITE,
    Opener,
    Pools,
    Shop,
    kinds_as_params,
    new_key,
    opener,
)
from tests.stores.joining import ORDER
from tests.web.client import ask_wsgi

__all__ = ["opener"]

pytestmark = pytest.mark.anyio

ALL = [*POSTGRES, *SQLITE, *MARIADB]
NOT_DJANGO = [kind for kind in ALL if not kind.startswith("Django")]


@pytest.fixture
async def shop(
    request: pytest.FixtureRequest, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Shop]:
    """A shop whose next request gets the connection that the last one had."""
    monkeypatch.setattr(Pools, "size", 1)
    async with opener(request.param, answer_bytes_max=1000) as shop:
        yield shop


def of(kinds: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("shop", kinds_as_params(*kinds), indirect=True)


async def awaited(given: Any) -> Any:
    return await given if hasattr(given, "__await__") else given


# ------------------------------------------------------------ what is made of a connection

Use = Callable[[], Any]


async def derived(kind: str, lent: Any) -> Use:
    """Writes an order by something that was made of what was lent."""
    if kind.startswith("Async"):
        connection = await lent.connection() if kind.startswith("AsyncSession") else lent
        raw = (await connection.get_raw_connection()).driver_connection
        if kind.endswith("asyncmy"):
            cursor = raw.cursor()
            return lambda: cursor.execute(ORDER)
        return lambda: raw.execute(ORDER)
    if kind == "asyncpg":
        statement = await lent.prepare(ORDER)
        fetch: Use = statement.fetch
        return fetch
    return derived_blocking(kind, lent)


def below(kind: str, lent: Any) -> dict[str, Use]:
    """Ways around the methods of what was lent."""
    if kind == "asyncpg":
        late = lent.execute(ORDER)  # begins when it is awaited
        return {"a coroutine": lambda: late}
    if "psycopg" in kind and not kind.startswith("Async"):
        libpq = lent.pgconn
        return {"libpq's connection": lambda: executed(libpq)}
    return {}


async def later(lent: asyncpg.Connection) -> dict[str, Use]:
    """Coroutines of what was made of the connection, which begin when they are awaited."""
    statement, numbers = await lent.prepare(ORDER), await lent.prepare("SELECT 1")
    cursor, cursor_of_statement = await lent.cursor("SELECT 1"), await numbers.cursor()
    savepoint = lent.transaction()
    await savepoint.start()
    made = {
        "a statement's coroutine": statement.fetch(),
        "a cursor's": cursor.fetch(1),
        "a cursor's of a statement": cursor_of_statement.fetch(1),
        "a savepoint's": savepoint.rollback(),
    }
    return {name: functools.partial(the, coroutine) for name, coroutine in made.items()}


def the(given: Any) -> Any:
    return given


def executed(libpq: Any) -> None:
    if libpq.exec_(ORDER.encode()).status != psycopg.pq.ExecStatus.COMMAND_OK:
        raise psycopg.OperationalError("the connection is closed")


def derived_blocking(kind: str, lent: Any) -> Use:
    if kind.startswith(("Session", "Connection")):
        connection = lent.connection() if kind.startswith("Session") else lent
        raw = connection.connection.driver_connection
        cursor = raw.cursor()
    else:
        cursor = lent.cursor()
    return lambda: cursor.execute(ORDER)


class Left:
    """What a handler leaves behind."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.attempt: Any = None
        self.uses: dict[str, Use] = {}

    async def take(self, lent: Any) -> None:
        self._note(lent)
        self.uses["what was made of it"] = await derived(self.shop.kind, lent)
        if self.shop.kind == "asyncpg":
            self.uses |= await later(lent)

    def take_blocking(self, lent: Any) -> None:
        self._note(lent)
        self.uses["what was made of it"] = derived_blocking(self.shop.kind, lent)

    def _note(self, lent: Any) -> None:
        write = self.shop.write
        self.attempt = oncekey.current()
        self.uses = {
            "the connection": lambda: write(lent),
            "the attempt": lambda: write(self.attempt.connection),
            **below(self.shop.kind, lent),
        }

    async def use(self) -> dict[str, str]:
        """What comes of each use; another thread's, where it blocks."""
        return {name: await self._outcome(use) for name, use in self.uses.items()}

    async def _outcome(self, use: Use) -> str:
        try:
            given = use() if self.shop.edge == "asgi" else await asyncio.to_thread(use)
            await awaited(given)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "done"


async def leave(shop: Shop, key: str, **order: Any) -> Left:
    """A request whose handler keeps what it was lent."""
    left, write = Left(shop), shop.write

    async def keep(lent: Any) -> None:
        await awaited(write(lent))
        await left.take(lent)

    def keep_blocking(lent: Any) -> None:
        write(lent)
        left.take_blocking(lent)

    shop.write = keep_blocking if shop.edge == "wsgi" else keep
    with contextlib.suppress(RuntimeError):
        await shop.order(key, **order)
    shop.write = left.shop.write = write
    return left


def refused(outcome: str) -> bool:
    """Whether it says that it is over, in our words or in the driver's."""
    ours = "Misuse: the transaction of this atomic handler has ended" in outcome
    asyncpgs = "has been released back to the pool" in outcome
    djangos = "can only be used in that same thread" in outcome or "closed" in outcome
    return ours or asyncpgs or djangos


@of(NOT_DJANGO)
@pytest.mark.parametrize("order", [{}, {"status": 503}, {"fail": True}], ids=str)
async def test_p5_what_a_handler_kept_reaches_no_other_transaction(
    shop: Shop, order: dict[str, Any]
) -> None:
    left = await leave(shop, new_key(), **order)
    before = shop.orders()
    assert before == (not order)

    victim = asyncio.create_task(shop.order(new_key(), stand=True))
    await shop.gate.wait()
    outcomes = await left.use()
    shop.gate.opened.set()
    assert (await victim).status == 201
    assert all(map(refused, outcomes.values())), outcomes
    assert shop.orders() == before + 1
    with pytest.raises(Misuse, match="must open its own"):
        _ = left.attempt.connection

    shop.gate.opened.set()
    assert (await shop.order(new_key())).status == 201
    assert shop.orders() == before + 2


@of(NOT_DJANGO)
async def test_p5_what_is_used_between_two_requests_leaves_nothing_in_the_pool(shop: Shop) -> None:
    left = await leave(shop, new_key())
    outcomes = await left.use()
    assert all(map(refused, outcomes.values())), outcomes
    for _ in range(2):
        assert (await shop.order(new_key())).status == 201
    assert shop.orders() == 3


@of(NOT_DJANGO)
async def test_p5_a_stream_beyond_the_answer_that_is_kept_has_no_connection(shop: Shop) -> None:
    """The answer is recorded, and the transaction over, before its first byte goes out."""
    left, said = Left(shop), list[dict[str, str]]()
    large = b"x" * 2000

    async def stream(send: Any) -> None:
        lent = oncekey.current().connection
        await awaited(shop.write(lent))
        await left.take(lent)
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": large, "more_body": True})
        said.append(await left.use())
        await send({"type": "http.response.body", "body": b"end"})

    def stream_blocking(start_response: Any) -> Any:
        lent = oncekey.current().connection
        shop.write(lent)
        left.take_blocking(lent)
        start_response("201 Created", [])
        yield large
        said.append(asyncio.run(left.use()))
        yield b"end"

    shop.instead = stream if shop.edge == "asgi" else stream_blocking
    reply = await shop.order(new_key())
    assert (reply.status, reply.body) == (201, large + b"end")
    assert all(map(refused, said[0].values())), said
    shop.instead = None
    assert (await shop.order(new_key())).status == 201
    assert shop.orders() == 2


@of([kind for kind in MARIADB if not kind.startswith("Django")])
async def test_p5_a_result_that_is_read_row_by_row_ends_with_its_transaction(shop: Shop) -> None:
    """What is left of it is skipped on the connection, and the handler's cursor must not be there
    meanwhile: each would take rows from under the other.
    """
    write, kept = shop.write, list[Any]()
    rows = "SELECT 1 UNION SELECT 2 UNION SELECT 3"

    async def keep(lent: Any) -> None:
        await awaited(write(lent))
        connection = await lent.connection() if hasattr(lent, "sync_session") else lent
        if hasattr(connection, "get_raw_connection"):
            connection = (await connection.get_raw_connection()).driver_connection
        cursor = connection.cursor(AsyncSSCursor)
        await cursor.execute(rows)
        kept.extend([cursor, await cursor.fetchone()])

    def keep_blocking(lent: Any) -> None:
        write(lent)
        raw = lent.connection().connection.driver_connection if hasattr(lent, "flush") else lent
        cursor = raw.cursor(SSCursor)
        cursor.execute(rows)
        kept.extend([cursor, cursor.fetchone()])

    is_async = "asyncmy" in shop.kind
    shop.write = keep if is_async else keep_blocking
    with warnings.catch_warnings(action="ignore"):  # the driver's, of what was left incomplete
        assert (await shop.order(new_key())).status == 201
    cursor, first = kept
    assert first == (1,)

    async def read_on() -> None:
        for _ in range(3):  # what asyncmy has read already is given
            await awaited(cursor.fetchone())

    with pytest.raises(Misuse, match="must open its own"):
        await read_on()
    cursor.connection = None  # PyMySQL's would ask for it when it is freed
    shop.write = write
    assert (await shop.order(new_key())).status == 201
    assert shop.orders() == 2


@of(["Django", "Django on sqlite3", "Django on PyMySQL"])
async def test_p5_a_cursor_of_djangos_that_was_kept_reaches_no_later_view(shop: Shop) -> None:
    """Its connections stay with their threads: the next view of the same thread has the same."""
    write, kept = shop.write, list[Any]()

    def keep(lent: Any) -> None:
        write(lent)
        kept.extend([lent.cursor(), lent.connection, lent.connection.cursor()])

    def one_after_the_other() -> list[str]:
        shop.write = keep
        first = ask_wsgi(shop.app, new_key(), {})
        shop.write = write
        with ThreadPoolExecutor(1) as threads:
            said = list[str]()
            shop.during = lambda: said.extend(threads.submit(outcomes).result())
            second = ask_wsgi(shop.app, new_key(), {})
            shop.during = lambda: None
        third = ask_wsgi(shop.app, new_key(), {})
        connections.close_all()
        assert [first.status, second.status, third.status] == [201, 201, 201]
        return said

    def outcomes() -> list[str]:
        found = list[str]()
        uses: list[Use] = [
            lambda: kept[0].execute(ORDER),
            lambda: kept[1].cursor().execute(ORDER),
            lambda: kept[2].execute(ORDER),
        ]
        for use in uses:
            try:
                use()
                found.append("done")
            except Exception as error:
                found.append(str(error))
        return found

    said = await asyncio.to_thread(one_after_the_other)
    assert len(said) == 3
    assert all("must open its own" in each or "closed" in each for each in said), said
    assert shop.orders() == 3


@of(["Django", "Django on sqlite3", "Django on PyMySQL"])
async def test_p5_a_connection_of_djangos_is_shared_until_its_view_ends(shop: Shop) -> None:
    write, kept, said = shop.write, list[Any](), list[str]()

    def share(lent: Any) -> None:
        write(lent)
        lent.inc_thread_sharing()
        kept.append(lent)

    def use() -> None:
        try:
            write(kept[0])
        except DatabaseError as error:
            said.append(str(error))

    def one_after_the_other() -> None:
        shop.write = share
        ask_wsgi(shop.app, new_key(), {"status": 503})
        shop.write = write
        with ThreadPoolExecutor(1) as threads:
            shop.during = lambda: threads.submit(use).result()
            ask_wsgi(shop.app, new_key(), {})
        connections.close_all()

    await asyncio.to_thread(one_after_the_other)
    assert "can only be used in that same thread" in said[0]
    assert shop.orders() == 1


# -------------------------------------------------------------------- while the commit goes on

IN_SQLALCHEMY = [kind for kind in ALL if kind.startswith(("Session", "Connection", "Async"))]


def ways_to(connection: Any) -> dict[str, Use]:
    """To the driver's connection, from one of SQLAlchemy's."""
    pooled = connection.connection
    return {
        "what the pool lent": pooled.cursor,
        "what it lends now": lambda: connection.connection.cursor(),
        "the connection behind it": lambda: pooled.dbapi_connection.cursor(),
        "the driver's": lambda: pooled.driver_connection.cursor(),
        "a statement": lambda: connection.exec_driver_sql(ORDER),
    }


def reached(ways: dict[str, Use]) -> list[str]:
    found = []
    for name, way in ways.items():
        with contextlib.suppress(Exception):
            found.append(f"{name}: {way()!r}")
    return found


@of(IN_SQLALCHEMY)
@pytest.mark.parametrize("order", [{}, {"status": 503}], ids=str)
async def test_p5_nobody_else_gets_the_connection_while_its_transaction_ends(
    shop: Shop, order: dict[str, Any]
) -> None:
    """What a thread or task of the handler's got hold of then, would go back to the pool."""
    ways, found, write = dict[str, Use](), list[list[str]](), shop.write
    is_async = shop.kind.startswith("Async")
    threads = ThreadPoolExecutor(1)

    def look(*_: Any) -> None:
        if not ways:
            return
        if is_async:
            elsewhere = asyncio.get_running_loop().create_task(greenlet_spawn(reached, ways))
            found.append(await_only(elsewhere))
        else:
            found.append(threads.submit(reached, ways).result())

    async def keep(lent: Any) -> None:
        await awaited(write(lent))
        connection = await lent.connection() if hasattr(lent, "sync_session") else lent
        ways.update(ways_to(connection.sync_connection))

    def keep_blocking(lent: Any) -> None:
        write(lent)
        ways.update(ways_to(lent.connection() if hasattr(lent, "flush") else lent))

    adapter: Any = shop.adapter
    engine = engine_of(adapter._source, "", awaited=is_async)
    for name in ("commit", "rollback"):
        event.listen(engine.sync_engine if is_async else engine, name, look)
    shop.write = keep if is_async else keep_blocking
    assert (await shop.order(new_key(), **order)).status == order.get("status", 201)
    assert found == [[]]
    ways.clear()
    shop.write = write
    assert (await shop.order(new_key())).status == 201
    assert shop.orders() == (1 if order else 2)
    threads.shutdown()
