"""Records in a caller's transaction on SQLite: on a connection to the store's own file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from oncekey.errors import Misuse
from oncekey.stores.transactions import Ask, SqlTransactions, is_of, not_begun

T = TypeVar("T")


def join(store: Any, connection: Any) -> Ask | None:
    """How to ask on a connection of sqlite3, or of SQLAlchemy on aiosqlite."""
    if isinstance(connection, sqlite3.Connection):
        return _join_sqlite3(store, connection)
    if is_of(connection, "sqlalchemy", "Connection"):
        return _join_aiosqlite(store, connection)
    return None


class _JoinedFile:
    """Stands for the store's open file: reading and writing are in the caller's transaction."""

    def __init__(self, execute: Callable[..., Any]) -> None:
        self._execute = execute

    def read(self, work: Callable[[Callable[..., Any]], T]) -> T:
        return work(self._execute)

    def write(self, work: Callable[[Callable[..., Any]], T], *, little: bool = False) -> T:
        return work(self._execute)

    write_at_once = read


def _join_sqlite3(store: Any, connection: sqlite3.Connection) -> Ask:
    if connection.text_factory in (bytes, bytearray):
        raise Misuse(
            "the text_factory of this connection gives texts as bytes, and texts of records cannot "
            "be read on it: lend one with text_factory = str"
        )

    def execute(statement: str, given: Any = ()) -> sqlite3.Cursor:
        cursor = connection.cursor()
        cursor.row_factory = None
        return cursor.execute(statement, given)

    must_be_same_file(store, execute)
    if not connection.in_transaction:
        if connection.isolation_level is None or getattr(connection, "autocommit", -1) is True:
            raise not_begun('connection.execute("BEGIN IMMEDIATE")')
        execute("BEGIN IMMEDIATE")  # what this driver would do before the next INSERT or UPDATE
    return _file_ask(execute)


def _file_ask(execute: Callable[..., Any]) -> Ask:
    file = _JoinedFile(execute)
    return lambda question: question(file)


def must_be_same_file(store: Any, execute: Callable[..., Any]) -> None:
    """Raise `Misuse` for a connection to another file of SQLite than the store's."""
    path = next(row[2] for row in execute("PRAGMA database_list").fetchall() if row[1] == "main")
    if not path or not os.path.samefile(path, store.place.path):
        raise Misuse(
            f"the records are in {store.place.path}, the connection to join is one to "
            f"{path or 'memory'}: they commit together only in one file. Name that one as store=…"
        )


def _join_aiosqlite(store: Any, connection: Any) -> Ask:
    """aiosqlite, from within SQLAlchemy's greenlet: its cursors look as if they blocked."""
    dbapi = connection.connection.dbapi_connection

    def execute(statement: str, given: Any = ()) -> Any:
        cursor = dbapi.cursor()
        cursor.execute(statement, given)
        return cursor

    must_be_same_file(store, execute)
    driver = connection.connection.driver_connection
    if not driver.in_transaction:
        if driver.isolation_level is None:
            raise not_begun("async with engine.begin() as connection:")
        execute("BEGIN IMMEDIATE")
    return _file_ask(execute)


TRANSACTIONS = SqlTransactions("sqlite", "Sqlite(), SQLAlchemy(engine) or Django()", join)
