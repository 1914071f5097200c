"""Adapters for the drivers of MySQL and MariaDB: PyMySQL and asyncmy.

Connections are lent with autocommit off, whatever their setting: otherwise, after a deadlock has
ended the transaction, each further statement of the handler would commit at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import Callable
from typing import Any

from oncekey.atomic._connections import (
    ACQUIRE_S_MAX,
    AsyncDriverTransaction,
    DriverTransaction,
    must_not_be_url,
)
from oncekey.atomic._gate import Gate
from oncekey.atomic._loans import LEAVE_S_MAX, revoke, twin_of
from oncekey.stores import transactions
from oncekey.stores.base import Store

_log = logging.getLogger("oncekey")


class PyMySQL:
    """Transactions of PyMySQL, which has no pool: a function opens a connection for each request,
    which is closed afterwards. SQLAlchemy has a pool.
    """

    engine = "mysql"
    awaited = False

    def __init__(self, connect: Callable[[], Any]) -> None:
        must_not_be_url(connect, "PyMySQL(…) takes a function that opens a connection")
        self._connect = connect

    def begin(self, store: Store, record_id: bytes, seconds_max: float) -> DriverTransaction:
        connection = self._connect()
        try:
            connection.autocommit(False)
            ask = transactions.join(store, connection)
        except BaseException:
            connection.close()
            raise

        def give_back(is_tainted: bool) -> None:
            with contextlib.suppress(Exception):  # it may be closed already
                connection.close()

        return DriverTransaction(connection, ask, give_back, PyMySQLLoan)


class Asyncmy:
    """Transactions of an asyncmy pool, or of the pool that a function returns."""

    engine = "mysql"
    awaited = True

    def __init__(self, pool: Any, *, acquire_s_max: float = ACQUIRE_S_MAX) -> None:
        must_not_be_url(pool, "Asyncmy(…) takes a pool, or a function that returns it")
        self._pool: Callable[[], Any] = pool if callable(pool) else lambda: pool
        self._acquire_s_max = acquire_s_max

    async def begin(
        self, store: Store, record_id: bytes, seconds_max: float
    ) -> AsyncDriverTransaction:
        pool = self._pool()
        async with asyncio.timeout(self._acquire_s_max):
            connection = await pool.acquire()
        autocommit = connection.get_autocommit()
        try:
            await connection.autocommit(False)
            ask = await transactions.ajoin(store, connection)
        except BaseException:
            connection.close()
            await pool.release(connection)
            raise

        async def give_back(is_tainted: bool) -> None:
            whole = False
            try:
                if not is_tainted:
                    await connection.autocommit(autocommit)
                    whole = True
            except Exception:  # it is broken: the pool must not reuse it
                _log.debug("a connection of the pool is closed", exc_info=True)
            finally:
                if not whole:
                    connection.close()
                    connection._connected = False  # so that its pool notices at once
                await pool.release(connection)

        return AsyncDriverTransaction(connection, ask, give_back, AsyncmyLoan)


# ------------------------------------------------------------------- stand-ins for lent connections

_IO_METHODS = (
    *("_read_packet", "autocommit", "begin", "commit", "kill", "next_result", "ping", "query"),
    *("rollback", "select_db", "set_character_set", "set_charset", "show_warnings"),
)
"""The methods of PyMySQL that send to the server or read from it."""
_GATE = "_oncekey_gate"
_CLOSED = "_oncekey_closed"
_ENDED = "_oncekey_ended"
_READS = "_oncekey_reads"
_COMMITTING = ("commit", "begin")
"""Methods that end a transaction by committing it."""
_LOOK_AGAIN_S = 0.01


class PyMySQLLoan:
    """The loan of a `pymysql.Connection`. A gate shows whether a command is running."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._gate = Gate()
        self.stand_in = twin_of(connection, _gated_class(connection.__class__))
        setattr(self.stand_in, _GATE, self._gate)
        connection.__dict__[_ENDED] = False
        self.is_tainted = False

    @property
    def is_ended(self) -> bool:
        """Whether the handler has committed or closed the connection."""
        return bool(self._connection._closed or self._connection.__dict__[_ENDED])

    def recall(self, *, cut: bool) -> bool:
        if not self._gate.shut():
            self.is_tainted = True
            if cut:
                self._hang_up()
            if not self._gate.wait(LEAVE_S_MAX):
                return cut  # Python's sockets can be closed during a read
        revoke(self.stand_in)
        _reclaim_stream(self._connection)
        return True

    def _hang_up(self) -> None:
        with contextlib.suppress(Exception):  # it is closed already
            self._connection._sock.shutdown(socket.SHUT_RDWR)


@functools.cache
def _gated_class(kind: Any) -> Any:
    methods = {
        name: _through_gate(getattr(kind, name)) for name in _IO_METHODS if hasattr(kind, name)
    }
    return type(kind.__name__, (kind,), {"__module__": kind.__module__, **methods})


def _through_gate(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with getattr(self, _GATE):
            if method.__name__ in _COMMITTING:
                setattr(self, _ENDED, True)
            return method(self, *args, **kwargs)

    return call


class AsyncmyLoan:
    """The loan of an `asyncmy.Connection`. A command is running while it waits for bytes or has
    unread ones.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.stand_in = twin_of(connection, _watched_class(connection.__class__))
        connection.__dict__[_ENDED] = False
        connection.__dict__[_READS] = 0
        self.is_tainted = False

    @property
    def is_ended(self) -> bool:
        """Whether the handler has committed or closed the connection."""
        connection = self._connection
        closed = _CLOSED in connection.__dict__ and connection._close_reason is None
        return closed or bool(connection.__dict__[_ENDED])

    def revoke(self) -> None:
        """Revoke the stand-in without waiting."""
        connection = self._connection
        self.is_tainted = self.is_tainted or _is_busy(connection)
        revoke(self.stand_in)
        _reclaim_stream(connection)
        for statement in connection._stmt_cache.values():
            statement._connection = connection

    async def recall(self, *, cut: bool) -> bool:
        """Async `DriverLoan.recall`."""
        self.is_tainted = self.is_tainted or _is_busy(self._connection)
        if not cut:
            await self._wait()
        whole = not _is_busy(self._connection)
        self.revoke()
        if cut and self.is_tainted:
            self._connection.close()
        return whole or cut

    async def _wait(self) -> None:
        for _ in range(int(LEAVE_S_MAX / _LOOK_AGAIN_S)):
            if not _is_busy(self._connection):
                return
            await asyncio.sleep(_LOOK_AGAIN_S)


@functools.cache
def _watched_class(kind: Any) -> Any:
    """Make a class that records commits, running reads, and closing by the handler; asyncmy itself
    closes broken connections by the same method.
    """

    def close(self: Any) -> None:
        if self._transport is not None and not self._transport.is_closing():
            setattr(self, _CLOSED, True)
        kind.close(self)

    async def ensure_closed(self: Any) -> None:
        setattr(self, _CLOSED, True)
        await kind.ensure_closed(self)

    async def read_packet(self: Any, *args: Any, **kwargs: Any) -> Any:
        shared = self.__dict__
        shared[_READS] += 1
        try:
            return await kind.read_packet(self, *args, **kwargs)
        finally:
            shared[_READS] -= 1

    ends = {name: _record_end(getattr(kind, name)) for name in _COMMITTING}
    methods = {"close": close, "ensure_closed": ensure_closed, "read_packet": read_packet, **ends}
    return type(kind.__name__, (kind,), {"__module__": kind.__module__, **methods})


def _record_end(method: Any) -> Any:
    async def end(self: Any) -> Any:
        setattr(self, _ENDED, True)
        return await method(self)

    return end


def _is_busy(connection: Any) -> bool:
    protocol = connection._proto
    if protocol is None:
        return False
    if protocol._read_waiter is not None or protocol._drain_waiter is not None:
        return True
    if connection.__dict__[_READS]:  # its bytes have arrived, but the reader has not resumed yet
        return True
    return protocol.length != protocol.pos and not _is_streaming(connection)


def _is_streaming(connection: Any) -> bool:
    """Whether an unbuffered result is not read to its end, which is allowed."""
    return connection._result is not None and bool(connection._result.unbuffered_active)


def _reclaim_stream(connection: Any) -> None:
    """Replace an unbuffered result by our own, which skips its rest before the next command: the
    handler could still read rows from its own.
    """
    if _is_streaming(connection):
        handlers = connection._result
        connection._result = type(handlers)(connection)
        connection._result.unbuffered_active = True
        if handlers.__class__.__dictoffset__:  # PyMySQL's would warn when it is freed
            revoke(handlers)
