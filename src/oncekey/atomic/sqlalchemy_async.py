"""The async adapter for SQLAlchemy 2: the handler gets an AsyncSession if you pass a session
factory, an AsyncConnection if you pass an engine.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import AsyncIterator
from typing import Any

from oncekey._engine.decisions import Ended
from oncekey.atomic._loans import revoke, twin_of
from oncekey.atomic._sqlalchemy_loans import LOAN, AsyncConnectionLoan, watch_pool
from oncekey.atomic._sqlalchemy_sessions import (
    Offer,
    commit_earlier_work_async,
    current_session,
    end_unused,
    engine_of,
    find_offer,
    must_be_session_factory,
    name_of,
    offer_session,
)
from oncekey.errors import Misuse
from oncekey.stores import transactions
from oncekey.stores.base import Store

_TAKES = "AsyncSQLAlchemy(…) takes an async engine, or an async_sessionmaker"


class AsyncSQLAlchemy:
    """Transactions of an `AsyncEngine` or an `async_sessionmaker`; not on SQLite."""

    awaited = True

    def __init__(self, source: Any) -> None:
        engine = engine_of(source, _TAKES, awaited=True)
        self._source = source
        self._open = source if callable(source) else source.connect
        self.engine = name_of(engine)
        if engine.dialect.name == "sqlite":
            raise Misuse(
                "AsyncSQLAlchemy cannot bound a transaction of aiosqlite: use SQLAlchemy(engine) "
                "with sqlite:///…, which serves async applications too"
            )
        watch_pool(engine.sync_engine)

    async def session(self) -> AsyncIterator[Any]:
        """A FastAPI dependency that yields the request's session: `Depends(rows.session)`. In an
        atomic handler it is the transaction's; elsewhere an ordinary one, which you commit.
        """
        must_be_session_factory(self._source, "AsyncSQLAlchemy")
        if (session := current_session(self)) is not None:
            yield session
            return
        session = self._open()
        with offer_session(self, session) as offer:
            try:
                yield session
            finally:
                if not offer.is_lent:
                    await session.close()

    async def begin(
        self, store: Store, record_id: bytes, seconds_max: float
    ) -> _AsyncSQLAlchemyTransaction:
        offer = find_offer(self)
        session = self._open() if offer is None else offer.session
        try:
            await commit_earlier_work_async(session)
            if hasattr(session, "exec_driver_sql"):
                await session.start()
            await session.begin()
            ask = await transactions.ajoin(store, session)
            connection = session
            if hasattr(session, "sync_session"):
                connection = await session.connection()
            return _AsyncSQLAlchemyTransaction(session, connection.sync_connection, ask, offer)
        except BaseException:
            await session.close()
            raise


class _AsyncSQLAlchemyTransaction:
    def __init__(
        self, session: Any, connection: Any, ask: transactions.AsyncAsk, offer: Offer | None
    ) -> None:
        self._session = session
        self._connection = connection
        """The blocking connection inside the session's."""
        self._info = connection.info
        self._offer = offer
        self._ask = ask
        self._loan: AsyncConnectionLoan | None = None
        self._is_taken_over = False
        self.was_used = False
        """Whether a statement was sent by or for the handler."""

    def lend(self) -> Any:
        self._loan = AsyncConnectionLoan(self._connection)
        if self._offer is not None:  # code that has it does not take it from the loan
            self._offer.is_lent = True
            event = importlib.import_module("sqlalchemy.event")
            event.listen(self._connection, "before_cursor_execute", self._note_use)
        return self._session

    def _note_use(self, *_: Any) -> None:
        self.was_used = True

    def taint(self) -> None:
        if self._loan is not None:
            self._loan.is_tainted = True

    async def recall(self) -> bool:
        self._take_over()
        return self._loan is None or await self._loan.recall(cut=False)

    def _take_over(self) -> None:
        """Take the session over, so that only this code can use it."""
        session = self._session
        if self._loan is not None and not self._is_taken_over and hasattr(session, "sync_session"):
            self._session = twin_of(session)
            revoke(session)
        self._is_taken_over = True

    async def ask(self, question: Any) -> Any:
        if self._loan is not None and self._loan.is_ended:
            raise Ended
        return await self._ask(question)

    async def flush(self) -> None:
        if hasattr(self._session, "flush"):
            await self._session.flush()

    async def commit(self) -> None:
        try:
            if self._loan is not None:
                self._loan.take_back()
            await self._session.commit()
        finally:
            await self._give_back()

    async def rollback(self) -> None:
        try:
            with contextlib.suppress(Exception):  # what is not committed is gone
                await self._recall_and_roll_back()
        finally:
            await self._give_back()

    async def _recall_and_roll_back(self) -> None:
        self._take_over()
        if self._loan is not None:
            if await self._loan.recall(cut=True):
                self._loan.take_back()
            else:  # its user closes it, and the pool drops the stand-in
                self._info.pop(LOAN, None)
                self._connection.invalidate()
            await self._session.rollback()
        elif self._offer is not None:
            await self._session.run_sync(end_unused)
        else:
            await self._session.rollback()

    async def _give_back(self) -> None:
        if self._offer is not None and self._loan is None:
            return  # the request keeps this session
        session = self._session
        with contextlib.suppress(Exception):
            await session.close()
        if self._loan is not None:
            self._loan.release()
        if hasattr(session, "sync_session"):
            revoke(session.sync_session)
        revoke(session)
