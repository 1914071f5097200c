"""The adapter for Django: the view runs in `transaction.atomic()` with the record.

Django's connections belong to threads, so this is for WSGI and for Django's own middleware. The
application imports Django and sets it up before the first request.
"""

from __future__ import annotations

import contextlib
import importlib
import sqlite3
from typing import Any

from oncekey._engine.decisions import Ended
from oncekey.atomic._driver_loans import lend
from oncekey.atomic._loans import DriverLoan
from oncekey.atomic._transaction import Denied
from oncekey.atomic.sqlite import SqliteLoan
from oncekey.errors import StoreUnavailable
from oncekey.stores import transactions
from oncekey.stores.sqlite.transactions import must_be_same_file
from oncekey.stores.sqlite.write_lock import Byte, Exclusive, Overdue

_ENGINES = {"postgresql": "postgres"}
_WRITE = "UPDATE oncekey_meta SET fence_floor = fence_floor"


class Django:
    """Transactions on the connection `alias`, which the view's ORM uses anyway."""

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

    def begin(self, store: Any, record_id: bytes, seconds_max: float) -> _DjangoTransaction | None:
        one_writer = store.traits.one_writer
        byte = Byte.take(store.place.path, record_id) if one_writer else None
        if one_writer and byte is None:
            return None
        connection = self._connection()
        atomic = importlib.import_module("django.db.transaction").atomic(using=self._alias)
        try:
            db = _enter(store, connection, atomic)
            ask = transactions.join(store, connection)
            exclusive = None if db is None else Exclusive(db, seconds_max)  # last, as it may fail
            return _DjangoTransaction(connection, atomic, byte, exclusive, ask)
        except BaseException as error:
            if connection.in_atomic_block:
                atomic.__exit__(type(error), error, None)
            if byte is not None:
                byte.close()
            raise


def _enter(store: Any, connection: Any, atomic: Any) -> sqlite3.Connection | None:
    if not store.traits.one_writer:
        atomic.__enter__()
        return None
    connection.ensure_connection()
    db: sqlite3.Connection = connection.connection
    must_be_same_file(store, db.execute)
    store.place.set_up(db)
    atomic.__enter__()
    db.execute(_WRITE)  # a transaction that starts with a read may later fail to write
    return db


class _DjangoTransaction:
    def __init__(
        self,
        connection: Any,
        atomic: Any,
        byte: Byte | None,
        exclusive: Exclusive | None,
        ask: transactions.Ask,
    ) -> None:
        self._connection = connection
        self._driver = connection.connection
        self._atomic = atomic
        self._byte = byte
        self._exclusive = exclusive
        self._ask = ask
        self._loan: DriverLoan | None = None
        self._is_tainted = False
        self._is_shared = connection.allow_thread_sharing
        """Other threads could use it before the view had it."""
        self.was_used = False
        """Whether the view sent a statement."""
        connection._close = self._close

    def lend(self) -> Any:
        """Lend the driver's connection behind Django's, which stays in place."""
        self._loan = lend(self._driver)
        self._connection.connection = self._loan.stand_in
        self._connection.execute_wrappers.append(self._note_use)
        return self._connection

    def _note_use(self, execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        self.was_used = True
        return execute(sql, params, many, context)

    def recall(self) -> bool:
        return self._loan is None or self._recall(self._loan, cut=False)

    def _recall(self, loan: DriverLoan, *, cut: bool) -> bool:
        """Recall the loan, and end any sharing with other threads that the view started: they would
        share this thread's next view too.
        """
        while not self._is_shared and self._connection.allow_thread_sharing:
            self._connection.dec_thread_sharing()
        return loan.recall(cut=cut)

    def taint(self) -> None:
        self._is_tainted = True

    def ask(self, question: Any) -> Any:
        if self._exclusive is not None:
            self._exclusive.check()
        if self._connection.closed_in_transaction:
            raise Ended if self._exclusive is None else Denied
        if not self._has_connection:
            raise Ended
        if self._loan is not None and self._loan.is_ended:
            raise Ended if self._exclusive is None else Denied
        if self._connection.needs_rollback:  # Django would roll back silently
            raise StoreUnavailable(
                "the view asked for a rollback, or ignored a database error: put what may fail "
                "into its own transaction.atomic()"
            )
        return self._ask(question)

    @property
    def _has_connection(self) -> bool:
        """Whether Django still has its connection."""
        lent = self._driver if self._loan is None else self._loan.stand_in
        return self._connection.connection in (self._driver, lent)

    def flush(self) -> None:
        """Nothing to flush: the ORM writes at once."""

    def commit(self) -> None:
        try:
            with self._end_exclusive():
                self._take_back()
                self._atomic.__exit__(None, None, None)
        finally:
            self._give_back()

    def rollback(self) -> str | None:
        if self._loan is not None and not self._recall(self._loan, cut=True):
            self._abandon(self._loan)
            return None
        try:
            with self._end_exclusive():
                self._take_back()
                self._roll_back()
            return None
        except Overdue as overdue:
            self._take_back()
            self._roll_back()
            return str(overdue)
        finally:
            self._give_back()

    def _roll_back(self) -> None:
        undone = RuntimeError("rolled back")
        with contextlib.suppress(Exception):  # what is not committed is gone
            self._atomic.__exit__(RuntimeError, undone, None)

    def _end_exclusive(self) -> Any:
        return contextlib.nullcontext() if self._exclusive is None else self._exclusive.may_end()

    def _take_back(self) -> None:
        """Put the driver's connection back behind Django's, unless the view closed it."""
        connection = self._connection
        if self._loan is not None and connection.connection is self._loan.stand_in:
            connection.connection = self._driver

    def _close(self) -> None:
        """Replaces the connection's own `_close` while it is lent."""
        if self._exclusive is not None:
            self._exclusive.leave()
        self._take_back()
        type(self._connection)._close(self._connection)

    def _give_back(self) -> None:
        connection = self._connection
        if self._exclusive is not None:
            self._exclusive.free()
        del connection._close
        if self._note_use in connection.execute_wrappers:
            connection.execute_wrappers.remove(self._note_use)
        is_tainted = self._is_tainted or (self._loan is not None and self._loan.is_tainted)
        if is_tainted and not connection.in_atomic_block:
            connection.close()
        if self._byte is not None:
            self._byte.close()

    def _abandon(self, loan: DriverLoan) -> None:
        """A statement is still running: let Django drop a stand-in, and let the thread that runs it
        close the connection.
        """
        connection = self._connection
        connection._close = lambda: None
        self._roll_back()
        connection.close()
        del connection._close
        connection.execute_wrappers.remove(self._note_use)
        if isinstance(loan, SqliteLoan):
            loan.when_free(self._leave)

    def _leave(self) -> None:
        """Close the connection, in the thread that used it last."""
        if self._exclusive is not None:
            self._exclusive.leave()
            self._exclusive.free()
        self._driver.close()
        if self._byte is not None:
            self._byte.close()
