"""A gate before a connection: one thread at a time is behind it, and it can be shut for good."""

from __future__ import annotations

import threading
from collections.abc import Callable

from oncekey.atomic._loans import OVER
from oncekey.errors import Misuse


class Gate:
    """`with gate:` around each use of what is behind it. A thread that is inside may enter again,
    as a function does that SQL calls.
    """

    __slots__ = ("_depth", "_inside", "_lock", "_then", "is_shut")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._inside: int | None = None
        """Which thread."""
        self._then: Callable[[], None] | None = None
        self.is_shut = False

    def __enter__(self) -> None:
        thread = threading.get_ident()
        if self.is_shut and self._inside != thread:  # and waits for nobody
            raise Misuse(OVER)
        self._lock.acquire()
        if self.is_shut and not self._depth:
            self._leave()
            raise Misuse(OVER)
        self._depth += 1
        self._inside = thread

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._inside = None
        self._leave()

    def _leave(self) -> None:
        self._lock.release()
        self._call_when_left()

    def shut(self) -> bool:
        """Let nobody in any more. Whether nobody is inside."""
        self.is_shut = True
        return self.wait(0.0)

    def wait(self, s_max: float) -> bool:
        """Wait until nobody is inside. Whether that is so."""
        free = self._lock.acquire(timeout=s_max) if s_max else self._lock.acquire(blocking=False)
        if free:
            free = not self._depth  # else it is this thread itself, which SQL has called
            self._lock.release()
        return free

    def when_left(self, then: Callable[[], None]) -> None:
        """Call `then` once nobody is inside, in the thread of whoever leaves last."""
        self._then = then
        self._call_when_left()

    def _call_when_left(self) -> None:
        if self._then is None or not self._lock.acquire(blocking=False):
            return
        try:
            if not self._depth:
                then, self._then = self._then, _nothing
                then()
        finally:
            self._lock.release()


def _nothing() -> None:
    """It was done."""
