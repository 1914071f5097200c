"""Atomic mode when something goes wrong: lost commits, handlers that do what they should not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

import oncekey
from oncekey import atomic
from oncekey._engine.notices import Notices
from oncekey.atomic._connections import AsyncDriverTransaction
from oncekey.atomic._loans import twin_of
from oncekey.stores import connection
from tests.atomic.shop import (
    KINDS,
    MARIADB,
    OF_MYSQL,
    POSTGRES,
    Opener,
    Shop,
    by_asyncmy,
    kinds_as_params,
    new_key,
    opener,
    place_of,
    prepare,
    shop,
    the_id,
)
from tests.places import Place, postgres_place
from tests.servers.mariadb import mysql_connection

__all__ = ["opener", "shop"]

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncpg", "psycopg", "Session", "Django"])
async def on_postgres(request: pytest.FixtureRequest, opener: Opener) -> AsyncIterator[Shop]:
    async with opener(request.param) as shop:
        yield shop


@pytest.fixture(
    params=kinds_as_params(
        *("asyncpg", "psycopg", "Session", "Django"),
        *("asyncmy", "PyMySQL", "Session on PyMySQL", "Django on PyMySQL"),
    )
)
async def on_server(request: pytest.FixtureRequest, opener: Opener) -> AsyncIterator[Shop]:
    async with opener(request.param) as shop:
        yield shop


# --------------------------------------------------------------------------- lost and undone


class Failing:
    """An adapter whose first commit fails, before or after it happened."""

    def __init__(self, adapter: atomic.Adapter, *, happens: bool) -> None:
        self._adapter, self._happens = adapter, happens
        self.engine, self.awaited = adapter.engine, adapter.awaited
        self.begun = 0
        self.instead: Awaitable[Any] | None = None
        """Happens in place of the commit."""

    def begin(self, *args: Any) -> Any:
        self.begun += 1
        return self._begin_async(*args) if self.awaited else self._begin(*args)

    def _begin(self, *args: Any) -> Any:
        first, transaction = self.begun == 1, self._adapter.begin(*args)
        end = transaction.commit if self._happens else transaction.rollback

        def failing() -> None:
            end()
            raise ConnectionResetError("the reply was lost")

        if first:
            transaction.commit = failing
        return transaction

    async def _begin_async(self, *args: Any) -> Any:
        first, transaction = self.begun == 1, await self._adapter.begin(*args)
        end = transaction.commit if self._happens else transaction.rollback

        async def failing() -> None:
            await end()
            if self.instead is not None:
                await self.instead
            raise ConnectionResetError("the reply was lost")

        if first:
            transaction.commit = failing
        return transaction


async def test_p9_a_commit_whose_acknowledgement_was_lost_is_looked_up(shop: Shop) -> None:
    key = new_key()
    shop.app.edge.adapter = Failing(shop.adapter, happens=True)
    reply = await shop.order(key)
    assert (reply.status, reply.body, reply.replayed) == (201, b"run 1", False)
    assert (await shop.order(key)).replayed
    assert shop.orders() == shop.runs == 1


async def test_p9_a_commit_that_did_not_happen_is_not_said_to_have(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    key = new_key()
    shop.app.edge.adapter = Failing(shop.adapter, happens=False)
    reply = await shop.order(key)
    assert (reply.status, reply.kind) == (503, "store-unavailable")
    assert "nothing of it happened" in reply.json()["detail"]
    assert "was undone: its commit failed" in caplog.text
    assert shop.orders() == 0
    assert (await shop.order(key)).body == b"run 2"
    assert shop.orders() == 1


class Elsewhere:
    """Another transaction, on a server of any kind."""

    def __init__(self, place: Place) -> None:
        url, self._is_mysql = place.url.partition("?")[0], place.name in ("mariadb", "mysql")
        self._connection: Any = (
            mysql_connection(url, autocommit=False) if self._is_mysql else psycopg.connect(url)
        )

    async def hold(self, record_id: bytes) -> None:
        """Take an id, as atomic mode does."""
        number = int.from_bytes(record_id[:8], signed=True)
        with self._connection.cursor() as cursor:
            if self._is_mysql:
                cursor.execute("INSERT INTO oncekey_held VALUES (%s)", (record_id,))
                cursor.execute("DELETE FROM oncekey_held WHERE id = %s", (record_id,))
            else:
                cursor.execute(f"SELECT pg_advisory_xact_lock({number})")

    def close(self) -> None:
        self._connection.rollback()
        self._connection.close()


@pytest.mark.parametrize("kind", kinds_as_params("asyncpg", "asyncmy"))
async def test_p9_a_commit_that_may_still_come_is_waited_for(opener: Opener, kind: str) -> None:
    """Its connection is lost, but the server works on: who has the id is not done yet."""
    key = new_key()
    async with opener(kind) as shop:
        other = Elsewhere(shop.place)
        failing = Failing(shop.adapter, happens=False)
        failing.instead = other.hold(the_id(key))
        shop.app.edge.adapter = failing
        order = asyncio.create_task(shop.order(key))
        looked = 0
        while looked < 3:  # it has looked again and again, and says nothing
            looked = failing.begun - 1
            assert not order.done()
            await asyncio.sleep(0.01)
        other.close()
        assert (await order).kind == "store-unavailable"
        assert shop.orders() == 0


# -------------------------------------------------------------- handlers that should not


def execute(shop: Shop, connection: Any, statement: str) -> Any:
    """A statement of the handler's, the way its kind of connection takes it."""
    if shop.kind == "Session":
        return connection.connection().exec_driver_sql(statement)
    if shop.kind == "Django":
        return connection.cursor().execute(statement)
    return connection.execute(statement)


def ending(shop: Shop, end: str) -> Any:
    """What writes an order and then ends the transaction."""
    write = shop.write

    def write_and_end(connection: Any) -> None:
        write(connection)
        driver = connection.connection if shop.kind.startswith("Django") else connection
        getattr(driver, end)()

    async def write_and_end_async(connection: Any) -> None:
        await write(connection)
        if shop.kind == "asyncpg":
            await connection.execute(end)
        else:
            await getattr(connection, end)()

    awaited = shop.kind.startswith(("asyncpg", "asyncmy"))
    return write_and_end_async if awaited else write_and_end


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_handler_that_ends_its_transaction_is_found_out(
    on_server: Shop, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    shop, key, write = on_server, new_key(), on_server.write
    shop.write = ending(shop, end)
    reply = await shop.order(key)
    assert (reply.status, reply.kind) == (503, "transaction-ended")
    assert reply.json()["title"] == "The handler ended its transaction itself"
    assert "What it committed by itself stands" in reply.json()["detail"]
    assert not reply.json()["retryable"]
    assert reply.json()["advice"].startswith("Do not send it again")
    assert "is not recorded: the handler ended the transaction itself" in caplog.text
    assert shop.look(key) is None
    assert shop.orders() == (end == "commit")
    shop.write = write
    assert (await shop.order(key)).status == 201  # nothing was left behind that holds the id


IN_PART = kinds_as_params("asyncpg", "Session", "Django", "asyncmy", "Django on PyMySQL")


@pytest.mark.parametrize("kind", IN_PART)
@pytest.mark.parametrize("then", [{}, {"fail": True}, {"status": 500}, {"status": 402}])
async def test_p6_under_block_what_it_committed_by_itself_is_never_run_again(
    opener: Opener, kind: str, then: Any
) -> None:
    async with opener(kind, recovery="block") as shop:
        key = new_key()
        shop.write = ending(shop, "commit")
        with contextlib.suppress(RuntimeError):  # which an ASGI server would log
            first = await shop.order(key, **then)
            told = first.status, first.header("idempotency-outcome")
            assert told == {
                "fail": (500, "unknown"),
                "status": (then.get("status"), "unknown"),
            }.get(next(iter(then), ""), (503, None))
            if not then:
                assert first.json()["detail"].endswith("nobody can tell what it did.")
        for _ in range(2):
            again = await shop.order(key, **then)
            assert (again.status, again.kind) == (409, "outcome-unknown")
        assert (shop.runs, shop.orders()) == (1, 1)


@pytest.mark.parametrize("kind", IN_PART)
async def test_p6_under_ask_the_next_retry_asks_what_it_committed_by_itself(
    opener: Opener, kind: str
) -> None:
    def find_out(attempt: oncekey.Attempt) -> oncekey.Answer:
        return oncekey.answer(201, {"found": asked.orders()})

    async with opener(kind, recovery="ask", ask=find_out) as asked:
        key = new_key()
        asked.write = ending(asked, "commit")
        assert (await asked.order(key, status=500)).status == 500
        assert (await asked.order(key, status=500)).json() == {"found": 1}
        assert (asked.runs, asked.orders()) == (1, 1)


@pytest.mark.parametrize("kind", [*IN_PART, "sqlite3"])
@pytest.mark.parametrize("then", [{"fail": True}, {"status": 500}])
async def test_p6_under_block_what_was_surely_rolled_back_runs_again(
    opener: Opener, kind: str, then: Any
) -> None:
    async with opener(kind, recovery="block") as shop:
        key = new_key()
        for _ in range(2):
            with contextlib.suppress(RuntimeError):
                first = await shop.order(key, **then)
                assert (first.status, first.header("idempotency-outcome")) == (500, None)
        assert (shop.look(key), shop.orders(), shop.runs) == (None, 0, 2)


class Deadlock:
    """Two rows and a rival: whoever has the first and wants the second is undone by the server."""

    def __init__(self, place: Place) -> None:
        self._rival = mysql_connection(place.url.partition("?")[0], autocommit=False)
        with self._rival.cursor() as cursor:
            cursor.execute("DROP TABLE IF EXISTS pairs")
            cursor.execute("CREATE TABLE pairs (id INT PRIMARY KEY, n INT) ENGINE = InnoDB")
            cursor.executemany("INSERT INTO pairs VALUES (%s, 0)", [(n,) for n in range(100)])
            self._rival.commit()
            cursor.execute("UPDATE pairs SET n = 1 WHERE id > 1")  # more to undo than the handler

    def run(self, execute: Callable[[str], Any]) -> None:
        """The handler's part, by which way it executes statements."""
        execute("UPDATE pairs SET n = 2 WHERE id = 1")
        with self._rival.cursor() as cursor, ThreadPoolExecutor(1) as threads:
            threads.submit(cursor.execute, "UPDATE pairs SET n = 1 WHERE id = 1")
            execute("UPDATE pairs SET n = 2 WHERE id = 2")

    def close(self) -> None:
        self._rival.rollback()
        self._rival.close()


EXECUTE: dict[str, Callable[[Any], Callable[[str], Any]]] = {
    "PyMySQL": lambda connection: connection.cursor().execute,
    "Session on PyMySQL": lambda session: session.connection().exec_driver_sql,
    "Django on PyMySQL": lambda connection: connection.cursor().execute,
}


@pytest.mark.parametrize("kind", kinds_as_params(*EXECUTE))
async def test_p6_under_block_what_a_deadlock_undid_runs_again(opener: Opener, kind: str) -> None:
    async with opener(kind, recovery="block") as shop:
        deadlock, write, key = Deadlock(shop.place), shop.write, new_key()

        def write_and_deadlock(connection: Any) -> None:
            write(connection)
            deadlock.run(EXECUTE[kind.removesuffix(OF_MYSQL)](connection))

        shop.write = write_and_deadlock
        with contextlib.suppress(Exception):  # which an ASGI server would log
            first = await shop.order(key)
            assert (first.status, first.header("idempotency-outcome")) == (500, None)
        assert (shop.look(key), shop.orders(), shop.runs) == (None, 0, 1)
        shop.write = write
        assert (await shop.order(key)).status == 201
        assert shop.orders() == 1
        deadlock.close()


CLOSED = [kind for kind in POSTGRES | MARIADB if not kind.endswith("in threads")]


@pytest.mark.parametrize("kind", kinds_as_params(*CLOSED))
@pytest.mark.parametrize("recovery", ["rerun", "block"])
async def test_a_handler_that_commits_and_closes_is_found_out(
    opener: Opener, kind: str, recovery: str
) -> None:
    """As psycopg's `with connection:` does. What it committed would be there twice, was its client
    told that nothing happened.
    """
    async with opener(kind, recovery=recovery) as shop:
        key, write = new_key(), shop.write

        def end(lent: Any) -> None:
            write(lent)
            driver = lent.connection if kind.startswith("Django") else lent
            driver.commit()
            lent.close()

        async def end_async(lent: Any) -> None:
            await write(lent)
            if kind == "asyncpg":
                await lent.execute("COMMIT")
            else:
                await lent.commit()
            closing = lent.close()
            if hasattr(closing, "__await__"):
                await closing

        shop.write = end if shop.edge == "wsgi" else end_async
        reply = await shop.order(key)
        assert (reply.status, reply.kind) == (503, "transaction-ended")
        assert "What it committed by itself stands" in reply.json()["detail"]
        assert not reply.json()["retryable"]
        assert shop.orders() == 1
        shop.write = write
        if recovery == "block":
            assert (await shop.order(key)).kind == "outcome-unknown"
        assert (await shop.order(new_key())).status == 201
        assert shop.orders() == 2


@pytest.mark.parametrize("kind", kinds_as_params("asyncmy", "PyMySQL", "Session on PyMySQL"))
async def test_what_a_handler_writes_after_its_transaction_was_undone_does_not_count(
    opener: Opener, kind: str
) -> None:
    """As after a deadlock, which on MySQL and MariaDB ends a transaction without a word."""
    async with opener(kind) as shop:
        write = shop.write

        def go_on(connection: Any) -> None:
            connection.rollback()
            write(connection)

        async def go_on_async(connection: Any) -> None:
            await connection.rollback()
            await write(connection)

        shop.write = go_on_async if kind.startswith("asyncmy") else go_on
        assert (await shop.order(new_key())).status == 503
        assert shop.orders() == 0


@pytest.mark.parametrize(("status", "told"), [(422, 422), (201, 503)])
async def test_a_handler_that_lets_an_error_pass_may_say_that_it_failed_but_not_that_it_worked(
    on_postgres: Shop, caplog: pytest.LogCaptureFixture, status: int, told: int
) -> None:
    """PostgreSQL has undone all of it by then."""
    shop, key, write = on_postgres, new_key(), on_postgres.write

    def write_and_fail(connection: Any) -> None:
        write(connection)
        with pytest.raises(Exception, match="division by zero"):
            execute(shop, connection, "SELECT 1 / 0")

    async def write_and_fail_async(connection: Any) -> None:
        await write(connection)
        with pytest.raises(asyncpg.DivisionByZeroError):
            await execute(shop, connection, "SELECT 1 / 0")

    shop.write = write_and_fail_async if shop.kind == "asyncpg" else write_and_fail
    assert (await shop.order(key, status=status)).status == told
    assert "went on after one of its statements had failed" in caplog.text
    assert "does not answer" not in caplog.text
    assert shop.look(key) is None
    assert shop.orders() == 0


def hang_up(url: str) -> None:
    """The server closes every connection that idles in this database."""
    with mysql_connection(url) as db, db.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM information_schema.processlist "
            "WHERE db = DATABASE() AND id <> CONNECTION_ID() AND command = 'Sleep'"
        )
        for (connection_id,) in cursor.fetchall():
            cursor.execute(f"KILL {connection_id}")


@pytest.mark.slow
@pytest.mark.parametrize("autocommit", [True, False])
async def test_p6_connections_that_the_server_closed_are_given_back(
    request: pytest.FixtureRequest, tmp_path: Path, autocommit: bool
) -> None:
    """A pool has only so many. Without autocommit it is our first statement that finds out."""
    place = place_of("asyncmy", request, tmp_path)
    url = place.url.partition("?")[0]
    async with by_asyncmy(url, autocommit=autocommit) as adapter:
        shop = Shop("asyncmy", place, adapter)
        for _ in range(6):  # more than the pool may have
            assert (await shop.order(new_key())).status == 201
            hang_up(url)
        await shop.close()


class _Stuck:
    """A connection that never ends its rollback, and who lent it."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.released = False

    async def rollback(self) -> None:
        self.asked.set()
        await asyncio.Event().wait()

    async def ask(self, question: Any) -> Any:
        raise NotImplementedError

    async def release(self, tainted: bool) -> None:
        self.released = True


async def test_p6_who_is_cancelled_while_it_rolls_back_gives_its_connection_back() -> None:
    stuck = _Stuck()
    transaction = AsyncDriverTransaction(stuck, stuck.ask, stuck.release, twin_of)
    ending = asyncio.create_task(transaction.rollback())
    await stuck.asked.wait()
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert stuck.released


@pytest.mark.slow
async def test_nothing_is_left_in_the_table_of_held_ids(opener: Opener) -> None:
    """Whichever way a transaction ended: each row in there is removed by who inserted it."""
    async with opener("PyMySQL") as shop:
        for status in (201, 422, 500, 409):
            await shop.order(new_key(), status=status)
        with mysql_connection(shop.place.url) as db, db.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM oncekey_held")
            assert cursor.fetchall() == ((0,),)


@pytest.mark.parametrize("kind", kinds_as_params("asyncmy"))
async def test_p6_an_id_that_was_left_in_that_table_holds_nobody_up(
    opener: Opener, kind: str
) -> None:
    key = new_key()
    async with opener(kind) as shop:
        with mysql_connection(shop.place.url) as db, db.cursor() as cursor:
            cursor.execute("INSERT INTO oncekey_held VALUES (%s)", (the_id(key),))
            assert (await shop.order(key)).status == 201
            cursor.execute("SELECT count(*) FROM oncekey_held")
            assert cursor.fetchall() == ((0,),)


async def test_a_savepoint_undoes_a_part(opener: Opener) -> None:
    async with opener("asyncpg") as shop:
        write = shop.write

        async def in_vain(connection: Any) -> None:
            async with connection.transaction():
                await write(connection)
                await connection.execute("SELECT 1 / 0")

        async def write_twice(connection: Any) -> None:
            await write(connection)
            with pytest.raises(asyncpg.DivisionByZeroError):
                await in_vain(connection)

        shop.write = write_twice
        assert (await shop.order(new_key())).status == 201
        assert shop.orders() == 1


async def test_a_client_that_hangs_up_stops_nothing(opener: Opener) -> None:
    key = new_key()
    async with opener("asyncpg") as shop:
        order = asyncio.create_task(shop.order(key, stand=True))
        await shop.gate.wait()
        order.cancel()
        with pytest.raises(asyncio.CancelledError):
            await order
        shop.gate.opened.set()
        await shop.app.drain()
        assert (await shop.order(key, stand=True)).replayed
        assert shop.orders() == 1


async def test_a_database_that_is_down_runs_nothing_and_the_log_says_why(
    opener: Opener, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "QUIET_S", 0.0)
    async with opener("asyncpg", store_down="run") as shop:
        down = [True]
        pools = _Down(), shop.adapter._pool()  # type: ignore[attr-defined]
        shop.app.edge.adapter = atomic.Asyncpg(lambda: pools[0 if down else 1])
        for _ in range(2):
            reply = await shop.order(new_key())
            assert (reply.status, reply.kind) == (503, "store-unavailable")
        assert shop.runs == 0
        assert caplog.text.count("ConnectionRefusedError: nobody listens") == 1
        down.clear()
        assert (await shop.order(new_key())).status == 201
        assert "the database of atomic=Asyncpg(…) answers again" in caplog.text


class _Down:
    def get_idle_size(self) -> int:
        return 0

    async def acquire(self, **_: float) -> Any:
        raise ConnectionRefusedError("nobody listens")


async def test_p1_who_looks_at_the_notice_before_it_runs_keeps_its_transaction(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a wait for the id, or where the store did not answer the look before the claim."""
    assert (await shop.order(new_key())).status == 201
    monkeypatch.setattr(Notices, "due", lambda self, now, *, runs: runs)
    key = new_key()
    assert (await shop.order(key)).status == 201
    assert (await shop.order(key)).replayed
    assert shop.orders() == shop.runs == 2


@pytest.mark.parametrize("kind", kinds_as_params("asyncmy", "PyMySQL", "Session on PyMySQL"))
async def test_an_answer_that_no_packet_holds_is_kept_as_a_fact_with_its_rows(
    opener: Opener, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It would be undone each time, by what looks like a lost connection."""
    async with opener(kind, answer_bytes_max=20_000_000) as shop:
        shop.answer = bytes(9_000_000)  # in hexadecimal digits more than the server takes at once
        key = new_key()
        first = await shop.order(key)
        assert (first.status, len(first.body)) == (201, 9_000_000)
        assert (await shop.order(key)).kind == "answer-not-kept"
        assert shop.orders() == shop.runs == 1
    assert "raise max_allowed_packet" in caplog.text


# ----------------------------------------------------------------------------------- PgBouncer


@pytest.mark.parametrize("kind", [kind for kind in POSTGRES if kind != "Django"])
async def test_it_works_behind_pgbouncer_in_transaction_mode(
    request: pytest.FixtureRequest, tmp_path: Path, pgbouncer_url: str, kind: str
) -> None:
    place = postgres_place(request, tmp_path)
    prepare(place)
    store = f"{pgbouncer_url}?pgbouncer=true&allow=unsafe-durability"
    async with KINDS[kind][1](pgbouncer_url) as adapter:
        shop = Shop(kind, place, adapter, store)
        keys = [new_key() for _ in range(6)]
        replies = await asyncio.gather(*(shop.order(key) for key in keys * 2))
        assert {reply.status for reply in replies} <= {201, 409}
        for key in keys:
            assert (await shop.order(key)).replayed
        assert (await shop.order(new_key(), status=500)).status == 500
        assert shop.orders() == 6
        await shop.close()
