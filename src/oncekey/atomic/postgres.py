"""Adapters for PostgreSQL's drivers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncekey.stores import join
from oncekey.stores.base import Store

ACQUIRE_S_MAX = 5.0


class Asyncpg:
    """Transactions of an asyncpg pool, or of what a function returns once the pool is there."""

    engine = "postgres"
    awaited = True

    def __init__(self, pool: Any, *, acquire_s_max: float = ACQUIRE_S_MAX) -> None:
        self._pool: Callable[[], Any] = pool if callable(pool) else lambda: pool
        self._acquire_s_max = acquire_s_max

    async def begin(self, store: Store, record_id: bytes, seconds_max: float) -> Any:
        pool = self._pool()
        connection = await pool.acquire(timeout=self._acquire_s_max)
        try:
            transaction = connection.transaction()
            await transaction.start()
            return _Asyncpg(pool, connection, transaction, await join.awaited(store, connection))
        except BaseException:
            await pool.release(connection)
            raise


class _Asyncpg:
    def __init__(self, pool: Any, connection: Any, transaction: Any, ask: join.AsyncAsk) -> None:
        self.connection = connection
        self.ask = ask
        self._pool = pool
        self._transaction = transaction

    async def flush(self) -> None:
        pass

    async def commit(self) -> None:
        try:
            await self._transaction.commit()
        finally:
            await self._pool.release(self.connection)

    async def rollback(self) -> None:
        try:
            await self._transaction.rollback()
        except Exception:  # its connection is broken: what is not committed is gone
            self.connection.terminate()
        finally:
            await self._pool.release(self.connection)
