"""The engines that several processes can share, and the caller's own rows in them."""

from __future__ import annotations

import sqlite3
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql

ENGINES = ("sqlite", "postgres", "redis", "mariadb")
SQL = ("sqlite", "postgres", "mariadb")
_WAIT_S = 5


def routes(engine: str) -> tuple[str, ...]:
    """The application's routes, each named after what happens to a run whose process died."""
    leased = ("rerun", "block", "resume")
    return (*leased, "atomic") if engine in SQL else leased


def connect(engine: str, store_url: str) -> Any:
    """A connection of the engine's blocking driver, to where the store is."""
    url = store_url.partition("?")[0]
    address = urlsplit(url)
    match engine:
        case "sqlite":
            return sqlite3.connect(address.path[1:], timeout=_WAIT_S)
        case "postgres":
            return psycopg.connect(url, connect_timeout=_WAIT_S)
    return pymysql.connect(
        host=address.hostname,
        port=address.port or 3306,
        user=address.username,
        password=address.password or "",
        database=address.path[1:],
        connect_timeout=_WAIT_S,
        ssl_disabled=True,  # else it reads all certificates that the system trusts, each time
    )


def ask(engine: str, store_url: str, statement: str) -> list[tuple[str, ...]]:
    """One statement in a transaction of its own; its rows."""
    connection = connect(engine, store_url)
    try:
        cursor = connection.cursor()
        cursor.execute(statement)
        found = list(cursor.fetchall()) if cursor.description else []
        connection.commit()
        return found
    finally:
        connection.close()
