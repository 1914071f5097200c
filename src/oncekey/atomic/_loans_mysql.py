"""Lending connections of PyMySQL and asyncmy, which let anybody in at any time."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Callable
from typing import Any

from oncekey.atomic._gate import Gate
from oncekey.atomic._loans import LEAVE_S_MAX, revoke, twin_of

_ASKING = (
    *("_read_packet", "autocommit", "begin", "commit", "kill", "next_result", "ping", "query"),
    *("rollback", "select_db", "set_character_set", "set_charset", "show_warnings"),
)
"""The methods of PyMySQL that send something to the server or read what it answers."""
_GATE = "_oncekey_gate"
_CLOSED = "_oncekey_closed"
_ENDED = "_oncekey_ended"
_READS = "_oncekey_reads"
_ENDING = ("commit", "begin")
"""What ends a transaction by committing it."""
_LOOK_AGAIN_S = 0.01


class PyMySQLLoan:
    """Of a `pymysql.Connection`. Its stand-in counts who is in the middle of a command."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._gate = Gate()
        self.lent = twin_of(connection, _gated(connection.__class__))
        setattr(self.lent, _GATE, self._gate)
        connection.__dict__[_ENDED] = False
        self.tainted = False

    @property
    def ended(self) -> bool:
        """The handler has committed, or closed it."""
        return bool(self._connection._closed or self._connection.__dict__[_ENDED])

    def recall(self, *, cut: bool) -> bool:
        if not self._gate.shut():
            self.tainted = True
            if cut:
                self._hang_up()
            if not self._gate.wait(LEAVE_S_MAX):
                return cut  # sockets of Python can be closed while somebody reads from them
        revoke(self.lent)
        _take_stream_back(self._connection)
        return True

    def _hang_up(self) -> None:
        with contextlib.suppress(Exception):  # it is closed already
            self._connection._sock.shutdown(socket.SHUT_RDWR)


@functools.cache
def _gated(kind: Any) -> Any:
    methods = {name: _through_gate(getattr(kind, name)) for name in _ASKING if hasattr(kind, name)}
    return type(kind.__name__, (kind,), {"__module__": kind.__module__, **methods})


def _through_gate(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def asking(self: Any, *args: Any, **kwargs: Any) -> Any:
        with getattr(self, _GATE):
            if method.__name__ in _ENDING:
                setattr(self, _ENDED, True)
            return method(self, *args, **kwargs)

    return asking


class AsyncmyLoan:
    """Of an `asyncmy.Connection`. Who is in the middle of a command waits for bytes, or has not
    read all of them.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.lent = twin_of(connection, _noting(connection.__class__))
        connection.__dict__[_ENDED] = False
        connection.__dict__[_READS] = 0
        self.tainted = False

    @property
    def ended(self) -> bool:
        """The handler has committed, or closed it."""
        connection = self._connection
        closed = _CLOSED in connection.__dict__ and connection._close_reason is None
        return closed or bool(connection.__dict__[_ENDED])

    def revoke(self) -> None:
        """Revoke the stand-in, and wait for nobody."""
        connection = self._connection
        self.tainted = self.tainted or _is_busy(connection)
        revoke(self.lent)
        _take_stream_back(connection)
        for statement in connection._stmt_cache.values():
            statement._connection = connection

    async def recall(self, *, cut: bool) -> bool:
        """As `DriverLoan.recall`."""
        self.tainted = self.tainted or _is_busy(self._connection)
        if not cut:
            await self._wait()
        whole = not _is_busy(self._connection)
        self.revoke()
        if cut and self.tainted:
            self._connection.close()
        return whole or cut

    async def _wait(self) -> None:
        for _ in range(int(LEAVE_S_MAX / _LOOK_AGAIN_S)):
            if not _is_busy(self._connection):
                return
            await asyncio.sleep(_LOOK_AGAIN_S)


@functools.cache
def _noting(kind: Any) -> Any:
    """Notes a commit, who reads, and that it was closed while it was whole; asyncmy closes what
    broke in the same way.
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

    ends = {name: _ending(getattr(kind, name)) for name in _ENDING}
    methods = {"close": close, "ensure_closed": ensure_closed, "read_packet": read_packet, **ends}
    return type(kind.__name__, (kind,), {"__module__": kind.__module__, **methods})


def _ending(method: Any) -> Any:
    async def ending(self: Any) -> Any:
        setattr(self, _ENDED, True)
        return await method(self)

    return ending


def _is_busy(connection: Any) -> bool:
    protocol = connection._proto
    if protocol is None:
        return False
    if protocol._read_waiter is not None or protocol._drain_waiter is not None:
        return True
    if connection.__dict__[_READS]:  # what it waited for has come, and it has not gone on yet
        return True
    return protocol.length != protocol.pos and not _is_streaming(connection)


def _is_streaming(connection: Any) -> bool:
    """Whether it has a result that the handler has not read to its end, and need not."""
    return connection._result is not None and bool(connection._result.unbuffered_active)


def _take_stream_back(connection: Any) -> None:
    """What is left of such a result is skipped before the next command, by a result of ours: the
    handler's own could take rows from under that, and still has its stand-in.
    """
    if _is_streaming(connection):
        handlers = connection._result
        connection._result = type(handlers)(connection)
        connection._result.unbuffered_active = True
        if handlers.__class__.__dictoffset__:  # PyMySQL's would complain when it is freed
            revoke(handlers)
