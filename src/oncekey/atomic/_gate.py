"""A gate that lets one thread at a time use a connection, and can be shut for good."""

from __future__ import annotations

import threading
from collections.abc import Callable

from oncekey.atomic._loans import HAS_ENDED
from oncekey.errors import Misuse


class Gate:
    """Use `with gate:` around each use of the connection. A thread inside may enter again, as a
    function called from SQL does.
    """

    __slots__ = ("_callback", "_depth", "_inside", "_lock", "is_shut")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._inside: int | None = None
        """The id of the thread inside."""
        self._callback: Callable[[], None] | None = None
        self.is_shut = False

    def __enter__(self) -> None:
        thread = threading.get_ident()
        if self.is_shut and self._inside != thread:  # without waiting
            raise Misuse(HAS_ENDED)
        self._lock.acquire()
        if self.is_shut and not self._depth:
            self._leave()
            raise Misuse(HAS_ENDED)
        self._depth += 1
        self._inside = thread

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._inside = None
        self._leave()

    def _leave(self) -> None:
        self._lock.release()
        self._call_when_free()

    def shut(self) -> bool:
        """Refuse further entries. Return whether no thread is inside."""
        self.is_shut = True
        return self.wait(0.0)

    def wait(self, s_max: float) -> bool:
        """Wait until no thread is inside. Return whether that is so."""
        free = self._lock.acquire(timeout=s_max) if s_max else self._lock.acquire(blocking=False)
        if free:
            free = not self._depth  # else this thread itself is inside, called from SQL
            self._lock.release()
        return free

    def when_free(self, callback: Callable[[], None]) -> None:
        """Call `callback` once no thread is inside, in the thread that leaves last."""
        self._callback = callback
        self._call_when_free()

    def _call_when_free(self) -> None:
        if self._callback is None or not self._lock.acquire(blocking=False):
            return
        try:
            if not self._depth:
                callback, self._callback = self._callback, _do_nothing
                callback()
        finally:
            self._lock.release()


def _do_nothing() -> None:
    """Replace a callback that was called."""
