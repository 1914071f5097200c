"""psycopg 3 with its pools, blocking and awaited."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import psycopg_pool

from oncekey import atomic
from soak import engines
from soak.drivers import POOL_MAX, Awaited, Blocking

_POOLED: dict[str, Any] = {
    "min_size": 0,
    "max_size": POOL_MAX,
    "kwargs": {"connect_timeout": engines.WAIT_S},
}


class Psycopg(Blocking):
    def __init__(self, engine: str, url: str) -> None:
        super().__init__(engine, url)
        self._pool = psycopg_pool.ConnectionPool(engines.plain(url), open=True, **_POOLED)

    def adapter(self) -> Any:
        return atomic.Psycopg(self._pool)

    def transaction(self) -> AbstractContextManager[Any]:
        return self._pool.connection()


class AsyncPsycopg(Awaited):
    def __init__(self, engine: str, url: str) -> None:
        super().__init__(engine, url)
        self._pool = psycopg_pool.AsyncConnectionPool(engines.plain(url), open=False, **_POOLED)

    async def open(self) -> None:
        await self._pool.open()

    def adapter(self) -> Any:
        return atomic.AsyncPsycopg(self._pool)

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        return self._pool.connection()
