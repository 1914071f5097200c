"""What a handler is lent, and how it is taken back.

A handler can leave something running behind it: a thread, a background task, a stream. If that
still held the connection, it would work in the transaction of whoever gets the connection next. So
handlers are never given the connection of a pool, but a stand-in that is revoked when their
transaction ends. What is still in the middle of a statement then is cut off, and its connection is
closed instead of going back to the pool.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any, Protocol

from oncekey.errors import Misuse

LEAVE_S_MAX = 1.0
"""How long to wait for whoever is still in the middle of a statement."""
OVER = (
    "the transaction of this atomic handler has ended, and its connection or session with it: what "
    "runs on after the answer, such as a thread, a background task or a stream, must open one of "
    "its own"
)
STAYED = (
    "the handler has answered, but a thread or task that it started is still using its connection: "
    "wait for it before answering"
)


class Loan:
    """What `oncekey.current().connection` gives, until the transaction ends."""

    __slots__ = ("_lent", "_used", "adapter")

    def __init__(self, lent: Any, adapter: Any) -> None:
        self._lent = lent
        self.adapter = adapter
        self._used = False

    @property
    def connection(self) -> Any:
        """What is lent. Raises `Misuse` once the transaction has ended."""
        if self._lent is None:
            raise Misuse(OVER)
        self._used = True
        return self._lent

    @property
    def used(self) -> bool:
        """Whether anybody asked for it."""
        return self._used

    def end(self) -> None:
        self._lent = None


class DriverLoan(Protocol):
    """The loan of a driver's connection that blocks."""

    lent: Any
    """The stand-in."""
    tainted: bool
    """Somebody was in the middle of a statement, or may come back to one: close the connection
    instead of giving it back.
    """

    @property
    def ended(self) -> bool:
        """The handler has committed, as far as that could be seen, or closed it. A connection that
        broke is not meant, nor what the server has undone.
        """

    def recall(self, *, cut: bool) -> bool:
        """Revoke the stand-in. Whoever is in a statement may end it for `LEAVE_S_MAX`, or is `cut`
        off at once. False: somebody is still in there. The connection must not be touched then, and
        is closed by itself.
        """


async def left(lock: asyncio.Lock, s_max: float) -> bool:
    """Wait until nobody holds it. Whether that is so."""
    try:
        async with asyncio.timeout(s_max):
            await lock.acquire()
    except TimeoutError:
        return False
    lock.release()
    return True


# ----------------------------------------------------------------------------------- stand-ins

_REVOKED = "__oncekey_revoked__"


def twin_of(connection: Any, kind: Any = None) -> Any:
    """Another object of the connection's class, with the same state: both have one `__dict__`.

    So it passes for the connection everywhere, also in checks of its class, and what is made from
    it (cursors, transactions) holds the twin. For classes that are written in Python.
    """
    twin = object.__new__(kind or type(connection))
    twin.__dict__ = connection.__dict__
    return twin


def revoke(stand_in: Any) -> None:
    """Make every further use of it raise `Misuse`; only closing it does nothing."""
    if _REVOKED in type(stand_in).__dict__:
        return
    stand_in.__class__ = _revoked(stand_in.__class__)
    if stand_in.__class__.__dictoffset__:
        object.__setattr__(stand_in, "__dict__", {})


@functools.cache
def _revoked(kind: Any) -> Any:
    awaited = inspect.iscoroutinefunction(getattr(kind, "close", None))
    return type(
        kind.__name__,
        (kind,),
        {
            "__module__": kind.__module__,
            "__slots__": (),
            _REVOKED: True,
            "__getattribute__": _get,
            "__setattr__": _set,
            "__del__": _drop,
            "__repr__": _show,
            "close": _close_async if awaited else _close,
            "closed": True,
        },
    )


def _get(self: Any, name: str) -> Any:
    if name in ("close", "closed") or (name.startswith("__") and name.endswith("__")):
        return object.__getattribute__(self, name)
    raise Misuse(OVER)


def _set(self: Any, name: str, value: Any) -> None:
    raise Misuse(OVER)


def _drop(self: Any) -> None:
    """The connection is not its own to warn of, or to close."""


def _show(self: Any) -> str:
    return f"<{type(self).__name__} of an atomic handler that has ended>"


def _close(self: Any) -> None:
    """It is over, as was asked for."""


async def _close_async(self: Any) -> None:
    """It is over, as was asked for."""
