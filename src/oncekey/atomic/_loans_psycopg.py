"""Lending a connection of psycopg 3, which lets one thread or task at a time into it by a lock."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import sys
from typing import Any

from oncekey.atomic._loans import LEAVE_S_MAX, left, revoke, twin_of

_ENDED = "_oncekey_ended"
_IDLE = 0
"""libpq's name for a connection that is in no transaction."""
CANCELS = 4
"""How often the server is asked to cancel the statement."""


class PsycopgLoan:
    """Of a `psycopg.Connection`."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.lent = twin_of(connection, _lendable(connection.__class__))
        self.lent._oncekey_kept = False
        connection.__dict__[_ENDED] = False
        self.tainted = False

    @property
    def ended(self) -> bool:
        """The handler has ended its transaction, or closed it."""
        return bool(self._connection._closed or self._connection.__dict__[_ENDED])

    def recall(self, *, cut: bool) -> bool:
        lock = self._connection.lock
        revoke(self.lent)
        self.tainted = self.tainted or _is_kept(self.lent)
        if lock.acquire(blocking=False):
            lock.release()
            return self._is_whole(cut)
        self.tainted = True
        if not self._cut_off() if cut else not lock.acquire(timeout=LEAVE_S_MAX):
            return False
        lock.release()
        return self._is_whole(cut)

    def _cut_off(self) -> bool:
        """Whether whoever was in there has left; then it holds the lock."""
        connection, lock = self._connection, self._connection.lock
        for _ in range(CANCELS):  # the first may come before the statement
            with contextlib.suppress(Exception):  # it is hung up on if that does not help
                connection.cancel_safe(timeout=LEAVE_S_MAX / CANCELS)
            if lock.acquire(timeout=LEAVE_S_MAX / CANCELS):
                return True
        _hang_up(connection)
        has_left: bool = lock.acquire(timeout=LEAVE_S_MAX)
        if not has_left:
            _abandon(connection)
        return has_left

    def _is_whole(self, cut: bool) -> bool:
        self.tainted = self.tainted or _has_open_block(self._connection)
        return cut or not _has_open_block(self._connection)


class AsyncPsycopgLoan:
    """Of a `psycopg.AsyncConnection`."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.lent = twin_of(connection, _lendable(connection.__class__))
        self.lent._oncekey_kept = False
        connection.__dict__[_ENDED] = False
        self.tainted = False

    @property
    def ended(self) -> bool:
        """The handler has ended its transaction, or closed it."""
        return bool(self._connection._closed or self._connection.__dict__[_ENDED])

    def revoke(self) -> None:
        """Revoke the stand-in, and wait for nobody."""
        revoke(self.lent)
        busy = self._connection.lock.locked()
        self.tainted = self.tainted or busy or _is_kept(self.lent)

    async def recall(self, *, cut: bool) -> bool:
        """As `DriverLoan.recall`."""
        connection = self._connection
        self.revoke()
        gone = not connection.lock.locked()
        if not gone:
            gone = await (self._cut_off() if cut else left(connection.lock, LEAVE_S_MAX))
        if not gone:
            return False
        self.tainted = self.tainted or _has_open_block(connection)
        return cut or not _has_open_block(connection)

    async def _cut_off(self) -> bool:
        """Whether whoever was in there has left."""
        connection = self._connection
        for _ in range(CANCELS):  # the first may come before the statement
            with contextlib.suppress(Exception):  # it is hung up on if that does not help
                await connection.cancel_safe(timeout=LEAVE_S_MAX / CANCELS)
            if await left(connection.lock, LEAVE_S_MAX / CANCELS):
                return True
        _hang_up(connection)
        if await left(connection.lock, LEAVE_S_MAX):
            return True
        _abandon(connection)
        return False


def _has_open_block(connection: Any) -> bool:
    """Whether a block of the handler's has not ended, which forbids to commit."""
    return bool(connection._num_transactions or connection._pipeline)


def _hang_up(connection: Any) -> None:
    """Wake whoever waits for the server. To close the connection under them could crash."""
    try:
        with socket.socket(fileno=os.dup(connection.pgconn.socket)) as ours:
            ours.shutdown(socket.SHUT_RDWR)
    except Exception:  # it is closed already
        return


def _abandon(connection: Any) -> None:
    """Leave it to whoever is in it, as a generator that is not read to its end: libpq's part is
    closed with the last one that has it. From here on the connection is a closed one.
    """
    kind = type(connection.pgconn)
    try:
        connection.pgconn = kind()
    except TypeError:  # psycopg without its C part
        connection.pgconn = kind(None)


@functools.cache
def _lendable(kind: Any) -> Any:
    """A pool may take what is closed back to itself; not a stand-in. And libpq's part cannot be
    revoked: it is noted whether somebody else than psycopg asked for it. So is that the transaction
    has ended: after a statement that fails in the next one, the server cannot be asked.
    """
    return type(
        kind.__name__,
        (kind,),
        {
            "__module__": kind.__module__,
            "__slots__": ("_oncekey_kept",),
            "close": _closer(kind),
            "wait": _waiter(kind),
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


def _is_kept(stand_in: Any) -> bool:
    return bool(object.__getattribute__(stand_in, "_oncekey_kept"))


def _waiter(kind: Any) -> Any:
    """All that a connection does waits by this."""

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


def _closer(kind: Any) -> Any:
    def close(self: Any) -> None:
        self._closed = True
        self.__dict__["pgconn"].finish()

    async def close_async(self: Any) -> None:
        close(self)

    return close_async if asyncio.iscoroutinefunction(kind.close) else close
