"""Adapters for SQLAlchemy 2: the handler gets a Session where a session factory is given, and a
Connection where it is an engine.

On SQLite the connection is the application's, but while it is lent to a handler it has the settings
of the store's own: those of a file in which nothing that was acknowledged may be lost.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

from oncekey.atomic.exclusive import Byte, Exclusive, Overdue
from oncekey.atomic.lent import AsyncLent, must_open
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.stores import join
from oncekey.stores.base import Store

_ENGINES = {"postgresql": "postgres", "mariadb": "mysql"}
_WATCHED = "oncekey"
"""Where a connection's own notes tell who watches over it."""


class SQLAlchemy:
    """Transactions of an `Engine`, or of a `sessionmaker`."""

    awaited = False

    def __init__(self, source: Any) -> None:
        takes = "SQLAlchemy(…) takes an engine, or a sessionmaker"
        engine = _engine_of(source, takes, awaited=False)
        self._open = source if callable(source) else source.connect
        self.engine = _name_of(engine)
        if self.engine == "sqlite":
            importlib.import_module("sqlalchemy.event").listen(engine, "close", _before_close)

    def begin(self, store: Any, record_id: bytes, seconds_max: float) -> _SQLAlchemy | None:
        byte = Byte.take(store.place.path, record_id) if self.engine == "sqlite" else None
        if self.engine == "sqlite" and byte is None:
            return None
        session = self._open()
        try:
            session.begin()
            connection = session if hasattr(session, "exec_driver_sql") else session.connection()
            db = self._become_writer(store, connection)
            ask = join.blocking(store, connection)
            exclusive = None if db is None else Exclusive(db, seconds_max)  # the last that may fail
            return _SQLAlchemy(session, connection, byte, exclusive, ask)
        except BaseException:
            with contextlib.suppress(Exception):
                session.close()
            if byte is not None:
                byte.close()
            raise

    def _become_writer(self, store: Any, connection: Any) -> Any:
        if self.engine != "sqlite":
            return None
        db = connection.connection.driver_connection
        join.must_be_same_file(store, db.execute)
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
        session: Any,
        connection: Any,
        byte: Byte | None,
        exclusive: Exclusive | None,
        ask: join.Ask,
    ) -> None:
        self.connection = session
        self._lent = connection
        """What the session was given: it may have lost it."""
        self._begun = connection.get_transaction()
        self._notes = connection.info
        if exclusive is not None:
            self._notes[_WATCHED] = exclusive
        self._byte = byte
        self._exclusive = exclusive
        self._ask = ask

    def ask(self, question: Any) -> Any:
        if self._exclusive is not None:
            self._exclusive.check()
            if not self._begun.is_active:  # SQLite was not let end it: a commit would do nothing
                raise StoreUnavailable(
                    "the handler tried to end its transaction, or closed its session: leave both "
                    "to oncekey, and use a savepoint to undo a part"
                )
        return self._ask(question)

    def flush(self) -> None:
        if hasattr(self.connection, "flush"):
            self.connection.flush()

    def commit(self) -> None:
        try:
            with self._ending():
                self.connection.commit()
        finally:
            self._give_back()

    def rollback(self) -> str | None:
        try:
            with self._ending(), contextlib.suppress(Exception):
                self.connection.rollback()
            return None
        except Overdue as overdue:
            return str(overdue)
        finally:
            self._give_back()

    def _ending(self) -> Any:
        return contextlib.nullcontext() if self._exclusive is None else self._exclusive.ending()

    def _give_back(self) -> None:
        if self._exclusive is not None:
            self._exclusive.free()
            self._notes.pop(_WATCHED, None)
        for each in (self.connection, self._lent):
            with contextlib.suppress(Exception):  # what was not committed is gone
                each.close()
        if self._byte is not None:
            self._byte.close()


class AsyncSQLAlchemy:
    """Transactions of an `AsyncEngine`, or of an `async_sessionmaker`; on database servers."""

    awaited = True

    def __init__(self, source: Any) -> None:
        takes = "AsyncSQLAlchemy(…) takes an async engine, or an async_sessionmaker"
        engine = _engine_of(source, takes, awaited=True)
        self._open = source if callable(source) else source.connect
        self.engine = _name_of(engine)
        if self.engine == "sqlite":
            raise Misuse(
                "AsyncSQLAlchemy cannot bound a transaction of aiosqlite: use SQLAlchemy(engine) "
                "with sqlite:///…, which serves async applications too"
            )

    async def begin(self, store: Store, record_id: bytes, seconds_max: float) -> _AsyncSQLAlchemy:
        session = self._open()
        try:
            if hasattr(session, "exec_driver_sql"):
                await session.start()
            await session.begin()
            ask = await join.awaited(store, session)
        except BaseException:
            await session.close()
            raise

        async def give_back() -> None:
            with contextlib.suppress(Exception):  # what was not committed is gone
                await session.close()

        return _AsyncSQLAlchemy(session, ask, give_back)


class _AsyncSQLAlchemy(AsyncLent):
    async def flush(self) -> None:
        if hasattr(self.connection, "flush"):
            await self.connection.flush()


def _engine_of(source: Any, takes: str, *, awaited: bool) -> Any:
    """The engine behind it. Raises `Misuse` for what is none, or of the other kind."""
    must_open(source, takes)
    engine = source.kw.get("bind") if hasattr(source, "kw") else source
    if engine is None:
        raise Misuse("the session factory has no engine: write sessionmaker(engine)")
    opens = hasattr(engine, "dialect") and hasattr(engine, "dispose")
    if not opens or hasattr(engine, "sync_engine") is not awaited:
        raise Misuse(f"{takes}, not a {type(engine).__name__}")
    return engine


def _name_of(engine: Any) -> str:
    name: str = engine.dialect.name
    return _ENGINES.get(name, name)
