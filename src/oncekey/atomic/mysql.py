"""Adapters for the drivers of MySQL and MariaDB: each begins, commits, rolls back and gives back.

A connection is lent with autocommit off, however it was: after a deadlock, which ends the
transaction, what a handler still writes would else count at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from oncekey.atomic.postgres import ACQUIRE_S_MAX
from oncekey.stores import join
from oncekey.stores.base import Store


class PyMySQL:
    """Transactions of connections of PyMySQL, which has no pool: a function opens one for each
    request, and it is closed after it. SQLAlchemy has a pool.
    """

    engine = "mysql"
    awaited = False

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect

    def begin(self, store: Store, record_id: bytes, seconds_max: float) -> _PyMySQL:
        connection = self._connect()
        try:
            connection.autocommit(False)
            return _PyMySQL(connection, join.blocking(store, connection))
        except BaseException:
            connection.close()
            raise


class _PyMySQL:
    def __init__(self, connection: Any, ask: join.Ask) -> None:
        self.connection = connection
        self.ask = ask

    def flush(self) -> None:
        """There is no session."""

    def commit(self) -> None:
        try:
            self.connection.commit()
        finally:
            self._give_back()

    def rollback(self) -> None:
        with contextlib.suppress(Exception):  # a broken connection has nothing left to roll back
            self.connection.rollback()
        self._give_back()

    def _give_back(self) -> None:
        with contextlib.suppress(Exception):  # it may be closed already
            self.connection.close()


class Asyncmy:
    """Transactions of an asyncmy pool, or of the pool that a function returns."""

    engine = "mysql"
    awaited = True

    def __init__(self, pool: Any, *, acquire_s_max: float = ACQUIRE_S_MAX) -> None:
        self._pool: Callable[[], Any] = pool if callable(pool) else lambda: pool
        self._acquire_s_max = acquire_s_max

    async def begin(self, store: Store, record_id: bytes, seconds_max: float) -> _Asyncmy:
        pool = self._pool()
        async with asyncio.timeout(self._acquire_s_max):
            connection = await pool.acquire()
        autocommit = connection.get_autocommit()
        try:
            await connection.autocommit(False)
            ask = await join.awaited(store, connection)
        except BaseException:
            connection.close()
            await pool.release(connection)
            raise
        return _Asyncmy(pool, connection, autocommit, ask)


class _Asyncmy:
    def __init__(self, pool: Any, connection: Any, autocommit: bool, ask: join.AsyncAsk) -> None:
        self.connection = connection
        self.ask = ask
        self._pool = pool
        self._autocommit = autocommit

    async def flush(self) -> None:
        """There is no session."""

    async def commit(self) -> None:
        try:
            await self.connection.commit()
        finally:
            await self._give_back()

    async def rollback(self) -> None:
        try:
            with contextlib.suppress(Exception):  # a broken one has nothing left to roll back
                await self.connection.rollback()
        finally:
            await self._give_back()

    async def _give_back(self) -> None:
        try:
            await self.connection.autocommit(self._autocommit)
        except Exception:  # it is broken: the pool must not lend it again
            self.connection.close()
        finally:
            await self._pool.release(self.connection)
