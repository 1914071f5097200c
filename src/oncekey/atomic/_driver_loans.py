"""Choose the loan for a driver's connection, for libraries that support several drivers."""

from __future__ import annotations

import sqlite3
from typing import Any

from oncekey.atomic._loans import DriverLoan
from oncekey.atomic.mysql import AsyncmyLoan, PyMySQLLoan
from oncekey.atomic.postgres import AsyncPsycopgLoan, PsycopgLoan
from oncekey.atomic.sqlite import SqliteLoan
from oncekey.errors import Misuse
from oncekey.stores.transactions import is_of


def lend(driver_connection: Any) -> DriverLoan:
    """Lend a blocking connection."""
    if isinstance(driver_connection, sqlite3.Connection):
        return SqliteLoan(driver_connection)
    if is_of(driver_connection, "psycopg", "Connection"):
        return PsycopgLoan(driver_connection)
    if is_of(driver_connection, "pymysql.connections", "Connection"):
        return PyMySQLLoan(driver_connection)
    raise Misuse(f"a connection of {type(driver_connection).__module__} cannot be lent")


def lend_async(driver_connection: Any) -> AsyncPsycopgLoan | AsyncmyLoan | None:
    """Lend an async connection; None for asyncpg, which needs no stand-in."""
    if is_of(driver_connection, "psycopg", "AsyncConnection"):
        return AsyncPsycopgLoan(driver_connection)
    if is_of(driver_connection, "asyncmy.connection", "Connection"):
        return AsyncmyLoan(driver_connection)
    return None
