"""What goes on when its caller is gone: handlers, and claims that nobody may be left with.

A handler that runs in a task of its own is not stopped by a caller that is cancelled. A claim whose
reply was lost, or whose caller was interrupted while it was made, is released by its token.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

from oncekey._core.op import Op
from oncekey._core.record import Claim
from oncekey._core.values import value
from oncekey._engine.ownership import Ownership

T = TypeVar("T")

_log = logging.getLogger("oncekey")

FORGETS_MAX, FORGETS_ASYNC_MAX = 64, 1_024
"""Most threads, and most tasks, that release claims whose replies were lost, at once. In an outage
there may be more: those lapse by themselves.
"""


@value
class _Exited:
    """Work that raised `SystemExit`."""

    error: SystemExit


async def _outliving_exit(work: Coroutine[Any, Any, T]) -> T | _Exited:
    """A task that raises `SystemExit` ends its event loop, with all that runs there. It is for the
    caller of the work to do so, as it would be without a task in between: servers answer 500.
    """
    try:
        return await work
    except SystemExit as error:
        return _Exited(error)


class Background:
    """The work beside the callers of one runtime."""

    def __init__(
        self,
        ownership: Ownership,
        drive: Callable[[Op[None]], Awaitable[None]],
        drive_sync: Callable[[Op[None]], None],
    ) -> None:
        self._ownership = ownership
        self._drive = drive
        self._drive_sync = drive_sync
        self._running: set[asyncio.Task[Any]] = set()
        self._forgets = threading.Semaphore(FORGETS_MAX)
        self._forgets_async = threading.Semaphore(FORGETS_ASYNC_MAX)

    def apart(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run `work` in a task of its own. Whoever awaits its end may be cancelled: it goes on."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[T] = loop.create_future()
        task = loop.create_task(_outliving_exit(work))
        self._running.add(task)

        def end(task: asyncio.Task[T | _Exited]) -> None:
            self._running.discard(task)
            error = None if task.cancelled() else task.exception()
            result = None if error is not None or task.cancelled() else task.result()
            if isinstance(result, _Exited):
                error = result.error
            if ended.done():  # its caller has left
                if error is not None:
                    _log.error("a handler failed after its caller had left", exc_info=error)
            elif task.cancelled():
                ended.cancel()
            elif error is not None:
                ended.set_exception(error)
            else:
                ended.set_result(cast("T", result))

        task.add_done_callback(end)
        return ended

    async def drain(self, s_max: float) -> int:
        """Wait for what this event loop still runs, at most `s_max`; how many did not end."""
        loop = asyncio.get_running_loop()
        running = [task for task in self._running if task.get_loop() is loop]
        if not running:
            return 0
        _, late = await asyncio.wait(running, timeout=s_max)
        return len(late)

    def forget(self, claim: Claim) -> None:
        """Release, beside the event loop's other work, a claim that may have happened unheard."""
        if self._forgets_async.acquire(blocking=False):
            self.apart(self._forget(claim))

    async def _forget(self, claim: Claim) -> None:
        try:
            await self._drive(self._ownership.forget(claim))
        except Exception as error:
            _log.warning("a claim was not released, it lapses by itself: %s", error)
        finally:
            self._forgets_async.release()

    def forget_sync(self, claim: Claim) -> None:
        """The same in a thread."""
        if self._forgets.acquire(blocking=False):
            threading.Thread(
                target=self._forget_now, args=(claim,), name="oncekey-forget", daemon=True
            ).start()

    def _forget_now(self, claim: Claim) -> None:
        try:
            self._drive_sync(self._ownership.forget(claim))
        except Exception as error:
            _log.warning("a claim was not released, it lapses by itself: %s", error)
        finally:
            self._forgets.release()
