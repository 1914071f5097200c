"""asyncpg with its pool."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from oncekey import atomic
from soak import engines
from soak.drivers import POOL_MAX, Awaited


class Asyncpg(Awaited):
    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(
            engines.plain(self.url), min_size=0, max_size=POOL_MAX, command_timeout=engines.WAIT_S
        )

    def adapter(self) -> Any:
        return atomic.Asyncpg(lambda: self._pool)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._pool.acquire() as connection, connection.transaction():
            yield connection
