"""Lend the driver's connection below SQLAlchemy's.

Sessions, connections and results can be closed, but a server-side cursor or the driver's connection
itself would survive that and work in the connection's next transaction. So while a handler has it,
SQLAlchemy works on a stand-in.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import threading
from collections.abc import Callable
from typing import Any

from oncekey.atomic._driver_loans import lend, lend_async
from oncekey.atomic._loans import HAS_ENDED, LEAVE_S_MAX, revoke, wait_until_free
from oncekey.atomic.sqlite import SqliteLoan
from oncekey.errors import Misuse

LOAN = "oncekey_lent"
"""The key in a connection's `info` under which its loan is found."""


class _OwnedConnection:
    """The driver's connection, usable only by one thread or task."""

    __slots__ = ("_oncekey",)

    def __init__(self, real: Any, current_owner: Callable[[], Any]) -> None:
        object.__setattr__(self, "_oncekey", (real, current_owner, current_owner()))

    def __getattr__(self, name: str) -> Any:
        return getattr(_check_owner(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_check_owner(self), name, value)


def _check_owner(owned: _OwnedConnection) -> Any:
    real, current_owner, owner = owned._oncekey
    if current_owner() != owner:
        raise Misuse(HAS_ENDED)
    return real


def _no_owner() -> object:
    return object()


class _SwappedConnection:
    """Swaps the driver's connection of a SQLAlchemy connection for a stand-in."""

    _current_owner: Callable[[], Any]
    """Identifies the current thread or task."""

    def __init__(self, connection: Any, stand_in: Any, for_pool: Any = None) -> None:
        """`for_pool` is what the pool sees in place of the stand-in, if that must differ."""
        self._fairy = connection.connection
        self._record = self._fairy._connection_record
        self._real = self._fairy.dbapi_connection
        self._stand_in = stand_in if for_pool is None else for_pool
        self._fairy.dbapi_connection = stand_in
        self._record.dbapi_connection = self._stand_in
        self._record.info[LOAN] = self
        self._owned: _OwnedConnection | None = None
        self.is_back = False
        """Whether its pool has it again."""
        self._had_ended: bool | None = None
        """Whether the handler had ended it when SQLAlchemy closed it, such as after an error."""

    def take_back(self) -> None:
        """Put the real connection back under SQLAlchemy, to end the transaction, but usable only by
        the caller. Otherwise a thread of the handler that still has a SQLAlchemy object could get
        the connection during the commit, and keep it.
        """
        if self._record.dbapi_connection is self._stand_in:
            self._owned = _OwnedConnection(self._real, self._current_owner)
            self._fairy.dbapi_connection = self._record.dbapi_connection = self._owned

    def restore(self) -> None:
        """Give the real connection back to its pool, unless SQLAlchemy has closed it."""
        if self._record.dbapi_connection in (self._stand_in, self._owned):
            self._record.dbapi_connection = self._real

    def on_close(self) -> None:
        """SQLAlchemy closes the connection: let it close the real one, not the stand-in."""
        self._had_ended = self.is_ended
        self.restore()
        self.is_back = True

    @property
    def is_ended(self) -> bool:
        """Whether the handler has closed its session or ended the driver's transaction."""
        if self._had_ended is not None:
            return self._had_ended
        return self.is_back or self._is_driver_ended()

    def _is_driver_ended(self) -> bool:
        raise NotImplementedError

    def release(self) -> None:
        """Make the real connection unusable after the transaction has ended."""
        if self._owned is not None:
            object.__setattr__(self._owned, "_oncekey", (None, _no_owner, None))


class ConnectionLoan(_SwappedConnection):
    """The loan of a blocking `Connection`."""

    _current_owner = staticmethod(threading.get_ident)

    def __init__(self, connection: Any) -> None:
        self.driver = lend(connection.connection.dbapi_connection)
        super().__init__(connection, self.driver.stand_in)
        self._is_stuck = False

    def _is_driver_ended(self) -> bool:
        return self.driver.is_ended

    def taint(self) -> None:
        self.driver.is_tainted = True

    def recall(self, *, cut: bool) -> bool:
        """Like `DriverLoan.recall`."""
        if self.is_back:
            return not self._is_stuck
        whole = self.driver.recall(cut=cut)
        self._is_stuck = cut and not whole
        return whole

    def on_checkin(self) -> None:
        """The handler closed its session: the pool takes the connection back."""
        if self.recall(cut=True):  # else a statement is still running, and it closes itself
            self.restore()
        self.is_back = True
        if self.driver.is_tainted:
            self._record.invalidate()

    def close_when_free(self, callback: Callable[[], None]) -> None:
        """When the last thread leaves the connection, call `callback` and close the connection."""
        if isinstance(self.driver, SqliteLoan):

            def leave() -> None:
                callback()
                self._real.close()

            self.driver.when_free(leave)


class AsyncConnectionLoan(_SwappedConnection):
    """The loan of the `Connection` inside an `AsyncConnection`. SQLAlchemy wraps the driver's
    connection in an adapter; the stand-in is a copy of that adapter, on a stand-in of the driver's
    connection if there is one.
    """

    _current_owner = staticmethod(asyncio.current_task)

    def __init__(self, connection: Any) -> None:
        self._adapter = connection.connection.dbapi_connection
        self._driver = lend_async(self._adapter.driver_connection)
        self._copy = _copy_of(self._adapter)
        for_pool = None
        if self._driver is not None:
            self._copy._connection = self._driver.stand_in
        else:
            for_pool = _AdapterForPool(self._copy)
        super().__init__(connection, self._copy, for_pool)
        self.is_tainted = False
        self._is_revoked = False

    def _is_driver_ended(self) -> bool:
        if self._driver is not None:
            return self._driver.is_ended
        return bool(object.__getattribute__(self._copy, "oncekey_ended"))

    async def recall(self, *, cut: bool) -> bool:
        """Like `DriverLoan.recall`."""
        if self.is_back:
            return True
        if self._driver is not None:
            whole = await self._driver.recall(cut=cut)
        else:
            self.is_tainted = self.is_tainted or self._adapter._execute_mutex.locked()
            whole = cut or await wait_until_free(self._adapter._execute_mutex, LEAVE_S_MAX)
        self._revoke()
        return whole

    def _revoke(self) -> None:
        if self._is_revoked:
            return
        self._is_revoked = True
        for name in _slots(self._adapter.__class__):
            if name != "_connection" and hasattr(self._copy, name):
                setattr(self._adapter, name, getattr(self._copy, name))
        # A statement or cursor made from asyncpg's own connection would still work.
        kept = self._driver.is_tainted if self._driver is not None else self._copy.oncekey_kept
        self.is_tainted = self.is_tainted or kept
        revoke(self._copy)

    def on_checkin(self) -> None:
        """The handler closed its session: the pool takes the connection back."""
        if self._driver is not None:
            self._driver.revoke()
        self._revoke()
        self.restore()
        self.is_back = True
        if self.is_tainted:
            self._record.invalidate()


def watch_pool(engine: Any) -> None:
    """Handle lent connections of this engine when its pool gets or closes them."""
    event = importlib.import_module("sqlalchemy.event")
    event.listen(engine, "checkin", _on_checkin)
    event.listen(engine, "close", _on_close)


def _on_checkin(_: Any, record: Any) -> None:
    loan = record.info.pop(LOAN, None)
    if loan is not None:
        loan.on_checkin()


def _on_close(_: Any, record: Any) -> None:
    loan = record.info.pop(LOAN, None)
    if loan is not None:
        loan.on_close()


# ----------------------------------------------------------------------- copies of adapters


def _copy_of(adapter: Any) -> Any:
    copy = object.__new__(_watched_adapter_class(adapter.__class__))
    for name in _slots(adapter.__class__):
        if hasattr(adapter, name):
            setattr(copy, name, getattr(adapter, name))
    copy.oncekey_kept = copy.oncekey_ended = False
    return copy


@functools.cache
def _slots(kind: Any) -> tuple[str, ...]:
    named = (getattr(each, "__slots__", ()) for each in kind.__mro__)
    slots = [name for names in named for name in ((names,) if isinstance(names, str) else names)]
    return tuple(name for name in slots if not name.startswith("__"))


@functools.cache
def _watched_adapter_class(kind: Any) -> Any:
    """Make an adapter class that records commits, and whether the handler took something from it
    that cannot be revoked.
    """

    def driver_connection(self: Any) -> Any:
        self.oncekey_kept = True
        return self._connection

    def run_async(self: Any, function: Any) -> Any:
        self.oncekey_kept = True
        return kind.run_async(self, function)

    def cursor(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:  # on the server
            self.oncekey_kept = True
        return kind.cursor(self, *args, **kwargs)

    def commit(self: Any) -> Any:
        self.oncekey_ended = True
        return kind.commit(self)

    return type(
        kind.__name__,
        (kind,),
        {
            "__module__": kind.__module__,
            "__slots__": ("oncekey_ended", "oncekey_kept"),
            "commit": commit,
            "driver_connection": property(driver_connection),
            "run_async": run_async,
            "cursor": cursor,
        },
    )


class _AdapterForPool:
    """For the pool, which finds the driver's connection inside the adapter."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    @property
    def _connection(self) -> Any:
        return self._adapter.driver_connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)
