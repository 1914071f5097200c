"""The adapter for Django: what the view writes through the ORM is in `transaction.atomic()`.

Django's connections belong to threads, so this is for WSGI, and for Django's own middleware.
Importing Django is left to the application: it must have been set up before the first request.
"""

from __future__ import annotations

import contextlib
import importlib
import sqlite3
from typing import Any

from oncekey.atomic.exclusive import Byte, Exclusive, Overdue
from oncekey.errors import StoreUnavailable
from oncekey.stores import join

_ENGINES = {"postgresql": "postgres"}
_WRITE = "UPDATE oncekey_meta SET fence_floor = fence_floor"


class Django:
    """Transactions of the connection `alias`. The handler needs no connection: its ORM has it."""

    awaited = False
    bound_to_thread = True

    def __init__(self, alias: str = "default") -> None:
        self._alias = alias

    @property
    def engine(self) -> str:
        vendor: str = self._connection().vendor
        return _ENGINES.get(vendor, vendor)

    def _connection(self) -> Any:
        return importlib.import_module("django.db").connections[self._alias]

    def begin(self, store: Any, record_id: bytes, seconds_max: float) -> _Django | None:
        byte = Byte.take(store.place.path, record_id) if store.name == "sqlite" else None
        if store.name == "sqlite" and byte is None:
            return None
        connection = self._connection()
        atomic = importlib.import_module("django.db.transaction").atomic(using=self._alias)
        try:
            db = _enter(store, connection, atomic)
            ask = join.blocking(store, connection)
            exclusive = None if db is None else Exclusive(db, seconds_max)  # the last that may fail
            return _Django(connection, atomic, byte, exclusive, ask)
        except BaseException as error:
            if connection.in_atomic_block:
                atomic.__exit__(type(error), error, None)
            if byte is not None:
                byte.close()
            raise


def _enter(store: Any, connection: Any, atomic: Any) -> sqlite3.Connection | None:
    if store.name != "sqlite":
        atomic.__enter__()
        return None
    connection.ensure_connection()
    db: sqlite3.Connection = connection.connection
    join.must_be_same_file(store, db.execute)
    store.place.set_up(db)
    atomic.__enter__()
    db.execute(_WRITE)  # a transaction that begins by reading may find later that it cannot write
    return db


class _Django:
    def __init__(
        self,
        connection: Any,
        atomic: Any,
        byte: Byte | None,
        exclusive: Exclusive | None,
        ask: join.Ask,
    ) -> None:
        self.connection = connection
        self._atomic = atomic
        self._byte = byte
        self._exclusive = exclusive
        self._ask = ask
        if exclusive is not None:
            connection._close = self._close

    def ask(self, question: Any) -> Any:
        if self._exclusive is not None:
            self._exclusive.check()
        if self.connection.needs_rollback:  # Django would roll back, and not say so
            raise StoreUnavailable(
                "the view asked for a rollback, or let an error of the database pass: put what "
                "may fail into a transaction.atomic() of its own"
            )
        return self._ask(question)

    def flush(self) -> None:
        """The ORM holds nothing back."""

    def commit(self) -> None:
        try:
            with self._ending():
                self._atomic.__exit__(None, None, None)
        finally:
            self._give_back()

    def rollback(self) -> str | None:
        try:
            with self._ending():
                self._roll_back()
            return None
        except Overdue as overdue:
            self._roll_back()
            return str(overdue)
        finally:
            self._give_back()

    def _roll_back(self) -> None:
        undone = RuntimeError("rolled back")
        with contextlib.suppress(Exception):  # what was not committed is gone
            self._atomic.__exit__(RuntimeError, undone, None)

    def _ending(self) -> Any:
        return contextlib.nullcontext() if self._exclusive is None else self._exclusive.ending()

    def _close(self) -> None:
        """In place of the connection's own while it is lent."""
        if self._exclusive is not None:
            self._exclusive.leave()
        type(self.connection)._close(self.connection)

    def _give_back(self) -> None:
        if self._exclusive is not None:
            self._exclusive.free()
            del self.connection._close
        if self._byte is not None:
            self._byte.close()
