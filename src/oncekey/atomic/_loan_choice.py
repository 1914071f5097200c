"""Which way a connection of a driver is lent, for libraries that stand on several drivers."""

from __future__ import annotations

import sqlite3
from typing import Any

from oncekey.atomic._loans import DriverLoan
from oncekey.atomic._loans_mysql import AsyncmyLoan, PyMySQLLoan
from oncekey.atomic._loans_psycopg import AsyncPsycopgLoan, PsycopgLoan
from oncekey.atomic._loans_sqlite import SqliteLoan
from oncekey.errors import Misuse
from oncekey.stores.transactions import is_of


def lend(driver_connection: Any) -> DriverLoan:
    """Lend a connection that blocks."""
    if isinstance(driver_connection, sqlite3.Connection):
        return SqliteLoan(driver_connection)
    if is_of(driver_connection, "psycopg", "Connection"):
        return PsycopgLoan(driver_connection)
    if is_of(driver_connection, "pymysql.connections", "Connection"):
        return PyMySQLLoan(driver_connection)
    raise Misuse(f"a connection of {type(driver_connection).__module__} cannot be lent")


def lend_awaited(driver_connection: Any) -> AsyncPsycopgLoan | AsyncmyLoan | None:
    """Lend a connection for an event loop. None: it is one of asyncpg, which has no stand-in."""
    if is_of(driver_connection, "psycopg", "AsyncConnection"):
        return AsyncPsycopgLoan(driver_connection)
    if is_of(driver_connection, "asyncmy.connection", "Connection"):
        return AsyncmyLoan(driver_connection)
    return None
