"""A SQLite file for event loops: a separate thread waits for the disk.

Passing a question to a thread and its answer back takes as long as a commit on a fast disk. So a
brief question is answered in the event loop while commits take less than `QUICK_S` each; parsing a
long request blocks the loop for longer. After the first slow one all go to the thread, until
commits are quick again. A question that would have to wait for a lock always goes to the thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from oncekey._system.clock import SystemClock
from oncekey.errors import StoreUnavailable, StoreUnfit
from oncekey.stores.sqlite.connection import Busy, File, Place, Question, SqliteConnection

LIMIT_TIMEOUTS = 3
"""A question waits for other writers at most twice; after one more `timeout_s` the disk hangs."""
QUICK_S = 0.001
QUICK_IN_A_ROW = 32

_monotonic = SystemClock.monotonic


class Brief(partial[Any]):
    """A short question about one record: at most one commit, and few bytes."""


class Pace:
    """Whether the disk has been quick lately. Only commits prove it; anything slow refutes it."""

    def __init__(self) -> None:
        self._in_a_row = 0

    @property
    def quick(self) -> bool:
        return self._in_a_row >= QUICK_IN_A_ROW

    def note(self, took_s: float, *, wrote: bool) -> None:
        if took_s > QUICK_S:
            self._in_a_row = 0
        elif wrote:
            self._in_a_row += 1


_Call = tuple[Callable[[], Any], asyncio.Future[Any]]
"""A function to call in the thread, and the future that waits for it."""


def _serve(inbox: queue.SimpleQueue[_Call | None], connection: SqliteConnection) -> None:
    while (call := inbox.get()) is not None:
        _make(*call)
        del call  # or an idle thread would keep the loop alive
    connection.close()


def _make(function: Callable[[], Any], waiter: asyncio.Future[Any]) -> None:
    outcome, error = None, None
    try:
        outcome = function()
    except BaseException as caught:
        error = caught
    with contextlib.suppress(RuntimeError):  # the loop was closed
        waiter.get_loop().call_soon_threadsafe(_settle, waiter, outcome, error)


def _settle(waiter: asyncio.Future[Any], outcome: Any, error: BaseException | None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(outcome)
    else:
        waiter.set_exception(error)


class AsyncSqliteConnection:
    """Ask in the event loop or in a thread, which ends when this is closed or collected."""

    def __init__(self, place: Place) -> None:
        self._path, self._limit_s = place.path, place.timeout_s * LIMIT_TIMEOUTS
        self._connection = SqliteConnection(place)
        self._pace = Pace()
        self._inbox: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_serve, args=(self._inbox, self._connection), name="oncekey-sqlite", daemon=True
        )
        self._stop = weakref.finalize(self, self._inbox.put, None)
        self._hangs = False
        self._thread.start()

    async def ask(self, question: Question) -> Any:
        if type(question) is not Brief:
            return await self._do(partial(self._connection.ask, question))
        timed = partial(self._time, question)
        if self._pace.quick:
            try:
                return self._connection.ask_at_once(timed)
            except Busy:
                pass  # wait for another writer in the thread, not in the event loop
            except (StoreUnavailable, StoreUnfit):
                await self._do(self._connection.close)  # which may take long
                raise
        return await self._do(partial(self._connection.ask, timed))

    def _time(self, question: Question, file: File) -> Any:
        started, before = _monotonic(), file.changes
        try:
            return question(file)
        finally:
            self._pace.note(_monotonic() - started, wrote=file.changes != before)

    async def close(self) -> None:
        """End the thread; one that hangs is left behind, and ends if it ever returns."""
        with contextlib.suppress(StoreUnavailable):
            if not self._hangs:
                await self._do(self._connection.close)
        self._stop()
        if not self._hangs:
            self._thread.join()

    async def _do(self, function: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        timer = loop.call_later(self._limit_s, self._give_up, waiter)
        self._inbox.put((function, waiter))
        try:
            return await waiter
        finally:
            timer.cancel()

    def _give_up(self, waiter: asyncio.Future[Any]) -> None:
        self._hangs = True
        said = f"{self._path}: its disk did not answer within {self._limit_s:g} s"
        _settle(waiter, None, StoreUnavailable(said, sent=True))
