"""The drivers by which handlers write rows beside their records: each lends transactions, to the
middleware's atomic mode and to whoever opens one.

A worker imports only the one that it uses: whoever was killed is back sooner.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any

from soak import engines

POOL_MAX = 8


class Driver(ABC):
    """One driver on one database. It connects to nothing before it is used."""

    def __init__(self, engine: str, url: str) -> None:
        self.engine = engine
        self.url = url

    @abstractmethod
    def adapter(self) -> Any:
        """What the middleware takes as `atomic=`."""


class Blocking(Driver):
    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """A connection or session with a transaction that is committed at the end."""

    def execute(self, connection: Any, statement: str) -> None:
        connection.cursor().execute(statement)


class Awaited(Driver):
    @abstractmethod
    async def open(self) -> None:
        """Make what needs the event loop."""

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """As those of `Blocking`."""

    async def execute(self, connection: Any, statement: str) -> None:
        await connection.execute(statement)


@dataclass(frozen=True, slots=True)
class Kind:
    """Where a driver is, and whose SQL it speaks."""

    module: str
    name: str
    awaited: bool
    rows: tuple[str, ...]
    bound: bool = False
    """Whether a connection stays in the thread that made it: there is no event loop for it."""


KINDS = {
    "sqlite3": Kind("sqlite", "Sqlite3", False, ("sqlite",)),
    "psycopg": Kind("psycopg", "Psycopg", False, ("postgres",)),
    "pymysql": Kind("mysql", "PyMySQL", False, ("mysql",)),
    "sqlalchemy": Kind("sqlalchemy", "SQLAlchemy", False, ("sqlite", "postgres", "mysql")),
    "django": Kind("django", "Django", False, ("sqlite", "postgres", "mysql"), bound=True),
    "asyncpg": Kind("asyncpg", "Asyncpg", True, ("postgres",)),
    "async-psycopg": Kind("psycopg", "AsyncPsycopg", True, ("postgres",)),
    "asyncmy": Kind("mysql", "Asyncmy", True, ("mysql",)),
    "async-sqlalchemy": Kind("sqlalchemy", "AsyncSQLAlchemy", True, ("postgres", "mysql")),
}


def open_driver(name: str, engine: str, url: str) -> Blocking | Awaited:
    kind = KINDS[name]
    driver = getattr(importlib.import_module(f"soak.drivers.{kind.module}"), kind.name)
    opened: Blocking | Awaited = driver(engine, url)
    return opened


def fitting(engine: str, *, blocking: bool) -> list[str]:
    """The names of those that reach an engine's rows, from where there is an event loop or not."""
    rows = engines.ROWS.get(engine)
    return [
        name
        for name, kind in KINDS.items()
        if rows in kind.rows and not (kind.awaited if blocking else kind.bound)
    ]
