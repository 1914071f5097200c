"""Lend a handler its connection, and revoke it when the transaction ends.

A handler can leave a thread, background task or stream running. If that still held the connection,
it would work in the connection's next transaction. So handlers get a stand-in for the pool's
connection, revoked when their transaction ends. A statement still running then is cut off, and its
connection is closed instead of returning to the pool.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any, Protocol

from oncekey.errors import Misuse

LEAVE_S_MAX = 1.0
"""How long to wait for a statement that is still running."""
HAS_ENDED = (
    "the transaction of this atomic handler has ended, and its connection or session with it: code "
    "that runs after the response, such as a thread, a background task or a stream, must open its "
    "own"
)
STILL_IN_USE = (
    "the handler has returned, but a thread or task that it started still uses its connection: "
    "wait for it before you return"
)


class Loan:
    """Provides `oncekey.current().connection` until the transaction ends."""

    __slots__ = ("_stand_in", "_was_used", "adapter")

    def __init__(self, stand_in: Any, adapter: Any) -> None:
        self._stand_in = stand_in
        self.adapter = adapter
        self._was_used = False

    @property
    def connection(self) -> Any:
        """The lent connection. Raises `Misuse` after the transaction has ended."""
        if self._stand_in is None:
            raise Misuse(HAS_ENDED)
        self._was_used = True
        return self._stand_in

    @property
    def was_used(self) -> bool:
        """Whether the handler took the connection."""
        return self._was_used

    def end(self) -> None:
        self._stand_in = None


class DriverLoan(Protocol):
    """The loan of a blocking driver connection."""

    stand_in: Any
    """The stand-in."""
    is_tainted: bool
    """A statement was running or may continue: close the connection instead of returning it to the
    pool.
    """

    @property
    def is_ended(self) -> bool:
        """Whether the handler committed (as far as can be seen) or closed the connection. Not
        true for a broken connection or a transaction that the server rolled back.
        """

    def recall(self, *, cut: bool) -> bool:
        """Revoke the stand-in. A running statement gets `LEAVE_S_MAX` to end, or is `cut` off at
        once. Return False if it still runs: then do not touch the connection, it closes itself.
        """


async def wait_until_free(lock: asyncio.Lock, s_max: float) -> bool:
    """Wait until a lock is free. Return whether it is."""
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
    """Make another object of the connection's class that shares its `__dict__`.

    It passes for the connection everywhere, including class checks, and what is made from it
    (cursors, transactions) holds the twin. For classes written in Python.
    """
    twin = object.__new__(kind or type(connection))
    twin.__dict__ = connection.__dict__
    return twin


def revoke(stand_in: Any) -> None:
    """Make every further use raise `Misuse`; only closing does nothing."""
    if _REVOKED in type(stand_in).__dict__:
        return
    stand_in.__class__ = _revoked_class(stand_in.__class__)
    if stand_in.__class__.__dictoffset__:
        object.__setattr__(stand_in, "__dict__", {})


@functools.cache
def _revoked_class(kind: Any) -> Any:
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
    raise Misuse(HAS_ENDED)


def _set(self: Any, name: str, value: Any) -> None:
    raise Misuse(HAS_ENDED)


def _drop(self: Any) -> None:
    """Do nothing: the connection is not its own to close or to warn about."""


def _show(self: Any) -> str:
    return f"<{type(self).__name__} of an atomic handler that has ended>"


def _close(self: Any) -> None:
    """Do nothing: it has ended already."""


async def _close_async(self: Any) -> None:
    """Do nothing: it has ended already."""
