"""The adapter for SQLAlchemy 2 that blocks: the handler gets a Session where a session factory is
given, and a Connection where it is an engine.

On SQLite the connection is the application's, but while it is lent to a handler it has the settings
of the store's own: those of a file in which nothing that was acknowledged may be lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from oncekey._engine.decisions import Ended
from oncekey.atomic._loans import revoke
from oncekey.atomic._loans_sqlalchemy import LENT, ConnectionLoan, watch
from oncekey.atomic._session_offer import Offer, borrowed, find_offer, offered
from oncekey.atomic._sqlalchemy_sessions import (
    check_offers,
    commit_what_was_begun,
    end_unused,
    engine_of,
    name_of,
    session_of,
    take_over,
)
from oncekey.atomic._transaction import Denied
from oncekey.stores import transactions
from oncekey.stores.sqlite.transactions import must_be_same_file
from oncekey.stores.sqlite.write_lock import Byte, Exclusive, Overdue

_TAKES = "SQLAlchemy(…) takes an engine, a sessionmaker, or a scoped_session such as db.session"
_WATCHED = "oncekey"
"""Where a connection's own notes tell who watches over it."""


class SQLAlchemy:
    """Transactions of an `Engine`, of a `sessionmaker`, or of a `scoped_session`, as Flask's
    `db.session` is one: then the transaction begins on the session of the request.
    """

    awaited = False

    def __init__(self, source: Any) -> None:
        engine = engine_of(source, _TAKES, awaited=False)
        self._source = source
        self._open = source if callable(source) else source.connect
        self.is_scoped = hasattr(source, "session_factory")
        self.bound_to_thread = self.is_scoped
        self.engine = name_of(engine)
        watch(engine)
        if engine.dialect.name == "sqlite":
            importlib.import_module("sqlalchemy.event").listen(engine, "close", _before_close)

    async def session(self) -> AsyncIterator[Any]:
        """The session of a request, as a dependency of FastAPI: `Depends(rows.session)`. In an
        atomic handler it is the one of its transaction; elsewhere an ordinary one, which is yours
        to commit.
        """
        check_offers(self._source, "SQLAlchemy")
        if (lent := borrowed(self)) is not None:
            yield lent
            return
        session = self._open()
        with offered(self, session) as offer:
            try:
                yield session
            finally:
                if not offer.is_lent:
                    await asyncio.to_thread(session.close)

    def begin(self, store: Any, record_id: bytes, seconds_max: float) -> _SQLAlchemy | None:
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
            commit_what_was_begun(session)
            session.begin()
            connection = session if hasattr(session, "exec_driver_sql") else session.connection()
            db = self._become_writer(store, connection)
            ask = transactions.join(store, connection)
            exclusive = None if db is None else Exclusive(db, seconds_max)  # the last that may fail
            return _SQLAlchemy(self, session, connection, byte, exclusive, ask, is_shared, offer)
        except BaseException:
            with contextlib.suppress(Exception):
                session.close()
            if byte is not None:
                byte.close()
            raise

    def forget(self, session: Any) -> None:
        """Whoever asks for the request's session from here on gets another one."""
        if self.is_scoped and self._source.registry.has() and self._source.registry() is session:
            self._source.registry.clear()

    def _become_writer(self, store: Any, connection: Any) -> Any:
        if not store.traits.one_writer:
            return None
        db = connection.connection.driver_connection
        must_be_same_file(store, db.execute)
        if db.in_transaction:  # by an event of the application's, and empty
            db.execute("ROLLBACK")
        store.place.set_up(db)
        db.execute("BEGIN IMMEDIATE")
        return db


def _before_close(_: object, record: Any) -> None:
    if _WATCHED in record.info:
        record.info[_WATCHED].leave()


class _SQLAlchemy:
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
        """Others of the request have it too."""
        self._offer = offer
        self._connection = connection
        """What the session was given: it may have lost it."""
        self._begun = connection.get_transaction()
        self._notes = connection.info
        if exclusive is not None:
            self._notes[_WATCHED] = exclusive
        self._byte = byte
        self._exclusive = exclusive
        self._ask = ask
        self._loan: ConnectionLoan | None = None
        self._is_ours = False
        self.used = False
        """Whether a statement was sent by the handler, or for it."""

    def lend(self) -> Any:
        self._loan = ConnectionLoan(self._connection)
        if self._offer is not None:
            self._offer.is_lent = True
        if self._is_shared:  # whoever has it need not ask for it
            event = importlib.import_module("sqlalchemy.event")
            event.listen(self._connection, "before_cursor_execute", self._note)
        return self._session

    def _note(self, *_: Any) -> None:
        self.used = True

    def taint(self) -> None:
        if self._loan is not None:
            self._loan.taint()

    def recall(self) -> bool:
        self._take_over()
        return self._loan is None or self._loan.recall(cut=False)

    def _take_over(self) -> None:
        """From here on the session is nobody's but ours."""
        if self._loan is not None and not self._is_ours:
            self._is_ours = True
            self._adapter.forget(self._session)
            self._session = take_over(self._session)

    def ask(self, question: Any) -> Any:
        if self._exclusive is not None:
            self._exclusive.check()
            if not self._begun.is_active:  # SQLite was not let end it: a commit would do nothing
                raise Denied
        if self._loan is not None and self._loan.ended:
            raise Ended
        return self._ask(question)

    def flush(self) -> None:
        if hasattr(self._session, "flush"):
            self._session.flush()

    def commit(self) -> None:
        try:
            with self._ending():
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
            with self._ending(), contextlib.suppress(Exception):
                if self._is_kept:
                    end_unused(self._session)
                else:
                    self._session.rollback()
            return None
        except Overdue as overdue:
            return str(overdue)
        finally:
            self._give_back()

    @property
    def _is_kept(self) -> bool:
        """Whether the request has this session still, since no handler had it."""
        return self._is_shared and self._loan is None

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        ends = contextlib.nullcontext() if self._exclusive is None else self._exclusive.ending()
        with ends:
            self._notes.pop(_WATCHED, None)  # it may be closed as soon as its pool has it
            if self._loan is not None:
                self._loan.end()
            yield

    def _give_back(self) -> None:
        if self._exclusive is not None:
            self._exclusive.free()
            self._notes.pop(_WATCHED, None)
        if not self._is_kept:
            self._close()
        if self._loan is not None:
            self._loan.forget()
        if self._byte is not None:
            self._byte.close()

    def _close(self) -> None:
        for each in (self._session, self._connection):
            with contextlib.suppress(Exception):  # what was not committed is gone
                each.close()
        revoke(self._session)

    def _abandon(self, loan: ConnectionLoan) -> None:
        """Somebody is in the connection, and cannot be waited for: it is left to them to close it,
        and the pool is given a stand-in, which it throws away.
        """
        self._notes.pop(_WATCHED, None)
        self._notes.pop(LENT, None)
        with contextlib.suppress(Exception):
            self._connection.invalidate()
        self._close()
        loan.close_when_left(self._leave)

    def _leave(self) -> None:
        """For the thread that leaves the connection."""
        if self._exclusive is not None:
            self._exclusive.leave()
            self._exclusive.free()
        if self._byte is not None:
            self._byte.close()
