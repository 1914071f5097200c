"""Driving one atomic operation: its transaction on one side, the store's own connections on the
other.

`Unit` blocks and `AsyncUnit` awaits; which of them an adapter is for, it says by its `awaited`. A
blocking adapter serves an event loop too, in threads.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from oncekey._core.op import Op, arun, run
from oncekey._engine.decisions import Execute
from oncekey.atomic._loans import STAYED, Loan
from oncekey.atomic._transaction import Begin, Commit, Flush, Outside, Rollback, Work
from oncekey.errors import OncekeyError, StoreUnavailable
from oncekey.stores import transactions
from oncekey.stores.base import Store
from oncekey.stores.connection import Outage
from oncekey.stores.tiered.cache_calls import Cached

if TYPE_CHECKING:
    from oncekey._engine.attempt import Attempt

CALLERS = "any"
"""The engine of adapters that stand in a transaction of a caller's."""
THREADS_MAX = 32
"""For blocking adapters in an event loop: most transactions that are begun at once, and most
statements under way.
"""

_FAILED_BEFORE = "25P02"
_WENT_ON = (
    "the handler went on after a statement of its own had failed, which undoes the whole "
    "transaction on PostgreSQL: raise its error, or put what may fail into a savepoint"
)


class Transaction(Protocol):
    """An open transaction. Each method but `lend` and `taint` awaits or blocks, as its adapter
    does.
    """

    def lend(self) -> Any:
        """What the handler gets. It is of no use any more once it was recalled."""

    def taint(self) -> None:
        """The handler was cut off: the connection is to be closed instead of given back."""

    def recall(self) -> Any:
        """Take back what was lent. False: somebody stays in the middle of a statement."""

    def ask(self, question: Any) -> Any:
        """Ask a question of the store's, within it."""

    def flush(self) -> Any:
        """Write what a session still holds back."""

    def commit(self) -> Any:
        """Commit, and give the connection back, whatever happens."""

    def rollback(self) -> Any:
        """Recall what was lent, cutting off whoever is in a statement; roll back, and give the
        connection back. Why it had ended before, if it had.
        """


class Adapter(Protocol):
    """Opens transactions where the application has its rows."""

    @property
    def engine(self) -> str:
        """The name of the store whose records can be there too."""

    @property
    def awaited(self) -> bool:
        """Whether it is for an event loop."""

    def begin(self, store: Store, record_id: bytes, seconds_max: float) -> Any:
        """A `Transaction`, or None where somebody else has the id."""


_proven: WeakSet[Any] = WeakSet()
"""Adapters whose database was seen to be the store's."""


_outages: WeakKeyDictionary[Any, Outage] = WeakKeyDictionary()


def _outage(adapter: Adapter) -> Outage:
    """Of an adapter's connections; those of the store may be well meanwhile."""
    if adapter not in _outages:
        _outages[adapter] = Outage(f"the database of atomic={type(adapter).__name__}(…)")
    return _outages[adapter]


def _unproven(adapter: Adapter, store: Store) -> bool:
    """Whether its database is still to be compared; files are, whenever one is opened."""
    if adapter in _proven:
        return False
    sql = transactions.sql_transactions(store)
    return sql is not None and sql.identity is not None and adapter.engine == sql.engine


Told = Callable[[Any, int], None]
"""Is told of an attempt that was committed, with its status, though it did not use its transaction.
"""


class _Lender:
    """What both kinds of units know of the transaction and of who has borrowed it."""

    def __init__(
        self,
        adapter: Adapter,
        store: Store,
        seconds_max: float,
        ask: Callable[[Any], Any],
        unused: Told | None = None,
        *,
        plain: bool = False,
    ) -> None:
        self._adapter = adapter
        self._store = store
        self._outside = ask
        self._unused = unused
        self._work = Work(store, seconds_max, callers=adapter.engine == CALLERS, plain=plain)
        self._transaction: Transaction | None = None
        self._borrower: Attempt | None = None
        self._loan: Loan | None = None
        self._is_clear = True
        """Nobody stays in the middle of a statement."""

    def _lend(self, decided: Any) -> Any:
        if isinstance(decided, Execute) and self._transaction is not None:
            self._loan, self._borrower = (
                Loan(self._transaction.lend(), self._adapter),
                decided.attempt,
            )
            self._borrower.loan = self._loan
        return decided

    def _check_clear(self) -> None:
        if not self._is_clear:
            raise StoreUnavailable(STAYED, sent=True)

    def _end_loan(self, transaction: Transaction | None) -> None:
        if self._loan is not None:
            self._loan.end()
        # Who was cancelled, or interrupted, may have been in the middle of anything.
        error = sys.exception()
        if transaction is not None and error is not None and not isinstance(error, Exception):
            transaction.taint()

    def _committed(self, transaction: Transaction) -> None:
        _outage(self._adapter).record_success()
        if self._loan is None or self._unused is None or self._loan.used:
            return
        if not getattr(transaction, "used", False):
            self._unused(self._borrower, self._work.status)


class Unit(_Lender):
    """One atomic operation, for callers that block."""

    def drive_sync(self, op: Op[Any]) -> Any:
        """Drive an operation of the engine within the transaction."""
        try:
            decided = run(self._work.drive(op), self._answer)
        except BaseException:
            self.close()
            raise
        return self._lend(decided)

    def close(self) -> None:
        """Roll back whatever is open."""
        if self._transaction is not None:
            self._roll_back()

    def _answer(self, question: Any) -> Any:
        kind, transaction = type(question), self._transaction
        try:
            if kind is Outside:
                return self._outside(question.question)
            if kind is Begin:
                return self._begin(question.id, question.seconds_max)
            if kind is Commit:
                return self._commit()
            if kind is Rollback:
                return self._roll_back()
            if kind is Flush:
                return self._flush(transaction)
            if kind is Cached and not question.needed:
                return None  # what has the id looks into no cache
            self._check_clear()
            return transaction and transaction.ask(question)
        except Exception as error:
            raise _judged(error, question, self._adapter) from error

    def _begin(self, record_id: bytes, seconds_max: float) -> bool:
        adapter, store = self._adapter, self._store
        # Before it begins: a pool may have no second connection for whoever holds one.
        own = transactions.database_of(store) if _unproven(adapter, store) else None
        self._transaction = adapter.begin(store, record_id, seconds_max)
        if self._transaction is None:
            return False
        try:
            self._open_up(self._transaction, own)
        except BaseException:  # it may be begun again, and nobody would give this one back
            self._roll_back()
            raise
        return True

    def _open_up(self, transaction: Transaction, own: Any) -> None:
        if (first := self._work.first_question) is not None:
            transaction.ask(first)
        if own is not None:
            run(transactions.must_fit(self._store, own), transaction.ask)
            _proven.add(self._adapter)

    def _flush(self, transaction: Transaction | None) -> Any:
        if transaction is not None:
            self._is_clear = _flush_and_recall(transaction)
            self._end_loan(None)

    def _commit(self) -> Any:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.commit()
            self._committed(transaction)

    def _roll_back(self) -> Any:
        transaction, self._transaction = self._transaction, None
        self._end_loan(transaction)
        try:
            return transaction and transaction.rollback()
        except Exception as error:  # its connection broke: what is not committed is gone
            _judged(error, Rollback(), self._adapter)


class AsyncUnit(_Lender):
    """One atomic operation, for an event loop."""

    def __init__(
        self,
        adapter: Adapter,
        store: Store,
        seconds_max: float,
        ask: Callable[[Any], Awaitable[Any]],
        unused: Told | None = None,
        *,
        plain: bool = False,
    ) -> None:
        super().__init__(adapter, store, seconds_max, ask, unused, plain=plain)
        self._threaded = not adapter.awaited

    async def drive(self, op: Op[Any]) -> Any:
        """Drive an operation of the engine within the transaction."""
        try:
            decided = await arun(self._work.drive(op), self._answer)
        except BaseException:
            await self.close()
            raise
        return self._lend(decided)

    async def close(self) -> None:
        """Roll back whatever is open."""
        if self._transaction is not None:
            await self._roll_back()

    async def _answer(self, question: Any) -> Any:
        kind, transaction = type(question), self._transaction
        try:
            if kind is Outside:
                return await self._outside(question.question)
            if kind is Begin:
                return await self._begin(question.id, question.seconds_max)
            if kind is Commit:
                return await self._commit()
            if kind is Rollback:
                return await self._roll_back()
            if kind is Flush:
                return await self._flush(transaction)
            if kind is Cached and not question.needed:
                return None
            self._check_clear()
            return transaction and await self._do(transaction.ask, question)
        except Exception as error:
            raise _judged(error, question, self._adapter) from error

    async def _begin(self, record_id: bytes, seconds_max: float) -> bool:
        adapter, store = self._adapter, self._store
        own = None
        if _unproven(adapter, store):
            own = await asyncio.to_thread(transactions.database_of, store)
        self._transaction = await self._begun(record_id, seconds_max)
        if self._transaction is None:
            return False
        try:
            await self._open_up(self._transaction, own)
        except BaseException:  # it may be begun again, and nobody would give this one back
            await self._roll_back()
            raise
        return True

    async def _begun(self, record_id: bytes, seconds_max: float) -> Transaction | None:
        begin, asked = self._adapter.begin, (self._store, record_id, seconds_max)
        if not self._threaded:
            transaction: Transaction | None = await begin(*asked)
            return transaction
        begun = _in_thread(begin, *asked, waits=True)
        try:
            return await asyncio.shield(begun)
        except asyncio.CancelledError:  # which no thread notices: what it begins would be nobody's
            begun.add_done_callback(_undo)
            raise

    async def _open_up(self, transaction: Transaction, own: Any) -> None:
        if (first := self._work.first_question) is not None:
            await self._do(transaction.ask, first)
        if own is not None:
            if self._threaded:
                await self._do(run, transactions.must_fit(self._store, own), transaction.ask)
            else:
                await arun(transactions.must_fit(self._store, own), transaction.ask)
            _proven.add(self._adapter)

    async def prove(self) -> None:
        """Begin once, to see that the database is the store's and fit for it."""
        try:
            await self._answer(Begin(bytes(32), 1.0))
        finally:
            await self.close()

    async def _flush(self, transaction: Transaction | None) -> Any:
        if transaction is None:
            return
        if self._threaded:
            self._is_clear = await self._do(_flush_and_recall, transaction)
        else:
            await transaction.flush()
            self._is_clear = await transaction.recall()
        self._end_loan(None)

    async def _commit(self) -> Any:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            await self._do(transaction.commit)
            self._committed(transaction)

    async def _roll_back(self) -> Any:
        transaction, self._transaction = self._transaction, None
        self._end_loan(transaction)
        try:
            return transaction and await self._do(transaction.rollback)
        except Exception as error:  # its connection broke: what is not committed is gone
            _judged(error, Rollback(), self._adapter)

    def _do(self, function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        if self._threaded:
            # Whoever is cancelled does not wait for it, but it is done: a commit that never came to
            # its turn would leave its transaction open, and nobody knows of it any more.
            return asyncio.shield(_in_thread(function, *args))
        awaited: Awaitable[Any] = function(*args)
        return awaited


def _flush_and_recall(transaction: Transaction) -> bool:
    transaction.flush()
    return bool(transaction.recall())


def _in_thread(
    function: Callable[..., Any], *args: Any, waits: bool = False
) -> asyncio.Future[Any]:
    pool, loop = _threads(os.getpid(), waits), asyncio.get_running_loop()
    # The context knows of the request's session.
    return loop.run_in_executor(pool, contextvars.copy_context().run, function, *args)


def _undo(begun: asyncio.Future[Transaction | None]) -> None:
    """Roll back what was begun for somebody who has left."""
    transaction = None if begun.cancelled() or begun.exception() else begun.result()
    if transaction is not None:
        _in_thread(transaction.rollback)


@functools.cache
def _threads(pid: int, waits: bool) -> ThreadPoolExecutor:
    """Whoever waits for a connection, or for its turn to write, has threads apart: it must not keep
    those from going on that it waits for.
    """
    return ThreadPoolExecutor(THREADS_MAX, f"oncekey-atomic-{'begin' if waits else 'do'}")


def _judged(error: Exception, question: Any, adapter: Adapter) -> Exception:
    """A driver's failure at our statements is the database's; at a flush it is the handler's.

    Its reason is for the log: a client is told only that there was no answer.
    """
    if isinstance(error, OncekeyError) or isinstance(question, Flush):
        return error
    if getattr(error, "sqlstate", None) == _FAILED_BEFORE:
        return StoreUnavailable(_WENT_ON, sent=True)
    reason = f"{type(error).__name__}: {error}"
    unavailable = StoreUnavailable(reason, sent=not isinstance(question, Begin))
    if adapter.engine != CALLERS:
        _outage(adapter).record_failure(unavailable)
    return unavailable
