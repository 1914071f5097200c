"""The drivers that handlers write rows with, in the middleware's atomic mode or in transactions of
their own.

A worker imports only the one it uses, so that it restarts sooner.
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
    """One driver on one database. It connects on first use."""

    def __init__(self, engine: str, url: str) -> None:
        self.engine = engine
        self.url = url

    @abstractmethod
    def adapter(self) -> Any:
        """Return what the middleware takes as `atomic=`."""


class Blocking(Driver):
    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """Open a connection or session with a transaction that commits at the end."""

    def execute(self, connection: Any, statement: str) -> None:
        connection.cursor().execute(statement)


class Awaited(Driver):
    @abstractmethod
    async def open(self) -> None:
        """Create what needs the event loop."""

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Open a transaction, like `Blocking.transaction`."""

    async def execute(self, connection: Any, statement: str) -> None:
        await connection.execute(statement)


@dataclass(frozen=True, slots=True)
class DriverKind:
    """Where a driver is defined, and which engines it supports."""

    module: str
    name: str
    awaited: bool
    rows: tuple[str, ...]
    bound: bool = False
    """Whether a connection is bound to the thread that opened it, so no event loop can use it."""


KINDS = {
    "sqlite3": DriverKind("sqlite", "Sqlite3", False, ("sqlite",)),
    "psycopg": DriverKind("psycopg", "Psycopg", False, ("postgres",)),
    "pymysql": DriverKind("mysql", "PyMySQL", False, ("mysql",)),
    "sqlalchemy": DriverKind("sqlalchemy", "SQLAlchemy", False, ("sqlite", "postgres", "mysql")),
    "django": DriverKind("django", "Django", False, ("sqlite", "postgres", "mysql"), bound=True),
    "asyncpg": DriverKind("asyncpg", "Asyncpg", True, ("postgres",)),
    "async-psycopg": DriverKind("psycopg", "AsyncPsycopg", True, ("postgres",)),
    "asyncmy": DriverKind("mysql", "Asyncmy", True, ("mysql",)),
    "async-sqlalchemy": DriverKind("sqlalchemy", "AsyncSQLAlchemy", True, ("postgres", "mysql")),
}


def open_driver(name: str, engine: str, url: str) -> Blocking | Awaited:
    kind = KINDS[name]
    driver = getattr(importlib.import_module(f"soak.drivers.{kind.module}"), kind.name)
    opened: Blocking | Awaited = driver(engine, url)
    return opened


def matching_drivers(engine: str, *, blocking: bool) -> list[str]:
    """List the drivers for an engine's rows, blocking ones or those for an event loop."""
    rows = engines.ROWS.get(engine)
    return [
        name
        for name, kind in KINDS.items()
        if rows in kind.rows and not (kind.awaited if blocking else kind.bound)
    ]
