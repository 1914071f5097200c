"""Handlers that commit by themselves and then fail so that nothing can be queried."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import asyncmy
import django.db
import pymysql
import pytest

from oncekey.stores.mysql import transactions
from tests.atomic.shop import KINDS, OF_MYSQL, POSTGRES, Opener, Shop, kinds_as_params, new_key
from tests.atomic.test_faults import EXECUTE, Deadlock
from tests.atomic.test_faults import opener as opener

pytestmark = pytest.mark.anyio

ON_SERVERS = kinds_as_params(
    *(kind for kind in KINDS if "sqlite" not in kind and " of MySQL" not in kind)
)
LOST = {
    "postgres": "SELECT pg_terminate_backend(pg_backend_pid())",
    "mysql": "KILL CONNECTION_ID()",
}


def executing(connection: Any) -> Any:
    """How a connection of any kind executes a statement."""
    if hasattr(connection, "exec_driver_sql"):
        return connection.exec_driver_sql
    if hasattr(connection, "sync_session"):

        async def by_session(statement: str) -> None:
            await (await connection.connection()).exec_driver_sql(statement)

        return by_session
    if hasattr(connection, "scalars"):
        return lambda statement: connection.connection().exec_driver_sql(statement)
    if hasattr(connection, "fetchrow") or type(connection).__module__.startswith("psycopg"):
        return connection.execute
    if type(connection).__module__.startswith("asyncmy"):

        async def by_cursor(statement: str) -> None:
            async with connection.cursor() as cursor:
                await cursor.execute(statement)

        return by_cursor
    return lambda statement: connection.cursor().execute(statement)


async def done(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given


def then(shop: Shop, *doing: Callable[[Any], Any], passes: bool) -> Any:
    """Write an order, then do this; whether what the last one raises passes unnoticed."""
    write = shop.write

    def blocking(connection: Any) -> None:
        write(connection)
        for act in doing[:-1]:
            act(connection)
        with contextlib.suppress(Exception) if passes else contextlib.nullcontext():
            doing[-1](connection)

    async def awaiting(connection: Any) -> None:
        await done(write(connection))
        for act in doing[:-1]:
            await done(act(connection))
        with contextlib.suppress(Exception) if passes else contextlib.nullcontext():
            await done(doing[-1](connection))

    name = type(shop.adapter).__name__
    return awaiting if name.startswith("Async") else blocking


def commit(connection: Any) -> Any:
    if hasattr(connection, "fetchrow"):
        return connection.execute("COMMIT")
    if hasattr(connection, "in_atomic_block"):
        return connection.connection.commit()
    return connection.commit()


def fail(connection: Any) -> Any:
    return executing(connection)("SELECT nothing FROM nowhere")


def lose(engine: str) -> Callable[[Any], Any]:
    return lambda connection: executing(connection)(LOST[engine])


@pytest.mark.parametrize("kind", ON_SERVERS)
@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize("way", ["fails", "is lost"])
async def test_p6_under_block_what_it_committed_is_not_run_again_whatever_came_then(
    opener: Opener, kind: str, way: str, passes: bool
) -> None:
    engine = "postgres" if kind in POSTGRES else "mysql"
    async with opener(kind, recovery="block") as shop:
        key, write = new_key(), shop.write
        shop.write = then(shop, commit, fail if way == "fails" else lose(engine), passes=passes)
        with contextlib.suppress(Exception):  # which an ASGI server would log
            await shop.order(key)
        shop.write = write
        again = await shop.order(key)
        assert (again.status, again.kind, shop.orders()) == (409, "outcome-unknown", 1)


@pytest.mark.parametrize("kind", ON_SERVERS)
@pytest.mark.parametrize("way", ["fails", "is lost"])
async def test_p6_under_block_what_failed_before_a_commit_runs_again(
    opener: Opener, kind: str, way: str
) -> None:
    engine = "postgres" if kind in POSTGRES else "mysql"
    async with opener(kind, recovery="block") as shop:
        key, write = new_key(), shop.write
        shop.write = then(shop, fail if way == "fails" else lose(engine), passes=False)
        with contextlib.suppress(Exception):  # which an ASGI server would log
            first = await shop.order(key)
            assert (first.status, first.header("idempotency-outcome")) == (500, None)
        shop.write = write
        assert ((await shop.order(key)).status, shop.orders()) == (201, 1)


@pytest.mark.parametrize("kind", kinds_as_params(*EXECUTE))
async def test_p6_under_block_what_it_committed_is_not_run_again_after_a_deadlock(
    opener: Opener, kind: str
) -> None:
    async with opener(kind, recovery="block") as shop:
        deadlock, write, key = Deadlock(shop.place), shop.write, new_key()

        def meet(connection: Any) -> None:
            deadlock.run(EXECUTE[kind.removesuffix(OF_MYSQL)](connection))

        shop.write = then(shop, commit, meet, passes=False)
        with contextlib.suppress(Exception):  # which an ASGI server would log
            await shop.order(key)
        shop.write = write
        again = await shop.order(key)
        assert (again.status, again.kind, shop.orders()) == (409, "outcome-unknown", 1)
        deadlock.close()


@pytest.mark.parametrize(
    ("error", "undone"),
    [
        (pymysql.err.OperationalError(1213, "Deadlock found"), True),
        (asyncmy.errors.OperationalError(1205, "Lock wait timeout exceeded"), True),
        (django.db.OperationalError(1213, "Deadlock found"), True),
        (pymysql.err.OperationalError(2013, "Lost connection"), False),
        (KeyError(1213), False),
        (LookupError(1205, "there is no such order"), False),
    ],
)
def test_p6_only_an_error_of_the_database_tells_of_a_deadlock(error: Any, undone: bool) -> None:
    wrapped = RuntimeError("the order failed")
    wrapped.__cause__ = error
    assert transactions.undoes(error) is transactions.undoes(wrapped) is undone
