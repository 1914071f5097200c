"""Run one atomic operation between its transaction and the store's own connections.

`Unit` blocks and `AsyncUnit` awaits. An adapter's `awaited` says whether it is async; a blocking
adapter serves an event loop too, in threads.
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
from oncekey.atomic._loans import STILL_IN_USE, Loan
from oncekey.atomic._transaction import AtomicOperation, Begin, Commit, Flush, Outside, Rollback
from oncekey.errors import OncekeyError, StoreUnavailable
from oncekey.stores import transactions
from oncekey.stores.base import Store
from oncekey.stores.connection import Outage
from oncekey.stores.tiered.cache import CacheQuestion

if TYPE_CHECKING:
    from oncekey._engine.attempt import Attempt

CALLERS = "any"
"""The engine of adapters for a caller's transaction."""
THREADS_MAX = 32
"""For blocking adapters in an event loop: the most transactions being begun, and the most
statements running, at once.
"""

_FAILED_BEFORE = "25P02"
_WENT_ON = (
    "the handler went on after one of its statements had failed, which rolls back the whole "
    "transaction on PostgreSQL: raise its error, or put what may fail into a savepoint"
)


class Transaction(Protocol):
    """An open transaction. All methods but `lend` and `taint` are async if the adapter is."""

    def lend(self) -> Any:
        """Return what the handler gets. It stops working when it is recalled."""

    def taint(self) -> None:
        """Note that the handler was cut off: close the connection instead of returning it."""

    def recall(self) -> Any:
        """Take back what was lent. Return False if a statement is still running."""

    def ask(self, question: Any) -> Any:
        """Run a store query inside the transaction."""

    def flush(self) -> Any:
        """Write what a session has not written yet."""

    def commit(self) -> Any:
        """Commit, and return the connection in any case."""

    def rollback(self) -> Any:
        """Recall what was lent, cutting off running statements; roll back, and return the
        connection. Return why the transaction had ended before, if it had.
        """


class Adapter(Protocol):
    """Opens transactions in the application's database."""

    @property
    def engine(self) -> str:
        """The name of the store whose records can be in the same database."""

    @property
    def awaited(self) -> bool:
        """Whether it is async."""

    def begin(self, store: Store, record_id: bytes, seconds_max: float) -> Any:
        """Open a `Transaction`; None if another one holds the id."""


_proven: WeakSet[Any] = WeakSet()
"""Adapters whose database is known to be the store's."""


_outages: WeakKeyDictionary[Any, Outage] = WeakKeyDictionary()


def _outage(adapter: Adapter) -> Outage:
    """Track outages of an adapter's connections, separate from the store's own."""
    if adapter not in _outages:
        _outages[adapter] = Outage(f"the database of atomic={type(adapter).__name__}(…)")
    return _outages[adapter]


def _must_prove(adapter: Adapter, store: Store) -> bool:
    """Whether to check that both are one database. SQLite compares files at each open."""
    if adapter in _proven:
        return False
    sql = transactions.sql_transactions(store)
    return sql is not None and sql.identity is not None and adapter.engine == sql.engine


UnusedCallback = Callable[[Any, int], None]
"""Called with an attempt and its status if it committed without using its transaction."""


class _UnitBase:
    """The state of a unit: its transaction and loan."""

    def __init__(
        self,
        adapter: Adapter,
        store: Store,
        seconds_max: float,
        ask: Callable[[Any], Any],
        on_unused: UnusedCallback | None = None,
        *,
        plain: bool = False,
    ) -> None:
        self._adapter = adapter
        self._store = store
        self._outside = ask
        self._on_unused = on_unused
        self._operation = AtomicOperation(
            store, seconds_max, callers=adapter.engine == CALLERS, plain=plain
        )
        self._transaction: Transaction | None = None
        self._borrower: Attempt | None = None
        self._loan: Loan | None = None
        self._is_clear = True
        """No statement is left running."""

    def _lend(self, decision: Any) -> Any:
        if isinstance(decision, Execute) and self._transaction is not None:
            self._borrower = decision.attempt
            self._loan = self._borrower.loan = Loan(self._transaction.lend(), self._adapter)
        return decision

    def _check_clear(self) -> None:
        if not self._is_clear:
            raise StoreUnavailable(STILL_IN_USE, sent=True)

    def _end_loan(self, transaction: Transaction | None) -> None:
        if self._loan is not None:
            self._loan.end()
        # A cancelled or interrupted handler may have left the connection in any state.
        error = sys.exception()
        if transaction is not None and error is not None and not isinstance(error, Exception):
            transaction.taint()

    def _record_commit(self, transaction: Transaction) -> None:
        _outage(self._adapter).record_success()
        if self._loan is None or self._on_unused is None or self._loan.was_used:
            return
        if not getattr(transaction, "was_used", False):
            self._on_unused(self._borrower, self._operation.status)


class Unit(_UnitBase):
    """One atomic operation, blocking."""

    def drive_sync(self, op: Op[Any]) -> Any:
        """Run an operation of the engine inside the transaction."""
        try:
            decision = run(self._operation.drive(op), self._answer)
        except BaseException:
            self.close()
            raise
        return self._lend(decision)

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
            if kind is CacheQuestion and not question.needed:
                return None  # with the id locked, no cache is needed
            self._check_clear()
            return transaction and transaction.ask(question)
        except Exception as error:
            raise _as_store_error(error, question, self._adapter) from error

    def _begin(self, record_id: bytes, seconds_max: float) -> bool:
        adapter, store = self._adapter, self._store
        # Before it begins: the pool may have no second connection.
        own = transactions.database_of(store) if _must_prove(adapter, store) else None
        self._transaction = adapter.begin(store, record_id, seconds_max)
        if self._transaction is None:
            return False
        try:
            self._prepare(self._transaction, own)
        except BaseException:  # a retry would begin another one and lose this one
            self._roll_back()
            raise
        return True

    def _prepare(self, transaction: Transaction, own: Any) -> None:
        if (first := self._operation.first_question) is not None:
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
            self._record_commit(transaction)

    def _roll_back(self) -> Any:
        transaction, self._transaction = self._transaction, None
        self._end_loan(transaction)
        try:
            return transaction and transaction.rollback()
        except Exception as error:  # the connection broke: what is not committed is gone
            _as_store_error(error, Rollback(), self._adapter)


class AsyncUnit(_UnitBase):
    """One atomic operation, async."""

    def __init__(
        self,
        adapter: Adapter,
        store: Store,
        seconds_max: float,
        ask: Callable[[Any], Awaitable[Any]],
        on_unused: UnusedCallback | None = None,
        *,
        plain: bool = False,
    ) -> None:
        super().__init__(adapter, store, seconds_max, ask, on_unused, plain=plain)
        self._threaded = not adapter.awaited

    async def drive(self, op: Op[Any]) -> Any:
        """Run an operation of the engine inside the transaction."""
        try:
            decision = await arun(self._operation.drive(op), self._answer)
        except BaseException:
            await self.close()
            raise
        return self._lend(decision)

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
            if kind is CacheQuestion and not question.needed:
                return None
            self._check_clear()
            return transaction and await self._call(transaction.ask, question)
        except Exception as error:
            raise _as_store_error(error, question, self._adapter) from error

    async def _begin(self, record_id: bytes, seconds_max: float) -> bool:
        adapter, store = self._adapter, self._store
        own = None
        if _must_prove(adapter, store):
            own = await asyncio.to_thread(transactions.database_of, store)
        self._transaction = await self._open_transaction(record_id, seconds_max)
        if self._transaction is None:
            return False
        try:
            await self._prepare(self._transaction, own)
        except BaseException:  # a retry would begin another one and lose this one
            await self._roll_back()
            raise
        return True

    async def _open_transaction(self, record_id: bytes, seconds_max: float) -> Transaction | None:
        begin, arguments = self._adapter.begin, (self._store, record_id, seconds_max)
        if not self._threaded:
            transaction: Transaction | None = await begin(*arguments)
            return transaction
        opening = _in_thread(begin, *arguments, waits=True)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:  # the thread goes on: roll back what it opens
            opening.add_done_callback(_roll_back_later)
            raise

    async def _prepare(self, transaction: Transaction, own: Any) -> None:
        if (first := self._operation.first_question) is not None:
            await self._call(transaction.ask, first)
        if own is not None:
            if self._threaded:
                await self._call(run, transactions.must_fit(self._store, own), transaction.ask)
            else:
                await arun(transactions.must_fit(self._store, own), transaction.ask)
            _proven.add(self._adapter)

    async def prove(self) -> None:
        """Begin once, to check that the database is the store's and suitable."""
        try:
            await self._answer(Begin(bytes(32), 1.0))
        finally:
            await self.close()

    async def _flush(self, transaction: Transaction | None) -> Any:
        if transaction is None:
            return
        if self._threaded:
            self._is_clear = await self._call(_flush_and_recall, transaction)
        else:
            await transaction.flush()
            self._is_clear = await transaction.recall()
        self._end_loan(None)

    async def _commit(self) -> Any:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            await self._call(transaction.commit)
            self._record_commit(transaction)

    async def _roll_back(self) -> Any:
        transaction, self._transaction = self._transaction, None
        self._end_loan(transaction)
        try:
            return transaction and await self._call(transaction.rollback)
        except Exception as error:  # the connection broke: what is not committed is gone
            _as_store_error(error, Rollback(), self._adapter)

    def _call(self, function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        if self._threaded:
            # A cancelled caller does not wait, but the thread finishes: a commit that never ran
            # would leave its transaction open, with nothing to close it.
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
    # The context holds the request's session.
    return loop.run_in_executor(pool, contextvars.copy_context().run, function, *args)


def _roll_back_later(opening: asyncio.Future[Transaction | None]) -> None:
    """Roll back a transaction whose caller was cancelled."""
    transaction = None if opening.cancelled() or opening.exception() else opening.result()
    if transaction is not None:
        _in_thread(transaction.rollback)


@functools.cache
def _threads(pid: int, waits: bool) -> ThreadPoolExecutor:
    """Use separate threads to wait for a connection or for the write lock: waiters must not block
    the transactions they wait for.
    """
    return ThreadPoolExecutor(THREADS_MAX, f"oncekey-atomic-{'begin' if waits else 'do'}")


def _as_store_error(error: Exception, question: Any, adapter: Adapter) -> Exception:
    """Convert a driver's error to `StoreUnavailable`, except at a flush, where it is the handler's.

    The reason is for the log; clients see only that the store is unavailable.
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
