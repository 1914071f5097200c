"""The adapter for SQLAlchemy 2 in an event loop: the handler gets an AsyncSession where a session
factory is given, and an AsyncConnection where it is an engine.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import AsyncIterator
from typing import Any

from oncekey._engine.decisions import Ended
from oncekey.atomic._loans import revoke, twin_of
from oncekey.atomic._loans_sqlalchemy import LENT, AsyncConnectionLoan, watch
from oncekey.atomic._session_offer import Offer, borrowed, find_offer, offered
from oncekey.atomic._sqlalchemy_sessions import (
    check_offers,
    commit_what_was_begun_async,
    end_unused,
    engine_of,
    name_of,
)
from oncekey.errors import Misuse
from oncekey.stores import transactions
from oncekey.stores.base import Store

_TAKES = "AsyncSQLAlchemy(…) takes an async engine, or an async_sessionmaker"


class AsyncSQLAlchemy:
    """Transactions of an `AsyncEngine`, or of an `async_sessionmaker`; on database servers."""

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
        watch(engine.sync_engine)

    async def session(self) -> AsyncIterator[Any]:
        """The session of a request, as a dependency of FastAPI: `Depends(rows.session)`. In an
        atomic handler it is the one of its transaction; elsewhere an ordinary one, which is yours
        to commit.
        """
        check_offers(self._source, "AsyncSQLAlchemy")
        if (lent := borrowed(self)) is not None:
            yield lent
            return
        session = self._open()
        with offered(self, session) as offer:
            try:
                yield session
            finally:
                if not offer.is_lent:
                    await session.close()

    async def begin(self, store: Store, record_id: bytes, seconds_max: float) -> _AsyncSQLAlchemy:
        offer = find_offer(self)
        session = self._open() if offer is None else offer.session
        try:
            await commit_what_was_begun_async(session)
            if hasattr(session, "exec_driver_sql"):
                await session.start()
            await session.begin()
            ask = await transactions.ajoin(store, session)
            connection = session
            if hasattr(session, "sync_session"):
                connection = await session.connection()
            return _AsyncSQLAlchemy(session, connection.sync_connection, ask, offer)
        except BaseException:
            await session.close()
            raise


class _AsyncSQLAlchemy:
    def __init__(
        self, session: Any, connection: Any, ask: transactions.AsyncAsk, offer: Offer | None
    ) -> None:
        self._session = session
        self._connection = connection
        """What blocks, within the session's."""
        self._notes = connection.info
        self._offer = offer
        self._ask = ask
        self._loan: AsyncConnectionLoan | None = None
        self._is_ours = False
        self.used = False
        """Whether a statement was sent by the handler, or for it."""

    def lend(self) -> Any:
        self._loan = AsyncConnectionLoan(self._connection)
        if self._offer is not None:  # whoever has it need not ask for it
            self._offer.is_lent = True
            event = importlib.import_module("sqlalchemy.event")
            event.listen(self._connection, "before_cursor_execute", self._note)
        return self._session

    def _note(self, *_: Any) -> None:
        self.used = True

    def taint(self) -> None:
        if self._loan is not None:
            self._loan.tainted = True

    async def recall(self) -> bool:
        self._take_over()
        return self._loan is None or await self._loan.recall(cut=False)

    def _take_over(self) -> None:
        """From here on the session is nobody's but ours."""
        lent = self._session
        if self._loan is not None and not self._is_ours and hasattr(lent, "sync_session"):
            self._session = twin_of(lent)
            revoke(lent)
        self._is_ours = True

    async def ask(self, question: Any) -> Any:
        if self._loan is not None and self._loan.ended:
            raise Ended
        return await self._ask(question)

    async def flush(self) -> None:
        if hasattr(self._session, "flush"):
            await self._session.flush()

    async def commit(self) -> None:
        try:
            if self._loan is not None:
                self._loan.end()
            await self._session.commit()
        finally:
            await self._give_back()

    async def rollback(self) -> None:
        try:
            with contextlib.suppress(Exception):  # what was not committed is gone
                await self._undo()
        finally:
            await self._give_back()

    async def _undo(self) -> None:
        self._take_over()
        if self._loan is not None:
            if await self._loan.recall(cut=True):
                self._loan.end()
            else:  # it is left to whoever is in there, and its pool throws the stand-in away
                self._notes.pop(LENT, None)
                self._connection.invalidate()
            await self._session.rollback()
        elif self._offer is not None:
            await self._session.run_sync(end_unused)
        else:
            await self._session.rollback()

    async def _give_back(self) -> None:
        if self._offer is not None and self._loan is None:
            return  # the request has this session still
        session = self._session
        with contextlib.suppress(Exception):
            await session.close()
        if self._loan is not None:
            self._loan.forget()
        if hasattr(session, "sync_session"):
            revoke(session.sync_session)
        revoke(session)
