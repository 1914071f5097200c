"""Run in a thread what would block an event loop.

One thread computes and another one writes files, for the whole process. More would not be faster,
since the interpreter runs one thread at a time, and each would make all others wait longer for
their turn. Blocking callers compute in their own thread, one at a time.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class OffloadThread:
    """One thread, started when there is something to do."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._mutex, self._turn = threading.Lock(), threading.Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._gevent: Any = None

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` while the event loop goes on. Cancelling the caller does not stop it."""
        with self._mutex:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix=self._name)
            thread = self._thread
        return await asyncio.get_running_loop().run_in_executor(thread, work)

    def run_sync(self, work: Callable[[], T]) -> T:
        """Run `work` in this thread, one caller at a time; under gevent, whose threads share an
        event loop, in a real thread.
        """
        if not _under_gevent():
            with self._turn:
                return work()
        if self._gevent is None:
            self._gevent = importlib.import_module("gevent.threadpool").ThreadPool(1)
        done: T = self._gevent.apply(work)
        return done


def _under_gevent() -> bool:
    patched = sys.modules.get("gevent.monkey")
    return patched is not None and bool(patched.is_module_patched("threading"))


cpu_thread, file_thread = OffloadThread("oncekey-computes"), OffloadThread("oncekey-writes")
