"""The engines that several processes can share, and how to reach the handlers' rows in them."""

from __future__ import annotations

import sqlite3
from typing import Any
from urllib.parse import SplitResult, urlsplit

import oncekey
from oncekey.stores.base import Store
from oncekey.stores.urls import Unsealed

REPLICATED = ("redis-cluster", "redis-sentinel")
"""Several servers that take over from each other."""
ENGINES = ("sqlite", "postgres", "mariadb", "mysql", "redis", *REPLICATED, "dynamodb", "tiered")
ROWS = {
    "sqlite": "sqlite",
    "postgres": "postgres",
    "tiered": "postgres",
    "mariadb": "mysql",
    "mysql": "mysql",
}
"""The SQL dialect of an engine's rows."""
WAIT_S = 5
_SECRET = "a text that is long enough but no secret at all"  # noqa: S105


def open_store(store_url: str, *, sealed: bool) -> Store:
    return oncekey.open_store(store_url, secrets=_SECRET if sealed else Unsealed.UNSEALED)


def open_database(store_url: str) -> Store:
    """Open the database alone, unsealed and without a cache."""
    return oncekey.open_store(store_url.removeprefix("tiered+").partition("&cache=")[0])


def plain(store_url: str) -> str:
    """Return the URL of the database for drivers."""
    return store_url.partition("?")[0].removeprefix("tiered+")


def address(store_url: str) -> SplitResult:
    return urlsplit(plain(store_url))


def connect(engine: str, store_url: str) -> Any:
    """Connect to the store's database with the engine's blocking driver."""
    match ROWS[engine]:  # a worker imports only what it needs, to restart sooner
        case "sqlite":
            return sqlite3.connect(address(store_url).path[1:], timeout=WAIT_S)
        case "postgres":
            import psycopg

            return psycopg.connect(plain(store_url), connect_timeout=WAIT_S)
    import pymysql

    # Without ssl_disabled it reads all system certificates, each time.
    return pymysql.connect(**login(store_url), connect_timeout=WAIT_S, ssl_disabled=True)


def login(store_url: str) -> dict[str, Any]:
    """Return connection arguments for MySQL drivers."""
    environment = address(store_url)
    return {
        "host": environment.hostname,
        "port": environment.port,
        "user": environment.username,
        "password": environment.password or "",
        "database": environment.path[1:],
    }


def ask(engine: str, store_url: str, statement: str) -> list[tuple[str, ...]]:
    """Run a statement in its own transaction and return its rows."""
    connection = connect(engine, store_url)
    try:
        cursor = connection.cursor()
        cursor.execute(statement)
        found = list(cursor.fetchall()) if cursor.description else []
        connection.commit()
        return found
    finally:
        connection.close()
