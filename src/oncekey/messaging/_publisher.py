"""The publisher: a worker that publishes an outbox's messages, for event loops and for threads.

Any number of publishers may run on one outbox, in one process or many. `_outbox_worker` makes the
decisions; this module queries the database, calls the broker and waits, async and blocking.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from oncekey._core.backoff import full_jitter
from oncekey._core.message import Message
from oncekey._core.op import Pause, arun, run
from oncekey._core.printable import printable
from oncekey._core.validation import must_be_limits
from oncekey._system.chance import chance
from oncekey._system.clock import Clock, SystemClock
from oncekey.errors import Misuse
from oncekey.messaging._outbox import Outbox
from oncekey.messaging._outbox_worker import (
    LEASE_USED,
    Deliver,
    DeliveryOutcome,
    Failed,
    Limits,
    OutboxWorker,
    Published,
    Round,
    Unreachable,
    Untried,
)
from oncekey.stores.base import AsyncConnection, Connection
from oncekey.stores.connection import Outage

PublishFunction = Callable[[Message], Any]

OUTAGES: tuple[type[BaseException], ...] = (ConnectionError, TimeoutError)
"""Exceptions of a `publish` function that mean the broker is unreachable, not that the message
failed; `outages=` adds others, such as exceptions of the broker's client.
"""
OUTAGE_S_MIN, OUTAGE_S_MAX = 0.1, 5.0
MISSES_MAX = 3
"""After this many unreachable outcomes in a row, the rest of the batch is not tried."""
ERROR_CHARS_MAX = 500

_log = logging.getLogger("oncekey")


class Publisher:
    """Publishes an outbox's messages: `publish(message)` gives one message to the broker and
    returns (or its awaitable finishes) when the broker has it.

    An async publication is cancelled after `publish_s_max`, by default a third of the lease. A
    blocking one cannot be cancelled: give its client a timeout of that length.
    """

    def __init__(
        self,
        outbox: Outbox,
        publish: PublishFunction,
        *,
        limits: Limits | None = None,
        poll_s: float = 0.5,
        publish_s_max: float | None = None,
        concurrency_max: int = 16,
        outages: tuple[type[BaseException], ...] = (),
        clock: Clock | None = None,
        chance: Callable[[], float] = chance,
    ) -> None:
        _validate_arguments(outbox, publish, limits, outages)
        limits = limits or Limits()
        rest_s = limits.lease_s * (1 - LEASE_USED)
        publish_s_max = rest_s if publish_s_max is None else publish_s_max
        numbers = {"poll_s": poll_s, "publish_s_max": publish_s_max}
        must_be_limits("Publisher", {**numbers, "concurrency_max": concurrency_max})
        if publish_s_max > rest_s:
            raise Misuse(
                f"publish_s_max={publish_s_max:g}: if a publication takes longer than a third of "
                f"lease_s={limits.lease_s:g}, another worker may start it too"
            )
        self._store = outbox.store
        self._publish = publish
        self._poll_s = poll_s
        self._publish_s_max = publish_s_max
        self._concurrency_max = concurrency_max
        self._outages = (*OUTAGES, *outages)
        self._clock = clock or SystemClock()
        self._chance = chance
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._loop_wake: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._worker = OutboxWorker(
            outbox.table,
            limits,
            self._clock,
            is_stopping=self._stop.is_set,
            chance=chance,
        )
        self._outage = Outage(
            "the outbox", self._clock, fails="cannot be read", works="can be read again"
        )
        self._is_broker_unreachable = False
        self._connection: Connection | None = None
        self._async_connection: AsyncConnection | None = None

    def stop(self) -> None:
        """End `run` after the current message; call it from any thread or task."""
        self._stop.set()
        self.wake()

    def wake(self) -> None:
        """Look for messages now instead of at the next poll, for example after a commit."""
        self._wake.set()
        if (loop_wake := self._loop_wake) is not None:
            loop, event = loop_wake
            with contextlib.suppress(RuntimeError):  # the loop has ended, and `run` with it
                loop.call_soon_threadsafe(event.set)

    # ---------------------------------------------------------------------------------- async

    async def run(self) -> None:
        """Publish until `stop()` or cancellation, through outages of the database or broker."""
        event = asyncio.Event()
        self._loop_wake = asyncio.get_running_loop(), event
        try:
            while not self._stop.is_set():
                event.clear()
                with self._keep_running():
                    await self._drain_once()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), self._pause_s())
        finally:
            self._loop_wake = None
            await self.aclose()

    async def drain(self) -> Round:
        """Publish what is due now and return counts; `outage` says why it ended early."""
        try:
            return await self._drain_once()
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        connection, self._async_connection = self._async_connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it may be broken; it is dropped either way
                await connection.close()

    async def _drain_once(self) -> Round:
        return self._log_broker_outage(await arun(self._worker.run_until_empty(), self._ask))

    async def _ask(self, question: Any) -> Any:
        match question:
            case Deliver():
                return await self._deliver(question)
            case Pause(seconds):
                return await asyncio.sleep(seconds)
        try:
            if self._async_connection is None:
                self._async_connection = await self._store.aconnect()
                await arun(self._store.prepare(), self._async_connection.ask)
            return await self._async_connection.ask(question)
        except BaseException:
            await self.aclose()  # the connection's state is unknown
            raise

    async def _deliver(self, batch: Deliver) -> list[DeliveryOutcome]:
        outcomes: list[DeliveryOutcome] = [Untried()] * len(batch.messages)
        waiting = iter(enumerate(batch.messages))
        misses = 0

        async def worker() -> None:
            nonlocal misses
            for at, message in waiting:
                if misses >= MISSES_MAX or self._too_late(batch):
                    return
                outcomes[at] = await self._publish_one(message)
                misses = misses + 1 if isinstance(outcomes[at], Unreachable) else 0

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._concurrency_max, len(batch.messages))):
                group.create_task(worker())
        return outcomes

    async def _publish_one(self, message: Message) -> DeliveryOutcome:
        try:
            async with asyncio.timeout(self._publish_s_max):
                result = self._publish(message)
                if inspect.isawaitable(result):
                    await result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return self._classify_error(error)  # the client cancelled something, not this worker
        except Exception as error:
            return self._classify_error(error)
        return Published()

    # ----------------------------------------------------------------------------------- sync

    def run_sync(self) -> None:
        """Blocking `run`, for a thread and a blocking `publish`."""
        try:
            while not self._stop.is_set():
                self._wake.clear()
                with self._keep_running():
                    self._drain_once_sync()
                self._wake.wait(self._pause_s())
        finally:
            self.close()

    def drain_sync(self) -> Round:
        """Blocking `drain`, for a blocking `publish`."""
        try:
            return self._drain_once_sync()
        finally:
            self.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it may be broken; it is dropped either way
                connection.close()

    def _drain_once_sync(self) -> Round:
        return self._log_broker_outage(run(self._worker.run_until_empty(), self._ask_sync))

    def _ask_sync(self, question: Any) -> Any:
        match question:
            case Deliver():
                return self._deliver_sync(question)
            case Pause(seconds):
                return time.sleep(seconds)
        try:
            if self._connection is None:
                self._connection = self._store.connect()
                run(self._store.prepare(), self._connection.ask)
            return self._connection.ask(question)
        except BaseException:
            self.close()  # the connection's state is unknown
            raise

    def _deliver_sync(self, batch: Deliver) -> list[DeliveryOutcome]:
        outcomes: list[DeliveryOutcome] = [Untried()] * len(batch.messages)
        misses = 0
        for at, message in enumerate(batch.messages):
            if misses >= MISSES_MAX or self._too_late(batch):
                break
            try:
                result = self._publish(message)
            except Exception as error:
                outcomes[at] = self._classify_error(error)
                misses = misses + 1 if isinstance(outcomes[at], Unreachable) else 0
                continue
            if inspect.iscoroutine(result):
                result.close()  # it has not started
                raise Misuse("publish= is async: use run() or drain() in an event loop")
            outcomes[at], misses = Published(), 0
        return outcomes

    # ----------------------------------------------------------------------------------- both

    def _too_late(self, batch: Deliver) -> bool:
        return self._stop.is_set() or self._clock.monotonic() >= batch.begin_until

    def _classify_error(self, error: BaseException) -> DeliveryOutcome:
        why = printable(f"{type(error).__name__}: {error}", ERROR_CHARS_MAX)
        return Unreachable(why) if isinstance(error, self._outages) else Failed(why)

    def _pause_s(self) -> float:
        """Return the wait until the next poll, with jitter so that workers do not poll at once."""
        if self._worker.outages:
            bound = full_jitter(self._worker.outages - 1, OUTAGE_S_MIN, OUTAGE_S_MAX, 1.0)
            return bound * (0.5 + self._chance() / 2)
        return self._outage.pause_s(self._poll_s) * (0.5 + self._chance() / 2)

    @contextlib.contextmanager
    def _keep_running(self) -> Iterator[None]:
        """Keep polling after a failed round; only `Misuse` is raised."""
        try:
            yield
        except Misuse:  # every round would fail like that
            raise
        except Exception as error:
            self._outage.record_failure(error)
        else:
            self._outage.record_success()

    def _log_broker_outage(self, done: Round) -> Round:
        if done.outage is not None and not self._is_broker_unreachable:
            self._is_broker_unreachable = True
            _log.warning("the broker cannot be reached, messages wait: %s", done.outage)
        elif done.published and self._is_broker_unreachable:
            self._is_broker_unreachable = False
            _log.warning("the broker can be reached again")
        return done


def _validate_arguments(outbox: object, publish: object, limits: object, outages: object) -> None:
    """Fail when a worker is made, not at its first message or first outage."""
    if not isinstance(outbox, Outbox):  # not shown: it may be a URL, with a password
        raise Misuse(
            "Publisher(outbox, publish): give it the Outbox(…) that you put messages into, not a "
            f"{type(outbox).__name__}"
        )
    if not callable(publish):
        raise Misuse(f"Publisher(…, publish): give it a function of one message, not {publish!r}")
    if not isinstance(limits, Limits | None):
        raise Misuse(f"Publisher(limits={limits!r}): takes a Limits, such as Limits(batch_max=10)")
    kinds = outages if isinstance(outages, tuple) else None
    if kinds is None or not all(
        isinstance(k, type) and issubclass(k, BaseException) for k in kinds
    ):
        raise Misuse(f"Publisher(outages={outages!r}): takes a tuple of exception classes")
