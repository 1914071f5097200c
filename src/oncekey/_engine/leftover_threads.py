"""Threads that still run for an attempt whose handler has ended.

A task that waits for a thread can be cancelled, the thread cannot: it goes on, and so do its
effects. A record that is given back meanwhile would let a retry run beside it. So before anything
is given back, `still_running` looks at what all threads of the process are doing.

Two kinds are known. A thread that runs in a copy of the handler's context: `asyncio.to_thread` and
the thread pools of frameworks (anyio, asgiref) make such a copy, and keep it where it can be found
while their thread is in it. And a thread that was handed the attempt, and used it.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oncekey._engine.attempt import Attempt

POOL_FRAMES = 8
"""A pool runs its work from one of its first frames; so deep a stack is searched for a context."""
_NESTED_MAX = 4
_POOLS = (
    *("threading", "concurrent.futures.thread", "multiprocessing.pool"),
    *("anyio._backends._asyncio", "asgiref.sync"),
)


_RUN_FOREVER = asyncio.BaseEventLoop.run_forever.__code__
_RUN_UNTIL_COMPLETE = asyncio.BaseEventLoop.run_until_complete.__code__

_looking = threading.RLock()
if hasattr(os, "register_at_fork"):  # a child must not begin in the middle of a look
    os.register_at_fork(
        before=_looking.acquire,
        after_in_parent=_looking.release,
        after_in_child=_looking.release,
    )


class Guests:
    """The threads that used an attempt, other than the one that its handler began in."""

    __slots__ = ("_roots", "_tasks")

    def __init__(self) -> None:
        self._roots: dict[int, types.FrameType] | None = None
        self._tasks: set[asyncio.Task[Any]] | None = None
        """For threads that run an event loop for ever: what they did in it."""

    def note(self) -> None:
        """The calling thread uses the attempt."""
        ident = threading.get_ident()
        frame = sys._getframe(1)
        if (task := _task(frame)) is not None:
            if self._tasks is None:
                self._tasks = set()
            self._tasks.add(task)
            return
        if self._roots is None:
            self._roots = {}
        self._roots[ident] = _root(frame)

    def still_running(self, frames: dict[int, types.FrameType], but: int) -> bool:
        """Whether one of them has not returned from what it did then."""
        if self._tasks and not all(task.done() for task in tuple(self._tasks)):
            return True
        for ident, root in (self._roots or {}).items():
            frame = frames.get(ident)
            if ident != but and frame is not None and root in _stack(frame):
                return True
        return False


def still_running(attempt: Attempt, guests: Guests | None, current: Any) -> bool:
    """Whether another thread than this one still runs for an attempt. `current` is the variable by
    which contexts know their attempt.
    """
    with _without_collecting():
        ours, frames = threading.get_ident(), sys._current_frames()
        try:
            if guests is not None and guests.still_running(frames, ours):
                return True
            for ident, frame in frames.items():
                if ident == ours:
                    continue
                for context in _contexts_of(frame):
                    if _is_within(attempt, context.get(current)) and _is_entered(context):
                        return True
            return False
        finally:
            del frames  # or every local variable of every thread would live as long as this frame


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Collect no garbage while frames of other threads are looked at.

    Before Python 3.12 that can happen within `f_back` and `_current_frames`. What is collected may
    let the other thread go on: the frame is gone then that is looked at, and the process dies.
    """
    with _looking:
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


def _is_within(attempt: Attempt, entered: Attempt | None) -> bool:
    """Whether a context is this attempt's, or that of a guarded function which it called."""
    while entered is not None:
        if entered is attempt:
            return True
        entered = entered.outer
    return False


def _is_entered(context: Context) -> bool:
    """Whether some thread runs in it right now: no other may enter it then."""
    try:
        context.run(bool)
    except RuntimeError:
        return True
    return False


def _stack(frame: types.FrameType) -> list[types.FrameType]:
    """From the innermost frame to the first."""
    stack: list[types.FrameType] = []
    inner: types.FrameType | None = frame
    while inner is not None:
        stack.append(inner)
        inner = inner.f_back
    return stack


def _task(frame: types.FrameType) -> asyncio.Task[Any] | None:
    """The task that runs here, if its loop runs until it is stopped, and not for one task."""
    for outer in _stack(frame):
        if outer.f_code is _RUN_FOREVER:
            caller = outer.f_back
            is_bare = caller is None or caller.f_code is not _RUN_UNTIL_COMPLETE
            return asyncio.current_task() if is_bare else None
    return None


def _root(frame: types.FrameType) -> types.FrameType:
    """The first frame that is not the pool's own: what the thread was started or asked to do."""
    for outer in reversed(_stack(frame)):
        if outer.f_globals.get("__name__") not in _POOLS:
            return outer
    return frame


def _contexts_of(frame: types.FrameType) -> Iterator[Context]:
    """The contexts that the pool of a thread holds at hand."""
    for outer in _stack(frame)[-POOL_FRAMES:]:
        for value in list(outer.f_locals.values()):
            yield from _contexts_in(value)


def _contexts_in(value: object, depth: int = 0) -> Iterator[Context]:
    if isinstance(value, Context):
        yield value
        return
    parts: tuple[Any, ...] = ()
    if isinstance(value, types.BuiltinMethodType):
        parts = (value.__self__,) if isinstance(value.__self__, Context) else ()
    elif isinstance(value, functools.partial):
        parts = (value.func, *value.args)
    elif isinstance(value, threading.Thread):
        parts = (getattr(value, "_target", None), getattr(value, "_args", None))
    elif type(value).__name__ == "_WorkItem":
        parts = tuple(vars(value).values())
    elif isinstance(value, tuple):
        parts = value
    if depth < _NESTED_MAX:
        for part in parts:
            yield from _contexts_in(part, depth + 1)
