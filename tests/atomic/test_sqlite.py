"""Atomic mode on SQLite: one writer at a time, and not for long."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from typing import Any

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import sessionmaker

from oncekey._system import probes
from oncekey.atomic import SQLAlchemy
from oncekey.atomic import _unit_of_work as unit
from oncekey.stores.sqlite.write_lock import Exclusive
from tests.atomic.shop import Opener, claim_leased, new_key, opener

__all__ = ["opener"]

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "kind", ["sqlite3", "sqlite3 in threads", "Session on sqlite3", "Django on sqlite3"]
)
async def test_what_takes_too_long_on_sqlite_is_rolled_back_and_told_so(
    opener: Opener, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    key = new_key()
    async with opener(kind, atomic_s_max=0.2) as shop:
        order = asyncio.create_task(shop.order(key, stand=True))
        await shop.gate.wait()
        async with claim_leased(shop, new_key()):  # the file can be written to again
            pass
        shop.gate.opened.set()
        reply = await order
        assert (reply.status, reply.kind) == (503, "store-unavailable")
        assert "ran longer than atomic_s_max=0.2" in caplog.text
        assert shop.look(key) is None
        assert shop.orders() == 0


async def test_what_goes_on_writing_after_its_time_writes_nothing(opener: Opener) -> None:
    key = new_key()
    async with opener("sqlite3", atomic_s_max=0.2) as shop:
        original, errors = shop.write, []

        async def write(connection: Any) -> None:
            original(connection)
            async with claim_leased(shop, new_key()):
                pass
            try:
                original(connection)
            except Exception as error:
                errors.append(str(error))

        shop.write = write
        assert (await shop.order(key)).status == 503
        assert errors == ["interrupted"]
        assert shop.orders() == 0


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("sqlite3", (201, 1)),
        ("Session on sqlite3", (503, 0)),  # a session whose commit failed is of no use any more
        ("Django on sqlite3", (201, 1)),
    ],
)
async def test_a_handler_cannot_end_its_transaction_on_sqlite(
    opener: Opener, kind: str, outcome: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    key = new_key()
    async with opener(kind) as shop:
        original = shop.write

        def write(connection: Any) -> Any:
            original(connection)
            target = connection.connection if kind.startswith("Django") else connection
            with pytest.raises(Exception, match="not authorized"):
                target.commit()

        shop.write = write
        reply = await shop.order(key)
        assert "tried to end its transaction" in caplog.text
        assert (reply.status, shop.orders()) == outcome


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
@pytest.mark.parametrize("kind", ["Connection on sqlite3", "Session on sqlite3"])
async def test_p4_p6_who_could_not_end_its_transaction_is_undone_and_holds_nothing(
    opener: Opener, kind: str, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it goes on or fails: a session that was denied its end has lost its transaction, and
    committing it would commit nothing.
    """
    key = new_key()
    async with opener(kind) as shop:
        original = shop.write

        def end_it(connection: Any) -> None:
            original(connection)
            getattr(connection, end)()

        def go_on(connection: Any) -> None:
            with pytest.raises(Exception, match="not authorized"):
                end_it(connection)

        shop.write = go_on
        for _ in range(2):
            reply = await shop.order(key)
            assert (reply.status, reply.kind) == (503, "transaction-ended")
            assert "Nothing of it happened" in reply.json()["detail"]
        assert "POST /orders was undone: the handler tried to end its transaction" in caplog.text
        shop.write = end_it
        for _ in range(2):
            with pytest.raises(Exception, match="not authorized"):
                await shop.order(key)
        assert (shop.look(key), shop.orders()) == (None, 0)
        shop.write = original
        assert (await shop.order(key)).status == 201
        assert shop.orders() == 1


CLOSE = {
    "sqlite3": "close",
    "Connection on sqlite3": "invalidate",
    "Session on sqlite3": "invalidate",
    "Django on sqlite3": "close",
}
"""How a handler closes its connection."""


@pytest.mark.parametrize("kind", CLOSE)
async def test_p11_who_closes_its_connection_waits_for_its_rollback(
    opener: Opener, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would hand SQLite no connection at all, and the process would be gone."""
    key, undo, order = new_key(), Exclusive._undo, list[str]()
    undoes, closed = threading.Event(), threading.Event()

    def undo_slowly(exclusive: Exclusive) -> None:
        undoes.set()
        closed.wait(0.3)
        order.append("undone")
        undo(exclusive)

    monkeypatch.setattr(Exclusive, "_undo", undo_slowly)
    async with opener(kind, atomic_s_max=0.2) as shop:
        original = shop.write

        def close(connection: Any) -> None:
            original(connection)
            assert undoes.wait(20)
            with contextlib.suppress(SQLAlchemyError):  # it is of no use any more
                getattr(connection, CLOSE[kind])()
            order.append("closed")
            closed.set()

        shop.write = close
        assert (await shop.order(key)).status == 503
        assert order == ["undone", "closed"]
        shop.write = original
        assert (await shop.order(key)).status == 201
        assert shop.orders() == 1


@pytest.mark.parametrize("kind", CLOSE)
async def test_p11_who_closes_its_connection_holds_nothing_and_is_undone(
    opener: Opener, kind: str
) -> None:
    key = new_key()
    async with opener(kind) as shop:
        original = shop.write

        def close(connection: Any) -> None:
            original(connection)
            getattr(connection, CLOSE[kind])()
            path = shop.place.url.removeprefix("sqlite:///").partition("?")[0]
            with contextlib.closing(sqlite3.connect(path, timeout=0)) as other:
                other.execute("BEGIN IMMEDIATE")

        shop.write = close
        assert (await shop.order(key)).status == 503
        shop.write = original
        assert (await shop.order(key)).status == 201
        assert shop.orders() == 1


@pytest.mark.parametrize("begins", ["BEGIN", "BEGIN IMMEDIATE"])
async def test_an_engine_that_begins_by_itself_can_be_used(opener: Opener, begins: str) -> None:
    """As SQLAlchemy's documentation has it, for savepoints on sqlite3."""
    async with opener("Session on sqlite3") as shop:
        engine = create_engine(shop.place.url)

        @event.listens_for(engine, "connect")
        def connect(db: Any, _: object) -> None:
            db.isolation_level = None

        @event.listens_for(engine, "begin")
        def begin(connection: Any) -> None:
            connection.exec_driver_sql(begins)

        shop.app.edge.adapter = SQLAlchemy(sessionmaker(engine))
        assert [(await shop.order("k1")).replayed for _ in range(2)] == [False, True]
        assert shop.orders() == 1
        engine.dispose()


async def test_the_writers_of_two_keys_take_turns_on_sqlite(opener: Opener) -> None:
    async with opener("sqlite3") as shop:
        replies = await asyncio.gather(*(shop.order(new_key()) for _ in range(20)))
        assert {reply.status for reply in replies} == {201}
        assert shop.orders() == 20


async def test_p6_who_is_cancelled_while_it_begins_leaves_nothing_held(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that begins does not notice: nobody else would give back what it took."""
    key, begins, go_on = new_key(), threading.Event(), threading.Event()
    async with opener("sqlite3") as shop:
        begin: Any = shop.adapter.begin

        def begin_late(*asked: Any) -> Any:
            begins.set()
            go_on.wait(20)
            return begin(*asked)

        monkeypatch.setattr(shop.adapter, "begin", begin_late)
        order = asyncio.create_task(shop.order(key))
        assert await asyncio.to_thread(begins.wait, 20)
        order.cancel()
        with pytest.raises(asyncio.CancelledError):
            await order
        go_on.set()
        async with asyncio.timeout(20):
            while (reply := await shop.order(key)).status == 409:
                pass
        assert (reply.status, shop.orders()) == (201, 1)


async def test_p6_who_is_cut_off_while_no_thread_is_free_to_commit_leaves_nothing_held(
    opener: Opener,
) -> None:
    """As by a limit on time within the application, where the database is slow for all."""
    key, free, busy = new_key(), threading.Event(), list[asyncio.Future[Any]]()
    limit = asyncio.timeout(None)

    def fill() -> None:
        busy.extend(unit._in_thread(free.wait, 20) for _ in range(unit.THREADS_MAX))
        asyncio.get_running_loop().call_soon(limit.reschedule, 0)

    async with opener("sqlite3") as shop:
        application = shop.app.app

        async def limited(*asked: Any) -> None:
            with contextlib.suppress(TimeoutError):
                async with limit:
                    await application(*asked)

        shop.app.app = limited
        probes.arm("before_commit", fill)
        try:
            await shop.order(key)
        finally:
            probes.disarm()
            free.set()
        await asyncio.gather(*busy)
        shop.app.app = application
        async with asyncio.timeout(20):
            while (reply := await shop.order(key)).status == 409:
                pass
        assert (reply.status, shop.orders()) == (201, 1)
