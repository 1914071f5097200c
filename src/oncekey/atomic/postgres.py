"""Adapters for PostgreSQL's drivers: asyncpg and psycopg 3."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import socket
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from oncekey._engine.decisions import Ended
from oncekey.atomic._connections import (
    ACQUIRE_S_MAX,
    AsyncDriverTransaction,
    DriverTransaction,
    must_not_be_url,
)
from oncekey.atomic._loans import LEAVE_S_MAX, revoke, twin_of, wait_until_free
from oncekey.errors import StoreUnavailable
from oncekey.stores import transactions
from oncekey.stores.base import Store
from oncekey.stores.postgres.transactions import join_asyncpg


class Asyncpg:
    """Transactions of an asyncpg pool, or of the pool that a function returns."""

    engine = "postgres"
    awaited = True

    def __init__(self, pool: Any, *, acquire_s_max: float = ACQUIRE_S_MAX) -> None:
        must_not_be_url(pool, "Asyncpg(…) takes a pool, or a function that returns it")
        self._pool: Callable[[], Any] = pool if callable(pool) else lambda: pool
        self._acquire_s_max = acquire_s_max

    async def begin(
        self, store: Store, record_id: bytes, seconds_max: float
    ) -> _AsyncpgTransaction:
        pool = self._pool()
        # A timeout costs time, and is not needed if a connection is idle.
        wait_s = None if pool.get_idle_size() else self._acquire_s_max
        connection = await pool.acquire(timeout=wait_s)
        transaction = connection.transaction()
        try:
            await transaction.start()
            ask = join_asyncpg(connection)
        except BaseException:
            await pool.release(connection)
            raise
        return _AsyncpgTransaction(pool, connection, transaction, ask)


_ended_connections: WeakSet[Any] = WeakSet()
"""asyncpg connections whose transaction the handler has ended."""


class _AsyncpgTransaction:
    """asyncpg's pool itself revokes a returned connection and all that was made from it."""

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
        self.connection.__class__ = _deferred_class(self._kind)
        return self.connection

    async def ask(self, question: Any) -> Any:
        if self._driver in _ended_connections:
            raise Ended
        if self.connection._con is None:  # it broke, or the handler closed it
            raise StoreUnavailable("its connection is closed", sent=True)
        return await self._ask(question)

    async def flush(self) -> None:
        """Nothing to flush: there is no session."""

    async def recall(self) -> bool:
        """Nothing to wait for: asyncpg refuses our next statement while another one is running."""
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
        except Exception:  # the connection is broken or in use
            self._is_tainted = True
        finally:
            if self._is_tainted:
                await self._hang_up()
            await self._release()

    async def _release(self) -> None:
        _ended_connections.discard(self._driver)
        self.connection.__class__ = self._kind  # its pool accepts nothing else
        await self._pool.release(self.connection)

    async def _hang_up(self) -> None:
        """Close the connection; a running statement is cancelled first."""
        try:
            await self.connection.close(timeout=LEAVE_S_MAX)
        except Exception:
            self.connection.terminate()


@functools.cache
def _deferred_class(kind: Any) -> Any:
    """Make a class whose coroutines look up the connection when they start. asyncpg's own look it
    up when they are created, so one awaited later would miss that the connection was returned. The
    same for what is made from it: statements, cursors, savepoints.
    """
    driver = sys.modules["asyncpg"].Connection
    names = (name for name in dir(driver) if not name.startswith("_"))
    methods = {
        name: _defer_coroutine(getattr(kind, name))
        for name in names
        if inspect.iscoroutinefunction(getattr(driver, name))
    }
    makes = {name: _defer_result(getattr(kind, name)) for name in ("cursor", "transaction")}
    return type(kind)(kind.__name__, (kind,), {"__slots__": (), **methods, **makes})


def _defer_coroutine(method: Any) -> Any:
    @functools.wraps(method)
    async def begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        driver = self._con
        try:
            return _defer(await method(self, *args, **kwargs))
        finally:
            if driver is not None and not (driver.is_closed() or driver.is_in_transaction()):
                _ended_connections.add(driver)

    return begin


def _defer_result(method: Any) -> Any:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _defer(method(self, *args, **kwargs))

    return call


def _defer(made: Any) -> Any:
    if isinstance(made, sys.modules["asyncpg.connresource"].ConnectionResource):
        made.__class__ = _deferred_resource_class(made.__class__)
    return made


@functools.cache
def _deferred_resource_class(kind: Any) -> Any:
    methods: dict[str, Any] = {}
    for name in dir(kind):
        method = getattr(kind, name)
        if not name.startswith("_") and inspect.iscoroutinefunction(inspect.unwrap(method)):
            methods[name] = _defer_method(method)
    if hasattr(kind, "cursor"):
        methods["cursor"] = _defer_result(kind.cursor)
    if hasattr(kind, "__await__"):
        methods["__await__"] = _defer_await(kind.__await__)
    return type(kind.__name__, (kind,), {"__module__": kind.__module__, "__slots__": (), **methods})


def _defer_method(method: Any) -> Any:
    @functools.wraps(method)
    async def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await method(self, *args, **kwargs)  # it checks the connection when called

    return ask


def _defer_await(method: Any) -> Any:
    @functools.wraps(method)
    def iterate(self: Any) -> Any:
        return _defer((yield from method(self)))

    return iterate


class Psycopg:
    """Transactions of a `psycopg_pool.ConnectionPool`, or of connections that a function opens."""

    engine = "postgres"
    awaited = False

    def __init__(self, pool: Any, *, acquire_s_max: float = ACQUIRE_S_MAX) -> None:
        must_not_be_url(pool, "Psycopg(…) takes a pool, or a function that opens a connection")
        self._pool = pool
        self._acquire_s_max = acquire_s_max

    def begin(self, store: Store, record_id: bytes, seconds_max: float) -> DriverTransaction:
        connection, give_back = self._open()
        try:
            if connection.autocommit:
                connection.execute("BEGIN")
            return DriverTransaction(
                connection, transactions.join(store, connection), give_back, PsycopgLoan
            )
        except BaseException:
            give_back(False)
            raise

    def _open(self) -> tuple[Any, Callable[[bool], Any]]:
        if not hasattr(self._pool, "getconn"):
            connection = self._pool()
            return connection, lambda is_tainted: connection.close()
        connection = self._pool.getconn(timeout=self._acquire_s_max)

        def give_back(is_tainted: bool) -> None:
            if is_tainted:
                connection.pgconn.finish()  # its `close` might return it to the pool
            self._pool.putconn(connection)

        return connection, give_back


class AsyncPsycopg:
    """Transactions of a `psycopg_pool.AsyncConnectionPool`, or of connections that an async
    function opens.
    """

    engine = "postgres"
    awaited = True

    def __init__(self, pool: Any, *, acquire_s_max: float = ACQUIRE_S_MAX) -> None:
        must_not_be_url(pool, "AsyncPsycopg(…) takes a pool, or a function that opens a connection")
        self._pool = pool
        self._acquire_s_max = acquire_s_max

    async def begin(
        self, store: Store, record_id: bytes, seconds_max: float
    ) -> AsyncDriverTransaction:
        connection, give_back = await self._open()
        try:
            if connection.autocommit:
                await connection.execute("BEGIN")
            ask = await transactions.ajoin(store, connection)
        except BaseException:
            await give_back(False)
            raise
        return AsyncDriverTransaction(connection, ask, give_back, AsyncPsycopgLoan)

    async def _open(self) -> tuple[Any, Callable[[bool], Any]]:
        if not hasattr(self._pool, "getconn"):
            connection = self._pool()
            if inspect.isawaitable(connection):
                connection = await connection
            return connection, lambda is_tainted: connection.close()
        connection = await self._pool.getconn(timeout=self._acquire_s_max)

        async def give_back(is_tainted: bool) -> None:
            if is_tainted:
                connection.pgconn.finish()  # its `close` might return it to the pool
            await self._pool.putconn(connection)

        return connection, give_back


# -------------------------------------------------------------- stand-ins for psycopg's connections

_ENDED = "_oncekey_ended"
_IDLE = 0
"""libpq's status of a connection outside a transaction."""
CANCELS = 4
"""How often to ask the server to cancel the statement."""


class PsycopgLoan:
    """The loan of a `psycopg.Connection`, whose own lock admits one thread at a time."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.stand_in = twin_of(connection, _lendable_class(connection.__class__))
        self.stand_in._oncekey_kept = False
        connection.__dict__[_ENDED] = False
        self.is_tainted = False

    @property
    def is_ended(self) -> bool:
        """Whether the handler has ended the transaction or closed the connection."""
        return bool(self._connection._closed or self._connection.__dict__[_ENDED])

    def recall(self, *, cut: bool) -> bool:
        lock = self._connection.lock
        revoke(self.stand_in)
        self.is_tainted = self.is_tainted or _was_kept(self.stand_in)
        if lock.acquire(blocking=False):
            lock.release()
            return self._is_whole(cut)
        self.is_tainted = True
        if not self._cut_off() if cut else not lock.acquire(timeout=LEAVE_S_MAX):
            return False
        lock.release()
        return self._is_whole(cut)

    def _cut_off(self) -> bool:
        """End the running statement. Return whether it ended; then this holds the lock."""
        connection, lock = self._connection, self._connection.lock
        for _ in range(CANCELS):  # the first may arrive before the statement
            with contextlib.suppress(Exception):  # otherwise the connection is shut down below
                connection.cancel_safe(timeout=LEAVE_S_MAX / CANCELS)
            if lock.acquire(timeout=LEAVE_S_MAX / CANCELS):
                return True
        _hang_up(connection)
        has_left: bool = lock.acquire(timeout=LEAVE_S_MAX)
        if not has_left:
            _abandon(connection)
        return has_left

    def _is_whole(self, cut: bool) -> bool:
        self.is_tainted = self.is_tainted or _has_open_block(self._connection)
        return cut or not _has_open_block(self._connection)


class AsyncPsycopgLoan:
    """The loan of a `psycopg.AsyncConnection`, whose own lock admits one task at a time."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.stand_in = twin_of(connection, _lendable_class(connection.__class__))
        self.stand_in._oncekey_kept = False
        connection.__dict__[_ENDED] = False
        self.is_tainted = False

    @property
    def is_ended(self) -> bool:
        """Whether the handler has ended the transaction or closed the connection."""
        return bool(self._connection._closed or self._connection.__dict__[_ENDED])

    def revoke(self) -> None:
        """Revoke the stand-in without waiting."""
        revoke(self.stand_in)
        busy = self._connection.lock.locked()
        self.is_tainted = self.is_tainted or busy or _was_kept(self.stand_in)

    async def recall(self, *, cut: bool) -> bool:
        """Async `DriverLoan.recall`."""
        connection = self._connection
        self.revoke()
        gone = not connection.lock.locked()
        if not gone:
            gone = await (self._cut_off() if cut else wait_until_free(connection.lock, LEAVE_S_MAX))
        if not gone:
            return False
        self.is_tainted = self.is_tainted or _has_open_block(connection)
        return cut or not _has_open_block(connection)

    async def _cut_off(self) -> bool:
        """End the running statement. Return whether it ended."""
        connection = self._connection
        for _ in range(CANCELS):  # the first may arrive before the statement
            with contextlib.suppress(Exception):  # otherwise the connection is shut down below
                await connection.cancel_safe(timeout=LEAVE_S_MAX / CANCELS)
            if await wait_until_free(connection.lock, LEAVE_S_MAX / CANCELS):
                return True
        _hang_up(connection)
        if await wait_until_free(connection.lock, LEAVE_S_MAX):
            return True
        _abandon(connection)
        return False


def _has_open_block(connection: Any) -> bool:
    """Whether the handler has an open transaction block or pipeline, which prevents a commit."""
    return bool(connection._num_transactions or connection._pipeline)


def _hang_up(connection: Any) -> None:
    """Wake the thread that waits for the server. Closing the connection under it could crash."""
    try:
        with socket.socket(fileno=os.dup(connection.pgconn.socket)) as ours:
            ours.shutdown(socket.SHUT_RDWR)
    except Exception:  # it is closed already
        return


def _abandon(connection: Any) -> None:
    """Leave libpq's connection to its user, such as an unfinished generator: it closes with its
    last reference. From here on our connection is a closed one.
    """
    kind = type(connection.pgconn)
    try:
        connection.pgconn = kind()
    except TypeError:  # psycopg without its C part
        connection.pgconn = kind(None)


@functools.cache
def _lendable_class(kind: Any) -> Any:
    """Make the class of the stand-in. Its `close` closes, although a pool's may take the connection
    back. libpq's connection cannot be revoked, so it records whether code outside psycopg took it.
    It also records that the transaction ended: after a failed statement in the next one, the
    server cannot be asked.
    """
    return type(
        kind.__name__,
        (kind,),
        {
            "__module__": kind.__module__,
            "__slots__": ("_oncekey_kept",),
            "close": _make_close(kind),
            "wait": _make_wait(kind),
            "pgconn": property(_pgconn, _set_pgconn),
        },
    )


def _pgconn(self: Any) -> Any:
    asks: str = sys._getframe(1).f_globals.get("__name__", "")
    if asks.partition(".")[0] != "psycopg":
        self._oncekey_kept = True
    return self.__dict__["pgconn"]


def _set_pgconn(self: Any, pgconn: Any) -> None:
    self.__dict__["pgconn"] = pgconn


def _was_kept(stand_in: Any) -> bool:
    return bool(object.__getattribute__(stand_in, "_oncekey_kept"))


def _make_wait(kind: Any) -> Any:
    """Make the `wait` that every operation of a connection uses."""

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        shared = self.__dict__
        try:
            return kind.wait(self, *args, **kwargs)
        finally:
            _note_end(shared)

    async def wait_async(self: Any, *args: Any, **kwargs: Any) -> Any:
        shared = self.__dict__
        try:
            return await kind.wait(self, *args, **kwargs)
        finally:
            _note_end(shared)

    return wait_async if asyncio.iscoroutinefunction(kind.wait) else wait


def _note_end(shared: dict[str, Any]) -> None:
    if shared["pgconn"].transaction_status == _IDLE:
        shared[_ENDED] = True


def _make_close(kind: Any) -> Any:
    def close(self: Any) -> None:
        self._closed = True
        self.__dict__["pgconn"].finish()

    async def close_async(self: Any) -> None:
        close(self)

    return close_async if asyncio.iscoroutinefunction(kind.close) else close
