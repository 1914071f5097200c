"""SQLAlchemy 2: sessions on the blocking drivers and on the awaited ones."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import sqlalchemy
from sqlalchemy.ext import asyncio as sqlalchemy_async
from sqlalchemy.orm import sessionmaker

from oncekey import atomic
from soak import engines
from soak.drivers import Awaited, Blocking

_DIALECTS = {"sqlite": "sqlite", "postgres": "postgresql+psycopg", "mysql": "mysql+pymysql"}
_ASYNC_DIALECTS = {"postgres": "postgresql+asyncpg", "mysql": "mysql+asyncmy"}


class SQLAlchemy(Blocking):
    def __init__(self, engine: str, url: str) -> None:
        super().__init__(engine, url)
        self._sessions = sessionmaker(sqlalchemy.create_engine(_address(engine, url, _DIALECTS)))

    def adapter(self) -> Any:
        return atomic.SQLAlchemy(self._sessions)

    def transaction(self) -> AbstractContextManager[Any]:
        return self._sessions.begin()

    def execute(self, connection: Any, statement: str) -> None:
        connection.execute(sqlalchemy.text(statement))


class AsyncSQLAlchemy(Awaited):
    def __init__(self, engine: str, url: str) -> None:
        super().__init__(engine, url)
        made = sqlalchemy_async.create_async_engine(_address(engine, url, _ASYNC_DIALECTS))
        self._sessions = sqlalchemy_async.async_sessionmaker(made)

    async def open(self) -> None:
        """Do nothing: the engine exists already."""

    def adapter(self) -> Any:
        return atomic.AsyncSQLAlchemy(self._sessions)

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        return self._sessions.begin()

    async def execute(self, connection: Any, statement: str) -> None:
        await connection.execute(sqlalchemy.text(statement))


def _address(engine: str, url: str, dialects: dict[str, str]) -> str:
    return f"{dialects[engines.ROWS[engine]]}:{engines.plain(url).partition(':')[2]}"
