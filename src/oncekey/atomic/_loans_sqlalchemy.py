"""Lending what SQLAlchemy's connections stand on: the driver's own connection.

Sessions, connections and results can be closed; but a server-side cursor, or the driver's
connection itself, would survive that and work on whatever the pool does with the connection next.
So while a handler has it, SQLAlchemy works on a stand-in.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import threading
from collections.abc import Callable
from typing import Any

from oncekey.atomic._loan_choice import lend, lend_awaited
from oncekey.atomic._loans import LEAVE_S_MAX, OVER, left, revoke
from oncekey.atomic._loans_sqlite import SqliteLoan
from oncekey.errors import Misuse

LENT = "oncekey_lent"
"""Where a connection's own notes tell of its loan."""


class _Ours:
    """The driver's connection, for one thread or task alone."""

    __slots__ = ("_oncekey",)

    def __init__(self, real: Any, who: Callable[[], Any]) -> None:
        object.__setattr__(self, "_oncekey", (real, who, who()))

    def __getattr__(self, name: str) -> Any:
        return getattr(_checked(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_checked(self), name, value)


def _checked(ours: _Ours) -> Any:
    real, who, owner = ours._oncekey
    if who() != owner:
        raise Misuse(OVER)
    return real


def _nobody() -> object:
    return object()


class _Swap:
    """The driver's connection of one of SQLAlchemy's, and what stands in for it."""

    _who: Callable[[], Any]
    """Tells threads apart, or tasks."""

    def __init__(self, connection: Any, stand_in: Any, driver_told_by: Any = None) -> None:
        """`driver_told_by` is asked for the driver's connection, if somebody wants that one."""
        self._fairy = connection.connection
        self._record = self._fairy._connection_record
        self._real = self._fairy.dbapi_connection
        self._stand_in = stand_in if driver_told_by is None else driver_told_by
        self._fairy.dbapi_connection = stand_in
        self._record.dbapi_connection = self._stand_in
        self._record.info[LENT] = self
        self._ours: _Ours | None = None
        self.is_back = False
        """It is its pool's again."""
        self._had_ended: bool | None = None
        """Whether the handler had ended it when SQLAlchemy closed it, as after an error."""

    def end(self) -> None:
        """Let SQLAlchemy work on the connection itself again, to end the transaction; but only for
        who calls this. A thread of the handler's that still has something of SQLAlchemy's would get
        hold of the connection otherwise, for as long as a commit takes, and could keep it.
        """
        if self._record.dbapi_connection is self._stand_in:
            self._ours = _Ours(self._real, self._who)
            self._fairy.dbapi_connection = self._record.dbapi_connection = self._ours

    def undo(self) -> None:
        """Give its pool the connection itself again, unless SQLAlchemy has closed it."""
        if self._record.dbapi_connection in (self._stand_in, self._ours):
            self._record.dbapi_connection = self._real

    def lose(self) -> None:
        """SQLAlchemy closes it: the connection itself, and not what stands in."""
        self._had_ended = self.ended
        self.undo()
        self.is_back = True

    @property
    def ended(self) -> bool:
        """The handler has closed its session, or ended what the driver began."""
        if self._had_ended is not None:
            return self._had_ended
        return self.is_back or self._driver_ended()

    def _driver_ended(self) -> bool:
        raise NotImplementedError

    def forget(self) -> None:
        """The transaction has ended, and whoever ended it needs the connection no more."""
        if self._ours is not None:
            object.__setattr__(self._ours, "_oncekey", (None, _nobody, None))


class ConnectionLoan(_Swap):
    """Of a `Connection` that blocks."""

    _who = staticmethod(threading.get_ident)

    def __init__(self, connection: Any) -> None:
        self.driver = lend(connection.connection.dbapi_connection)
        super().__init__(connection, self.driver.lent)
        self._is_stuck = False

    def _driver_ended(self) -> bool:
        return self.driver.ended

    def taint(self) -> None:
        self.driver.tainted = True

    def recall(self, *, cut: bool) -> bool:
        """As `DriverLoan.recall`."""
        if self.is_back:
            return not self._is_stuck
        whole = self.driver.recall(cut=cut)
        self._is_stuck = cut and not whole
        return whole

    def come_back(self) -> None:
        """The handler has closed its session: the pool takes the connection back."""
        if self.recall(cut=True):  # else somebody is in there: it is closed by itself
            self.undo()
        self.is_back = True
        if self.driver.tainted:
            self._record.invalidate()

    def close_when_left(self, then: Callable[[], None]) -> None:
        """For a connection that was not left in time: it is closed, after `then`, by whoever leaves
        it last.
        """
        if isinstance(self.driver, SqliteLoan):

            def leave() -> None:
                then()
                self._real.close()

            self.driver.when_left(leave)


class AsyncConnectionLoan(_Swap):
    """Of a `Connection` that an `AsyncConnection` stands on. SQLAlchemy adapts the connection of
    the driver: what stands in is a copy of that adapter, on a stand-in of the driver's connection
    where there can be one.
    """

    _who = staticmethod(asyncio.current_task)

    def __init__(self, connection: Any) -> None:
        self._adapter = connection.connection.dbapi_connection
        self._driver = lend_awaited(self._adapter.driver_connection)
        self._copy = _copy_of(self._adapter)
        teller = None
        if self._driver is not None:
            self._copy._connection = self._driver.lent
        else:
            teller = _Teller(self._copy)
        super().__init__(connection, self._copy, teller)
        self.tainted = False
        self._is_revoked = False

    def _driver_ended(self) -> bool:
        if self._driver is not None:
            return self._driver.ended
        return bool(object.__getattribute__(self._copy, "oncekey_ended"))

    async def recall(self, *, cut: bool) -> bool:
        """As `DriverLoan.recall`."""
        if self.is_back:
            return True
        if self._driver is not None:
            whole = await self._driver.recall(cut=cut)
        else:
            self.tainted = self.tainted or self._adapter._execute_mutex.locked()
            whole = cut or await left(self._adapter._execute_mutex, LEAVE_S_MAX)
        self._revoke()
        return whole

    def _revoke(self) -> None:
        if self._is_revoked:
            return
        self._is_revoked = True
        for name in _slots(self._adapter.__class__):
            if name != "_connection" and hasattr(self._copy, name):
                setattr(self._adapter, name, getattr(self._copy, name))
        # Of asyncpg's own, a statement or cursor that was made of it would go on.
        kept = self._driver.tainted if self._driver is not None else self._copy.oncekey_kept
        self.tainted = self.tainted or kept
        revoke(self._copy)

    def come_back(self) -> None:
        """The handler has closed its session: the pool takes the connection back."""
        if self._driver is not None:
            self._driver.revoke()
        self._revoke()
        self.undo()
        self.is_back = True
        if self.tainted:
            self._record.invalidate()


def watch(engine: Any) -> None:
    """Look after the connections of this engine that are lent."""
    event = importlib.import_module("sqlalchemy.event")
    event.listen(engine, "checkin", _come_back)
    event.listen(engine, "close", _close)


def _come_back(_: Any, record: Any) -> None:
    loan = record.info.pop(LENT, None)
    if loan is not None:
        loan.come_back()


def _close(_: Any, record: Any) -> None:
    loan = record.info.pop(LENT, None)
    if loan is not None:
        loan.lose()


# ----------------------------------------------------------------------- copies of adapters


def _copy_of(adapter: Any) -> Any:
    copy = object.__new__(_noting(adapter.__class__))
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
def _noting(kind: Any) -> Any:
    """An adapter that notes a commit, and whether something was made of it that stays."""

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


class _Teller:
    """For the pool, which tells the driver's connection by looking into the adapter."""

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    @property
    def _connection(self) -> Any:
        return self._adapter.driver_connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)
