"""The blocking adapter for SQLAlchemy 2: the handler gets a Session if you pass a session factory,
a Connection if you pass an engine.

On SQLite, while the application's connection is lent to a handler, it has the store's own settings:
those of a file that loses nothing that was acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from oncekey._engine.decisions import Ended
from oncekey.atomic._loans import revoke
from oncekey.atomic._sqlalchemy_loans import LOAN, ConnectionLoan, watch_pool
from oncekey.atomic._sqlalchemy_sessions import (
    Offer,
    commit_earlier_work,
    current_session,
    end_unused,
    engine_of,
    find_offer,
    must_be_session_factory,
    name_of,
    offer_session,
    session_of,
    take_over,
)
from oncekey.atomic._transaction import Denied
from oncekey.stores import transactions
from oncekey.stores.sqlite.transactions import must_be_same_file
from oncekey.stores.sqlite.write_lock import Byte, Exclusive, Overdue

_TAKES = "SQLAlchemy(…) takes an engine, a sessionmaker, or a scoped_session such as db.session"
_WATCHED = "oncekey"
"""The key in a connection's `info` under which its watcher is found."""


class SQLAlchemy:
    """Transactions of an `Engine`, a `sessionmaker`, or a `scoped_session` such as Flask's
    `db.session`; with that the transaction begins on the request's session.
    """

    awaited = False

    def __init__(self, source: Any) -> None:
        engine = engine_of(source, _TAKES, awaited=False)
        self._source = source
        self._open = source if callable(source) else source.connect
        self.is_scoped = hasattr(source, "session_factory")
        self.bound_to_thread = self.is_scoped
        self.engine = name_of(engine)
        watch_pool(engine)
        if engine.dialect.name == "sqlite":
            importlib.import_module("sqlalchemy.event").listen(engine, "close", _before_close)

    async def session(self) -> AsyncIterator[Any]:
        """A FastAPI dependency that yields the request's session: `Depends(rows.session)`. In an
        atomic handler it is the transaction's; elsewhere an ordinary one, which you commit.
        """
        must_be_session_factory(self._source, "SQLAlchemy")
        if (session := current_session(self)) is not None:
            yield session
            return
        session = self._open()
        with offer_session(self, session) as offer:
            try:
                yield session
            finally:
                if not offer.is_lent:
                    await asyncio.to_thread(session.close)

    def begin(
        self, store: Any, record_id: bytes, seconds_max: float
    ) -> _SQLAlchemyTransaction | None:
        one_writer = store.traits.one_writer
        byte = Byte.take(store.place.path, record_id) if one_writer else None
        if one_writer and byte is None:
            return None
        offer = find_offer(self)
        if offer is not None:
            session = offer.session
        else:
            session = session_of(self._source) if self.is_scoped else self._open()
        is_shared = offer is not None or self.is_scoped
        try:
            commit_earlier_work(session)
            session.begin()
            connection = session if hasattr(session, "exec_driver_sql") else session.connection()
            db = self._become_writer(store, connection)
            ask = transactions.join(store, connection)
            exclusive = None if db is None else Exclusive(db, seconds_max)  # last, as it may fail
            return _SQLAlchemyTransaction(
                self, session, connection, byte, exclusive, ask, is_shared, offer
            )
        except BaseException:
            with contextlib.suppress(Exception):
                session.close()
            if byte is not None:
                byte.close()
            raise

    def forget(self, session: Any) -> None:
        """Remove the session from its scope, so that later code gets another one."""
        if self.is_scoped and self._source.registry.has() and self._source.registry() is session:
            self._source.registry.clear()

    def _become_writer(self, store: Any, connection: Any) -> Any:
        if not store.traits.one_writer:
            return None
        db = connection.connection.driver_connection
        must_be_same_file(store, db.execute)
        if db.in_transaction:  # begun by one of the application's events, and empty
            db.execute("ROLLBACK")
        store.place.set_up(db)
        db.execute("BEGIN IMMEDIATE")
        return db


def _before_close(_: object, record: Any) -> None:
    if _WATCHED in record.info:
        record.info[_WATCHED].leave()


class _SQLAlchemyTransaction:
    def __init__(
        self,
        adapter: SQLAlchemy,
        session: Any,
        connection: Any,
        byte: Byte | None,
        exclusive: Exclusive | None,
        ask: transactions.Ask,
        is_shared: bool,
        offer: Offer | None,
    ) -> None:
        self._adapter = adapter
        self._session = session
        self._is_shared = is_shared
        """Whether other code of the request has the session too."""
        self._offer = offer
        self._connection = connection
        """The session's connection at the start; the session may have lost it since."""
        self._driver_transaction = connection.get_transaction()
        self._info = connection.info
        if exclusive is not None:
            self._info[_WATCHED] = exclusive
        self._byte = byte
        self._exclusive = exclusive
        self._ask = ask
        self._loan: ConnectionLoan | None = None
        self._is_taken_over = False
        self.was_used = False
        """Whether a statement was sent by or for the handler."""

    def lend(self) -> Any:
        self._loan = ConnectionLoan(self._connection)
        if self._offer is not None:
            self._offer.is_lent = True
        if self._is_shared:  # code that has it does not take it from the loan
            event = importlib.import_module("sqlalchemy.event")
            event.listen(self._connection, "before_cursor_execute", self._note_use)
        return self._session

    def _note_use(self, *_: Any) -> None:
        self.was_used = True

    def taint(self) -> None:
        if self._loan is not None:
            self._loan.taint()

    def recall(self) -> bool:
        self._take_over()
        return self._loan is None or self._loan.recall(cut=False)

    def _take_over(self) -> None:
        """Take the session over, so that only this code can use it."""
        if self._loan is not None and not self._is_taken_over:
            self._is_taken_over = True
            self._adapter.forget(self._session)
            self._session = take_over(self._session)

    def ask(self, question: Any) -> Any:
        if self._exclusive is not None:
            self._exclusive.check()
            if (
                not self._driver_transaction.is_active
            ):  # SQLite was not let end it: a commit would do nothing
                raise Denied
        if self._loan is not None and self._loan.is_ended:
            raise Ended
        return self._ask(question)

    def flush(self) -> None:
        if hasattr(self._session, "flush"):
            self._session.flush()

    def commit(self) -> None:
        try:
            with self._end_exclusive():
                self._session.commit()
        finally:
            self._give_back()

    def rollback(self) -> str | None:
        loan = self._loan
        self._take_over()
        if loan is not None and not loan.recall(cut=True):
            self._abandon(loan)
            return None
        try:
            with self._end_exclusive(), contextlib.suppress(Exception):
                if self._stays_with_request:
                    end_unused(self._session)
                else:
                    self._session.rollback()
            return None
        except Overdue as overdue:
            return str(overdue)
        finally:
            self._give_back()

    @property
    def _stays_with_request(self) -> bool:
        """Whether the request keeps this session, because no handler had it."""
        return self._is_shared and self._loan is None

    @contextlib.contextmanager
    def _end_exclusive(self) -> Iterator[None]:
        ends = contextlib.nullcontext() if self._exclusive is None else self._exclusive.may_end()
        with ends:
            self._info.pop(_WATCHED, None)  # the pool may close it at once
            if self._loan is not None:
                self._loan.take_back()
            yield

    def _give_back(self) -> None:
        if self._exclusive is not None:
            self._exclusive.free()
            self._info.pop(_WATCHED, None)
        if not self._stays_with_request:
            self._close()
        if self._loan is not None:
            self._loan.release()
        if self._byte is not None:
            self._byte.close()

    def _close(self) -> None:
        for each in (self._session, self._connection):
            with contextlib.suppress(Exception):  # what is not committed is gone
                each.close()
        revoke(self._session)

    def _abandon(self, loan: ConnectionLoan) -> None:
        """A statement is still running: let the thread that runs it close the connection, and give
        the pool a stand-in, which it drops.
        """
        self._info.pop(_WATCHED, None)
        self._info.pop(LOAN, None)
        with contextlib.suppress(Exception):
            self._connection.invalidate()
        self._close()
        loan.close_when_free(self._leave)

    def _leave(self) -> None:
        """Release the locks, in the thread that used the connection last."""
        if self._exclusive is not None:
            self._exclusive.leave()
            self._exclusive.free()
        if self._byte is not None:
            self._byte.close()
