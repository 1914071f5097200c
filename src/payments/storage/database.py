"""The database: holds the rows and oncekey's records, in shared transactions.

SQLite in WAL mode, or PostgreSQL. Reads do not wait for writers. SQLite has one writer at a time: a
transaction that may write says so at its beginning, because upgrading later could only fail.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

import oncekey
from payments.settings import Settings
from payments.storage import sqlite_statistics
from payments.storage.tables import metadata

TIMEOUT_S = 15.0
"""How long to wait for SQLite's one writer, or for a free connection."""

ONCEKEY_PARAMETERS = frozenset({"allow", "connect_timeout_s", "pgbouncer", "timeout_s"})
"""Parameters of a PostgreSQL URL that only oncekey understands."""


class Database:
    """One SQLAlchemy engine, with read and write transactions."""

    def __init__(self, settings: Settings) -> None:
        self.url = settings.database
        self.engine = _engine(self.url, settings.threads_max)
        self._write_engine = self.engine.execution_options(begin="BEGIN IMMEDIATE")
        # Writers to SQLite poll for their turn; within this process they queue.
        self._write_lock: AbstractContextManager[Any] = (
            threading.Lock() if self.url.startswith("sqlite:") else contextlib.nullcontext()
        )
        self.atomic_engine = self.engine.execution_options(begin=None)
        """For oncekey's atomic mode, which begins the transactions."""

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Open a transaction that may write. It rolls back if an exception is raised."""
        with self._write_lock, self._write_engine.begin() as connection:
            yield connection

    def read(self) -> AbstractContextManager[Connection]:
        """Open a consistent snapshot for reading."""
        return self.engine.connect()

    @contextmanager
    def rows(self) -> Iterator[Connection]:
        """Open the transaction of a handler whose only effects are rows.

        That is oncekey's, if there is one, which commits the rows with the response. An exception
        rolls back all rows, though an error response may be stored.
        """
        attempt = oncekey.current_or_none()
        if attempt is not None and attempt.connection is not None:
            with attempt.connection.begin_nested():
                yield attempt.connection
        else:
            with self.begin() as connection:
                yield connection

    def create_tables(self) -> None:
        """Create missing tables and indexes, also oncekey's.

        Several processes may do so at once, while servers run. Writers to a table wait while an
        index on it is built.
        """
        oncekey.migrate(self.url)
        with self._migration() as connection:
            metadata.create_all(connection)
        while self._create_index():
            """One transaction each: one for all could deadlock with a transaction that writes to
            the same tables in another order."""
        if self.url.startswith("sqlite:"):
            with self.begin() as connection:
                sqlite_statistics.write(connection)

    def _create_index(self) -> bool:
        """Create one index that a newer release adds to a table that exists: `create_all` skips it.

        False: none was missing.
        """
        with self._migration() as connection:
            index = next(_missing_indexes(connection), None)
            if index is not None:
                index.create(connection)
        return index is not None

    @contextmanager
    def _migration(self) -> Iterator[Connection]:
        with self.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(7277616)"))
            yield connection

    def close(self) -> None:
        self.engine.dispose()


def lock_for_transaction(connection: Connection, what: str) -> None:
    """Hold the lock named `what` until the transaction ends. SQLite has only one writer anyway."""
    if connection.dialect.name == "postgresql":
        key = sa.func.hashtextextended(what, 0)
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))


def _missing_indexes(connection: Connection) -> Iterator[sa.Index]:
    there = sa.inspect(connection).get_multi_indexes()
    names = {index["name"] for of_table in there.values() for index in of_table}
    for table in metadata.tables.values():
        yield from (index for index in table.indexes if index.name not in names)


def _engine(url: str, connections_max: int) -> Engine:
    limits: dict[str, Any] = {"pool_size": connections_max, "max_overflow": 8}
    limits["pool_timeout"] = TIMEOUT_S
    limits["hide_parameters"] = True  # errors are logged, and must not contain cards or secrets
    if url.startswith("sqlite:"):
        patience = {"timeout": TIMEOUT_S, "check_same_thread": False}
        engine = sa.create_engine(url, connect_args=patience, **limits)
        sa.event.listen(engine, "connect", _set_up_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine
    scheme, separator, rest = url.partition("://")
    if scheme not in ("postgresql", "postgres"):
        raise ValueError(f"the database is sqlite:///… or postgresql://…, not {scheme}{separator}…")
    rest = _strip_oncekey_parameters(rest)
    try:
        return sa.create_engine(f"postgresql+psycopg://{rest}", pool_pre_ping=False, **limits)
    except (ValueError, sa.exc.ArgumentError):  # its text may contain part of the password
        raise ValueError(
            "cannot read the database's URL: write postgresql://user:password@host:5432/name, "
            "and in the password %40 for @, %3A for : and %2F for /"
        ) from None


def _strip_oncekey_parameters(url: str) -> str:
    """Remove the parameters that only oncekey understands."""
    base, _, query = url.partition("?")
    pairs = [pair for pair in query.split("&") if pair.partition("=")[0] not in ONCEKEY_PARAMETERS]
    return f"{base}?{'&'.join(pairs)}" if any(pairs) else base


def _set_up_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions begin explicitly, see below
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")


def _begin_sqlite(connection: Connection) -> None:
    begin = connection.get_execution_options().get("begin", "BEGIN")
    if begin is not None:
        connection.exec_driver_sql(begin)
