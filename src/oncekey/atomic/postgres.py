"""Adapters for PostgreSQL's drivers: each begins, commits, rolls back and gives back."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from oncekey._engine.decisions import Ended
from oncekey.atomic._connections import ACQUIRE_S_MAX, AsyncLent, Lent, must_open
from oncekey.atomic._loans import LEAVE_S_MAX
from oncekey.atomic._loans_psycopg import AsyncPsycopgLoan, PsycopgLoan
from oncekey.errors import StoreUnavailable
from oncekey.stores import transactions
from oncekey.stores.base import Store
from oncekey.stores.postgres.transactions import join_asyncpg


class Asyncpg:
    """Transactions of an asyncpg pool, or of the pool that a function returns."""

    engine = "postgres"
    awaited = True

    def __init__(self, pool: Any, *, acquire_s_max: float = ACQUIRE_S_MAX) -> None:
        must_open(pool, "Asyncpg(…) takes a pool, or a function that gives it")
        self._pool: Callable[[], Any] = pool if callable(pool) else lambda: pool
        self._acquire_s_max = acquire_s_max

    async def begin(self, store: Store, record_id: bytes, seconds_max: float) -> _Asyncpg:
        pool = self._pool()
        # A limit costs something, and is not needed where nobody has to wait.
        wait_s = None if pool.get_idle_size() else self._acquire_s_max
        connection = await pool.acquire(timeout=wait_s)
        transaction = connection.transaction()
        try:
            await transaction.start()
            ask = join_asyncpg(connection)
        except BaseException:
            await pool.release(connection)
            raise
        return _Asyncpg(pool, connection, transaction, ask)


_ended: WeakSet[Any] = WeakSet()
"""Connections of asyncpg whose transaction the handler has ended."""


class _Asyncpg:
    """asyncpg revokes by itself, when its pool gets a connection back: the connection and all that
    was made of it.
    """

    def __init__(
        self, pool: Any, connection: Any, transaction: Any, ask: transactions.AsyncAsk
    ) -> None:
        self.connection = connection
        self._ask = ask
        self._pool = pool
        self._transaction = transaction
        self._is_tainted = False
        self._kind = connection.__class__
        self._driver = connection._con

    def lend(self) -> Any:
        self.connection.__class__ = _late(self._kind)
        return self.connection

    async def ask(self, question: Any) -> Any:
        if self._driver in _ended:
            raise Ended
        if self.connection._con is None:  # it broke, or the handler has closed it
            raise StoreUnavailable("its connection is closed", sent=True)
        return await self._ask(question)

    async def flush(self) -> None:
        """There is no session."""

    async def recall(self) -> bool:
        """Two at once are refused by the connection: whoever stays in it fails the next of ours."""
        return True

    def taint(self) -> None:
        self._is_tainted = True

    async def commit(self) -> None:
        try:
            await self._transaction.commit()
        finally:
            await self._release()

    async def rollback(self) -> None:
        try:
            await self._transaction.rollback()
        except Exception:  # its connection is broken, or somebody is in it
            self._is_tainted = True
        finally:
            if self._is_tainted:
                await self._hang_up()
            await self._release()

    async def _release(self) -> None:
        _ended.discard(self._driver)
        self.connection.__class__ = self._kind  # its pool takes nothing else
        await self._pool.release(self.connection)

    async def _hang_up(self) -> None:
        """Close the connection; a statement that runs is cancelled before."""
        try:
            await self.connection.close(timeout=LEAVE_S_MAX)
        except Exception:
            self.connection.terminate()


@functools.cache
def _late(kind: Any) -> Any:
    """What a pool lends, whose coroutines ask for the connection when they begin. asyncpg's own
    have it from when they were made: one that is awaited later would miss that it was given back.
    The same with what is made of it: statements, cursors, savepoints.
    """
    driver = sys.modules["asyncpg"].Connection
    names = (name for name in dir(driver) if not name.startswith("_"))
    methods = {
        name: _begin_late(getattr(kind, name))
        for name in names
        if inspect.iscoroutinefunction(getattr(driver, name))
    }
    makes = {name: _make_late(getattr(kind, name)) for name in ("cursor", "transaction")}
    return type(kind)(kind.__name__, (kind,), {"__slots__": (), **methods, **makes})


def _begin_late(method: Any) -> Any:
    @functools.wraps(method)
    async def begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        driver = self._con
        try:
            return _late_too(await method(self, *args, **kwargs))
        finally:
            if driver is not None and not (driver.is_closed() or driver.is_in_transaction()):
                _ended.add(driver)

    return begin


def _make_late(method: Any) -> Any:
    @functools.wraps(method)
    def make(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _late_too(method(self, *args, **kwargs))

    return make


def _late_too(made: Any) -> Any:
    if isinstance(made, sys.modules["asyncpg.connresource"].ConnectionResource):
        made.__class__ = _late_resource(made.__class__)
    return made


@functools.cache
def _late_resource(kind: Any) -> Any:
    methods: dict[str, Any] = {}
    for name in dir(kind):
        method = getattr(kind, name)
        if not name.startswith("_") and inspect.iscoroutinefunction(inspect.unwrap(method)):
            methods[name] = _ask_late(method)
    if hasattr(kind, "cursor"):
        methods["cursor"] = _make_late(kind.cursor)
    if hasattr(kind, "__await__"):
        methods["__await__"] = _await_late(kind.__await__)
    return type(kind.__name__, (kind,), {"__module__": kind.__module__, "__slots__": (), **methods})


def _ask_late(method: Any) -> Any:
    @functools.wraps(method)
    async def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await method(self, *args, **kwargs)  # which asks whether it may when it is called

    return ask


def _await_late(method: Any) -> Any:
    @functools.wraps(method)
    def awaiting(self: Any) -> Any:
        return _late_too((yield from method(self)))

    return awaiting


class Psycopg:
    """Transactions of a `psycopg_pool.ConnectionPool`, or of connections that a function opens."""

    engine = "postgres"
    awaited = False

    def __init__(self, pool: Any, *, acquire_s_max: float = ACQUIRE_S_MAX) -> None:
        must_open(pool, "Psycopg(…) takes a pool, or a function that opens a connection")
        self._pool = pool
        self._acquire_s_max = acquire_s_max

    def begin(self, store: Store, record_id: bytes, seconds_max: float) -> Lent:
        connection, give_back = self._take()
        try:
            if connection.autocommit:
                connection.execute("BEGIN")
            return Lent(connection, transactions.join(store, connection), give_back, PsycopgLoan)
        except BaseException:
            give_back(False)
            raise

    def _take(self) -> tuple[Any, Callable[[bool], Any]]:
        if not hasattr(self._pool, "getconn"):
            connection = self._pool()
            return connection, lambda tainted: connection.close()
        connection = self._pool.getconn(timeout=self._acquire_s_max)

        def give_back(tainted: bool) -> None:
            if tainted:
                connection.pgconn.finish()  # its `close` might give it back as it is
            self._pool.putconn(connection)

        return connection, give_back


class AsyncPsycopg:
    """Transactions of a `psycopg_pool.AsyncConnectionPool`, or of connections that an async
    function opens.
    """

    engine = "postgres"
    awaited = True

    def __init__(self, pool: Any, *, acquire_s_max: float = ACQUIRE_S_MAX) -> None:
        must_open(pool, "AsyncPsycopg(…) takes a pool, or a function that opens a connection")
        self._pool = pool
        self._acquire_s_max = acquire_s_max

    async def begin(self, store: Store, record_id: bytes, seconds_max: float) -> AsyncLent:
        connection, give_back = await self._take()
        try:
            if connection.autocommit:
                await connection.execute("BEGIN")
            ask = await transactions.ajoin(store, connection)
        except BaseException:
            await give_back(False)
            raise
        return AsyncLent(connection, ask, give_back, AsyncPsycopgLoan)

    async def _take(self) -> tuple[Any, Callable[[bool], Any]]:
        if not hasattr(self._pool, "getconn"):
            opened = self._pool()
            connection = await opened if inspect.isawaitable(opened) else opened
            return connection, lambda tainted: connection.close()
        connection = await self._pool.getconn(timeout=self._acquire_s_max)

        async def give_back(tainted: bool) -> None:
            if tainted:
                connection.pgconn.finish()  # its `close` might give it back as it is
            await self._pool.putconn(connection)

        return connection, give_back
