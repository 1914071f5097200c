"""The publisher: a worker that drains an outbox into a broker, for event loops and for threads.

Any number of them may run on one outbox, in one process or many. What is decided is decided in
`draining`; here are the two ways to ask the database, to call the broker and to wait.
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
    Drain,
    Failed,
    Limits,
    Outcome,
    Published,
    Round,
    Unreachable,
    Untried,
)
from oncekey.stores.base import AsyncConnection, Connection
from oncekey.stores.connection import Outage

PublishFunction = Callable[[Message], Any]

OUTAGES: tuple[type[BaseException], ...] = (ConnectionError, TimeoutError)
"""What a `publish` function raises when the broker, not the message, is to blame; `outages=` says
what else, such as exceptions of the broker's client.
"""
OUTAGE_S_MIN, OUTAGE_S_MAX = 0.1, 5.0
MISSES_MAX = 3
"""When so many in turn did not reach the broker, the rest of the batch is not tried."""
ERROR_CHARS_MAX = 500

_log = logging.getLogger("oncekey")


class Publisher:
    """Publishes what is in an outbox: `publish(message)` hands one message to the broker and
    returns, or is awaited, when the broker has it.

    An awaited publication is given up after `publish_s_max`, a third of the lease unless given. A
    blocking one cannot be: give its client a timeout of that length.
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
        _must_fit_together(outbox, publish, limits, outages)
        limits = limits or Limits()
        rest_s = limits.lease_s * (1 - LEASE_USED)
        publish_s_max = rest_s if publish_s_max is None else publish_s_max
        numbers = {"poll_s": poll_s, "publish_s_max": publish_s_max}
        must_be_limits("Publisher", {**numbers, "concurrency_max": concurrency_max})
        if publish_s_max > rest_s:
            raise Misuse(
                f"publish_s_max={publish_s_max:g}: a publication that takes longer than a third of "
                f"lease_s={limits.lease_s:g} may be begun by another worker too"
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
        self._bell: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._drain = Drain(
            outbox.shelf,
            limits,
            self._clock,
            stopping=self._stop.is_set,
            chance=chance,
        )
        self._outage = Outage(
            "the outbox", self._clock, fails="cannot be read", works="can be read again"
        )
        self._is_broker_away = False
        self._connection: Connection | None = None
        self._async_connection: AsyncConnection | None = None

    def stop(self) -> None:
        """End `run` after the message under way; from any thread or task."""
        self._stop.set()
        self.wake()

    def wake(self) -> None:
        """Look at once instead of at the next poll: for a process that has just committed."""
        self._wake.set()
        if (bell := self._bell) is not None:
            loop, rings = bell
            with contextlib.suppress(RuntimeError):  # the loop has ended, and `run` with it
                loop.call_soon_threadsafe(rings.set)

    # ---------------------------------------------------------------------------------- async

    async def run(self) -> None:
        """Publish until `stop()` or until cancelled; outages of database and broker included."""
        rings = asyncio.Event()
        self._bell = asyncio.get_running_loop(), rings
        try:
            while not self._stop.is_set():
                rings.clear()
                with self._until_the_next():
                    await self._round_trip()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(rings.wait(), self._pause_s())
        finally:
            self._bell = None
            await self.aclose()

    async def drain(self) -> Round:
        """Publish what is due now. What it did; `outage` says why it ended early."""
        try:
            return await self._round_trip()
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        connection, self._async_connection = self._async_connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it may be broken; it is given up either way
                await connection.close()

    async def _round_trip(self) -> Round:
        return self._noticed(await arun(self._drain.until_empty(), self._ask))

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
            await self.aclose()  # whatever state it is in goes with it
            raise

    async def _deliver(self, asked: Deliver) -> list[Outcome]:
        outcomes: list[Outcome] = [Untried()] * len(asked.messages)
        waiting = iter(enumerate(asked.messages))
        misses = 0

        async def worker() -> None:
            nonlocal misses
            for at, message in waiting:
                if misses >= MISSES_MAX or self._too_late(asked):
                    return
                outcomes[at] = await self._publish_one(message)
                misses = misses + 1 if isinstance(outcomes[at], Unreachable) else 0

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._concurrency_max, len(asked.messages))):
                group.create_task(worker())
        return outcomes

    async def _publish_one(self, message: Message) -> Outcome:
        try:
            async with asyncio.timeout(self._publish_s_max):
                result = self._publish(message)
                if inspect.isawaitable(result):
                    await result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return self._judged(error)  # something in the client was cancelled, not this worker
        except Exception as error:
            return self._judged(error)
        return Published()

    # ----------------------------------------------------------------------------------- sync

    def run_sync(self) -> None:
        """`run` in a thread, with a `publish` that blocks."""
        try:
            while not self._stop.is_set():
                self._wake.clear()
                with self._until_the_next():
                    self._round_trip_sync()
                self._wake.wait(self._pause_s())
        finally:
            self.close()

    def drain_sync(self) -> Round:
        """`drain` with a `publish` that blocks."""
        try:
            return self._round_trip_sync()
        finally:
            self.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it may be broken; it is given up either way
                connection.close()

    def _round_trip_sync(self) -> Round:
        return self._noticed(run(self._drain.until_empty(), self._ask_sync))

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
            self.close()  # whatever state it is in goes with it
            raise

    def _deliver_sync(self, asked: Deliver) -> list[Outcome]:
        outcomes: list[Outcome] = [Untried()] * len(asked.messages)
        misses = 0
        for at, message in enumerate(asked.messages):
            if misses >= MISSES_MAX or self._too_late(asked):
                break
            try:
                result = self._publish(message)
            except Exception as error:
                outcomes[at] = self._judged(error)
                misses = misses + 1 if isinstance(outcomes[at], Unreachable) else 0
                continue
            if inspect.iscoroutine(result):
                result.close()  # it has not begun
                raise Misuse("publish= is async: use run() or drain() in an event loop")
            outcomes[at], misses = Published(), 0
        return outcomes

    # ----------------------------------------------------------------------------------- both

    def _too_late(self, asked: Deliver) -> bool:
        return self._stop.is_set() or self._clock.monotonic() >= asked.begin_until

    def _judged(self, error: BaseException) -> Outcome:
        why = printable(f"{type(error).__name__}: {error}", ERROR_CHARS_MAX)
        return Unreachable(why) if isinstance(error, self._outages) else Failed(why)

    def _pause_s(self) -> float:
        """Until the next look. Jittered, so that workers do not look all at once."""
        if self._drain.outages:
            bound = full_jitter(self._drain.outages - 1, OUTAGE_S_MIN, OUTAGE_S_MAX, 1.0)
            return bound * (0.5 + self._chance() / 2)
        return self._outage.pause_s(self._poll_s) * (0.5 + self._chance() / 2)

    @contextlib.contextmanager
    def _until_the_next(self) -> Iterator[None]:
        """A round that may fail: whatever it is, the next one must come."""
        try:
            yield
        except Misuse:  # it would fail like that for ever
            raise
        except Exception as error:
            self._outage.record_failure(error)
        else:
            self._outage.record_success()

    def _noticed(self, done: Round) -> Round:
        if done.outage is not None and not self._is_broker_away:
            self._is_broker_away = True
            _log.warning("the broker cannot be reached, messages wait: %s", done.outage)
        elif done.published and self._is_broker_away:
            self._is_broker_away = False
            _log.warning("the broker can be reached again")
        return done


def _must_fit_together(outbox: object, publish: object, limits: object, outages: object) -> None:
    """Told when a worker is made: it would end at its first message, or when its broker is away."""
    if not isinstance(outbox, Outbox):  # not shown: it may be a URL, with a password
        raise Misuse(
            "Publisher(outbox, publish): give it the Outbox(…) that messages are put into, not a "
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
        raise Misuse(f"Publisher(outages={outages!r}): takes a tuple of exceptions' classes")
