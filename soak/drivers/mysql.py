"""PyMySQL and asyncmy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any

import asyncmy

from oncekey import atomic
from soak import engines
from soak.drivers import POOL_MAX, Awaited, Blocking


class PyMySQL(Blocking):
    def adapter(self) -> Any:
        return atomic.PyMySQL(lambda: engines.connect(self.engine, self.url))

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with closing(engines.connect(self.engine, self.url)) as connection:
            yield connection
            connection.commit()  # closing without it rolls back


class Asyncmy(Awaited):
    async def open(self) -> None:
        limits = {"minsize": 0, "maxsize": POOL_MAX, "connect_timeout": engines.WAIT_S}
        self._pool = await asyncmy.create_pool(**engines.login(self.url), **limits)

    def adapter(self) -> Any:
        return atomic.Asyncmy(lambda: self._pool)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._pool.acquire() as connection:
            try:
                await connection.begin()
                yield connection
                await connection.commit()
            except BaseException:
                connection.close()  # what is not committed is rolled back
                raise

    async def execute(self, connection: Any, statement: str) -> None:
        async with connection.cursor() as cursor:
            await cursor.execute(statement)
