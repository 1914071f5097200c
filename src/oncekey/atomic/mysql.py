"""Adapters for the drivers of MySQL and MariaDB: each begins, commits, rolls back and gives back.

A connection is lent with autocommit off, however it was: after a deadlock, which ends the
transaction, what a handler still writes would else count at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from oncekey.atomic._connections import ACQUIRE_S_MAX, AsyncLent, Lent, must_open
from oncekey.atomic._loans_mysql import AsyncmyLoan, PyMySQLLoan
from oncekey.stores import transactions
from oncekey.stores.base import Store

_log = logging.getLogger("oncekey")


class PyMySQL:
    """Transactions of connections of PyMySQL, which has no pool: a function opens one for each
    request, and it is closed after it. SQLAlchemy has a pool.
    """

    engine = "mysql"
    awaited = False

    def __init__(self, connect: Callable[[], Any]) -> None:
        must_open(connect, "PyMySQL(…) takes a function that opens a connection")
        self._connect = connect

    def begin(self, store: Store, record_id: bytes, seconds_max: float) -> Lent:
        connection = self._connect()
        try:
            connection.autocommit(False)
            ask = transactions.join(store, connection)
        except BaseException:
            connection.close()
            raise

        def give_back(tainted: bool) -> None:
            with contextlib.suppress(Exception):  # it may be closed already
                connection.close()

        return Lent(connection, ask, give_back, PyMySQLLoan)


class Asyncmy:
    """Transactions of an asyncmy pool, or of the pool that a function returns."""

    engine = "mysql"
    awaited = True

    def __init__(self, pool: Any, *, acquire_s_max: float = ACQUIRE_S_MAX) -> None:
        must_open(pool, "Asyncmy(…) takes a pool, or a function that gives it")
        self._pool: Callable[[], Any] = pool if callable(pool) else lambda: pool
        self._acquire_s_max = acquire_s_max

    async def begin(self, store: Store, record_id: bytes, seconds_max: float) -> AsyncLent:
        pool = self._pool()
        async with asyncio.timeout(self._acquire_s_max):
            connection = await pool.acquire()
        autocommit = connection.get_autocommit()
        try:
            await connection.autocommit(False)
            ask = await transactions.ajoin(store, connection)
        except BaseException:
            connection.close()
            await pool.release(connection)
            raise

        async def give_back(tainted: bool) -> None:
            whole = False
            try:
                if not tainted:
                    await connection.autocommit(autocommit)
                    whole = True
            except Exception:  # it is broken: the pool must not lend it again
                _log.debug("a connection of the pool is closed", exc_info=True)
            finally:
                if not whole:
                    connection.close()
                    connection._connected = False  # else its pool finds out only later
                await pool.release(connection)

        return AsyncLent(connection, ask, give_back, AsyncmyLoan)
