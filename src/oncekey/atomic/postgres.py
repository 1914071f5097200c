"""Adapters for PostgreSQL's drivers: each begins, commits, rolls back and gives back."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from oncekey.atomic.lent import ACQUIRE_S_MAX, AsyncLent, Lent, must_open
from oncekey.stores import join
from oncekey.stores.base import Store


class Asyncpg:
    """Transactions of an asyncpg pool, or of the pool that a function returns."""

    engine = "postgres"
    awaited = True

    def __init__(self, pool: Any, *, acquire_s_max: float = ACQUIRE_S_MAX) -> None:
        must_open(pool, "Asyncpg(…) takes a pool, or a function that gives it")
        self._pool: Callable[[], Any] = pool if callable(pool) else lambda: pool
        self._acquire_s_max = acquire_s_max

    async def begin(self, store: Store, record_id: bytes, seconds_max: float) -> _Asyncpg:
        pool = self._pool()
        # A limit costs something, and is not needed where nobody has to wait.
        wait_s = None if pool.get_idle_size() else self._acquire_s_max
        connection = await pool.acquire(timeout=wait_s)
        transaction = connection.transaction()
        try:
            await transaction.start()
            ask = join.by_asyncpg(store, connection)
        except BaseException:
            await pool.release(connection)
            raise
        return _Asyncpg(pool, connection, transaction, ask)


class _Asyncpg:
    def __init__(self, pool: Any, connection: Any, transaction: Any, ask: join.AsyncAsk) -> None:
        self.connection = connection
        self.ask = ask
        self._pool = pool
        self._transaction = transaction

    async def flush(self) -> None:
        """There is no session."""

    async def commit(self) -> None:
        try:
            await self._transaction.commit()
        finally:
            await self._pool.release(self.connection)

    async def rollback(self) -> None:
        try:
            await self._transaction.rollback()
        except Exception:  # its connection is broken: what was not committed is gone
            self.connection.terminate()
        finally:
            await self._pool.release(self.connection)


class Psycopg:
    """Transactions of a `psycopg_pool.ConnectionPool`, or of connections that a function opens."""

    engine = "postgres"
    awaited = False

    def __init__(self, pool: Any, *, acquire_s_max: float = ACQUIRE_S_MAX) -> None:
        must_open(pool, "Psycopg(…) takes a pool, or a function that opens a connection")
        self._pool = pool
        self._acquire_s_max = acquire_s_max

    def begin(self, store: Store, record_id: bytes, seconds_max: float) -> Lent:
        connection, give_back = self._take()
        try:
            if connection.autocommit:
                connection.execute("BEGIN")
            return Lent(connection, join.blocking(store, connection), give_back)
        except BaseException:
            give_back()
            raise

    def _take(self) -> tuple[Any, Callable[[], Any]]:
        if hasattr(self._pool, "getconn"):
            connection = self._pool.getconn(timeout=self._acquire_s_max)
            return connection, lambda: self._pool.putconn(connection)
        connection = self._pool()
        return connection, connection.close


class AsyncPsycopg:
    """Transactions of a `psycopg_pool.AsyncConnectionPool`, or of connections that an async
    function opens.
    """

    engine = "postgres"
    awaited = True

    def __init__(self, pool: Any, *, acquire_s_max: float = ACQUIRE_S_MAX) -> None:
        must_open(pool, "AsyncPsycopg(…) takes a pool, or a function that opens a connection")
        self._pool = pool
        self._acquire_s_max = acquire_s_max

    async def begin(self, store: Store, record_id: bytes, seconds_max: float) -> AsyncLent:
        connection, give_back = await self._take()
        try:
            if connection.autocommit:
                await connection.execute("BEGIN")
            ask = await join.awaited(store, connection)
        except BaseException:
            await give_back()
            raise
        return AsyncLent(connection, ask, give_back)

    async def _take(self) -> tuple[Any, Callable[[], Any]]:
        if hasattr(self._pool, "getconn"):
            connection = await self._pool.getconn(timeout=self._acquire_s_max)
            return connection, lambda: self._pool.putconn(connection)
        opened = self._pool()
        connection = await opened if inspect.isawaitable(opened) else opened
        return connection, connection.close
