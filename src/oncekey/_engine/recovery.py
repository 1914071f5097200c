"""The recoverer: finishes what was abandoned, when no client comes back for it.

It looks for records whose lease is over and whose operation is finished without its client
(`resume`, `ask`) or is nobody's to repeat (`block`). Each is run by whoever registered for it, by
the same take-over as a client's retry: however many recoverers there are, the fence lets one own a
record. What nobody can finish becomes unknown, so that an operator hears of it.

    async with Recoverer("postgresql://…"):   # in an application's lifespan
        ...

or in a thread (`with Recoverer(…)`), or in a process of its own: `oncekey recover shop:app`.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Self

from oncekey._core.backoff import full_jitter
from oncekey._core.key import short_hash
from oncekey._core.op import arun
from oncekey._core.policy import DEFAULTS
from oncekey._core.printable import printable
from oncekey._core.record import Record, State
from oncekey._core.validation import must_be_limits, must_be_seconds
from oncekey._core.values import value
from oncekey._core.verbs import Done, Due, Find, Requested
from oncekey._engine.ownership import unknown_retention_s
from oncekey._engine.registry import Orphan, Runner, registry_of
from oncekey._system.chance import chance
from oncekey._system.clock import Clock, SystemClock
from oncekey._system.offload import cpu_thread
from oncekey.errors import Misuse, StoreUnavailable, StoreUnfit, TooLong
from oncekey.stores.base import Store
from oncekey.stores.batching import AsyncGatherer
from oncekey.stores.connection import Outage
from oncekey.stores.urls import as_store

_log = logging.getLogger("oncekey")

EVERY_S = 1.0
CONCURRENCY = 4
PATIENCE_S = 300.0
DRAIN_S_MAX = 30.0
ROWS_MAX = 500
"""Orphans looked at in one round, beside those that wait for their next try."""
MISSES_MAX = 3
"""When so many in turn could not be taken up, one is tried in each round."""
SETBACKS_MAX = 1_000
BACKOFF_S, BACKOFF_S_MAX = 1.0, 60.0


class Ending(enum.StrEnum):
    """What became of an orphan."""

    FINISHED = "finished"
    FAILED = "failed"
    """It is tried again when the lease is over."""
    UNKNOWN = "unknown"
    """An operator must look."""
    LEFT = "left"
    """Nobody here can finish it: it is left to its client and to other processes for a while."""
    TAKEN = "taken"
    """Somebody else was quicker."""


@value
class Recovered:
    """One orphan, and what became of it."""

    record: Record
    """As it was found."""
    ending: Ending
    reason: str
    late_s: float
    """From the end of its lease until now."""


class Setbacks:
    """Which orphans wait for their next try. Bounded: what is forgotten is tried too early."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, record_id: bytes) -> bool:
        return record_id in self._waiting

    def waits(self, record_id: bytes, now: float) -> bool:
        return self._waiting.get(record_id, (0, now))[1] > now

    def add(self, record_id: bytes, now: float, chance: float) -> None:
        """Another failure: wait twice as long as before, more or less."""
        count = self._waiting.pop(record_id, (0, 0.0))[0]
        delay_s = full_jitter(count + 1, BACKOFF_S, BACKOFF_S_MAX, chance)
        self._waiting[record_id] = (count + 1, now + delay_s)
        if len(self._waiting) > SETBACKS_MAX:
            del self._waiting[next(iter(self._waiting))]

    def forget(self, record_id: bytes) -> None:
        self._waiting.pop(record_id, None)


class Recoverer:
    """Recovers what is abandoned in one store, for as long as it runs.

    Name the store as the middleware and the functions do whose operations it is to finish: by the
    same URL, or the same object. In an event loop (`async with`, `await run()`) it must be the one
    that serves the application.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        every_s: float = EVERY_S,
        concurrency: int = CONCURRENCY,
        patience_s: float = PATIENCE_S,
        drain_s_max: float = DRAIN_S_MAX,
        report: Callable[[Recovered], None] | None = None,
        clock: Clock | None = None,
        chance: Callable[[], float] = chance,
    ) -> None:
        """`patience_s` is how long an orphan that nobody here can finish is left to its client and
        to other processes (another service, the next release), before it is declared unknown.
        """
        if isinstance(store, str) and store.lower().startswith("memory:"):
            raise Misuse("memory:// names a new store each time: hand over the store itself")
        must_be_limits("Recoverer", {"every_s": every_s, "concurrency": concurrency})
        must_be_seconds({"patience_s": patience_s, "drain_s_max": drain_s_max})
        self._registry = registry_of(store)
        self._gatherer = AsyncGatherer(as_store(store))
        self._every_s = every_s
        self._concurrency = concurrency
        self._patience_s = patience_s
        self._drain_s_max = drain_s_max
        self._report = report
        self._clock = clock or SystemClock()
        self._chance = chance
        self._setbacks = Setbacks()
        self._running: dict[bytes, asyncio.Task[None]] = {}
        self._is_told = False
        """That there is nothing to recover by."""
        self._outage = Outage(
            "abandoned operations",
            self._clock,
            fails="cannot be looked for",
            works="can be looked for again",
        )
        self._misses = Outage(
            "abandoned operations",
            self._clock,
            fails="cannot be taken up",
            works="are taken up again",
        )
        """As of a store that can be read and not written to."""
        self._stopping = threading.Event()
        self._wake: Callable[[], object] = lambda: None
        self._task: asyncio.Task[int] | None = None
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------------- start and end

    async def run(self) -> int:
        """Round after round until `stop`, then to the end of what is under way, at most
        `drain_s_max`. How many did not end: they lapse.
        """
        woken, loop = asyncio.Event(), asyncio.get_running_loop()
        self._wake = lambda: loop.call_soon_threadsafe(woken.set)
        try:
            while not self._stopping.is_set():
                await self.round()
                pause_s = max(each.pause_s(self._every_s) for each in (self._outage, self._misses))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), pause_s)
            return await self._drain()
        finally:
            self._wake = lambda: None
            await self._gatherer.close()

    def stop(self) -> None:
        """Take up nothing more. From any thread, or a signal handler."""
        self._stopping.set()
        self._wake()

    async def _drain(self) -> int:
        if not self._running:
            return 0
        _, late = await asyncio.wait(self._running.values(), timeout=self._drain_s_max)
        for task in late:
            task.cancel()
        if late:
            _log.warning(
                "%d recovered operations did not end within %g s; they lapse, and are taken up "
                "again",
                len(late),
                self._drain_s_max,
            )
        return len(late)

    async def __aenter__(self) -> Self:
        self._stopping.clear()
        self._task = asyncio.create_task(self.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        if self._task is not None:
            await self._task

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join(self._drain_s_max + self._every_s)

    def start(self) -> None:
        """Run in a thread: for applications that block. In a forked worker, start it there."""
        self._stopping.clear()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self.run()), name="oncekey-recoverer", daemon=True
        )
        self._thread.start()

    # --------------------------------------------------------------------------- one round

    async def round(self) -> bool:
        """Take up what is abandoned now; returns when the last of it is under way. Whether there
        may be more.
        """
        if not len(self._registry):
            if not self._is_told:
                self._is_told = True
                _log.warning(
                    "nobody here runs operations of this store, so nothing is recovered: name it "
                    "as the middleware does"
                )
            return False
        self._is_told = False
        try:
            limit = ROWS_MAX + len(self._setbacks) + len(self._running)
            due = await self._gatherer.ask(Due(limit, abandoned=True))
        except Exception as error:  # whatever it is, the next round must come
            self._outage.record_failure(error)
            return False
        self._outage.record_success()
        for record_id in due:
            if self._setbacks.waits(record_id, self._clock.monotonic()):
                continue
            if not await self._free_place():
                return False
            if record_id not in self._running:
                self._take_up(record_id)
                if self._misses.failures >= MISSES_MAX:
                    return False  # one is enough to find out
        return len(due) >= limit

    async def settle(self) -> None:
        """Wait for what is under way."""
        if self._running:
            await asyncio.wait(self._running.values())

    async def _free_place(self) -> bool:
        """Wait until one more may run; False if it is time to stop."""
        while len(self._running) >= self._concurrency and not self._stopping.is_set():
            await asyncio.wait(
                self._running.values(),
                timeout=self._every_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        return not self._stopping.is_set()

    def _take_up(self, record_id: bytes) -> None:
        task = asyncio.create_task(self._one(record_id))
        self._running[record_id] = task
        task.add_done_callback(lambda _: self._running.pop(record_id, None))

    async def _one(self, record_id: bytes) -> None:
        try:
            recovered = await self._recover(record_id)
        except Exception as error:  # whatever it is, the others must go on
            if _is_of_the_store(error):
                self._misses.record_failure(error)
            else:
                _log.warning("an abandoned operation was not taken up: %s", error, exc_info=True)
            self._setbacks.add(record_id, self._clock.monotonic(), self._chance())
            return
        self._misses.record_success()
        if recovered is not None:
            self._record_end(recovered)

    # -------------------------------------------------------------------------- one orphan

    async def _recover(self, record_id: bytes) -> Recovered | None:
        """None if it is no orphan any more."""
        looked_at = self._clock.monotonic()
        record: Record | None = await self._gatherer.ask(Find(record_id))
        if record is None or not record.lapsed or record.expired:
            return None
        if record.recovery == "block":
            orphan = Orphan(record, None, looked_at)
            return await self._declare(orphan, "its process died, and it must not be repeated")
        request: bytes | None = await self._gatherer.ask(Requested(record_id))
        orphan = Orphan(record, request, looked_at)
        runner = await cpu_thread.run(partial(self._registry.owner, orphan))
        if runner is not None:
            return await self._with(runner, orphan)
        if request is None:
            return await self._give_time(orphan, "its request was not kept")
        return await self._give_time(orphan, "no handler for it is registered here")

    async def _with(self, runner: Runner, orphan: Orphan) -> Recovered:
        """Let this runner finish it. What came of that, its record tells."""
        record, failed = orphan.record, "it was not done"
        try:
            took = await runner.recover(orphan)
        except Exception as error:  # it is the application's, or it was not even claimed
            if _is_of_the_store(error):
                claimed: Record | None = await self._gatherer.ask(Find(record.id))
                if claimed is not None and claimed.fence == record.fence:
                    raise
            _log.warning("%s failed when it was recovered", _describe(record), exc_info=True)
            took, failed = True, printable(f"{type(error).__name__}: {error}", 200)
        found: Record | None = await self._gatherer.ask(Find(record.id))
        if took:
            return self._end(orphan, *_came_of(found, failed))
        if found is not None and found.state is State.UNKNOWN and found.attempt == record.attempt:
            return self._end(orphan, Ending.UNKNOWN, "it died too often")  # and nobody took it
        if found is not None and found.lapsed and found.fence == record.fence:
            return await self._give_time(orphan, "another release wrote it")
        return self._end(orphan, Ending.TAKEN, "somebody else was quicker")

    async def _give_time(self, orphan: Orphan, why: str) -> Recovered:
        """Its client may come back, another service may know it: unknown only after a while."""
        if -orphan.record.lease_left_s < self._patience_s:
            return self._end(orphan, Ending.LEFT, why)
        return await self._declare(orphan, why)

    async def _declare(self, orphan: Orphan, why: str) -> Recovered:
        guard, policy = self._registry.judge(orphan.record)
        retention_s = unknown_retention_s(policy or DEFAULTS)
        outcome = await arun(guard.doubt(orphan.record, retention_s), self._gatherer.ask)
        if isinstance(outcome, Done):
            return self._end(orphan, Ending.UNKNOWN, why)
        return self._end(orphan, Ending.TAKEN, "somebody else was quicker")

    def _end(self, orphan: Orphan, ending: Ending, reason: str) -> Recovered:
        since_s = self._clock.monotonic() - orphan.looked_at
        return Recovered(orphan.record, ending, reason, since_s - orphan.record.lease_left_s)

    def _record_end(self, recovered: Recovered) -> None:
        record = recovered.record
        if recovered.ending is not Ending.LEFT or record.id not in self._setbacks:
            tell(recovered)
        if recovered.ending in (Ending.FAILED, Ending.LEFT):
            self._setbacks.add(record.id, self._clock.monotonic(), self._chance())
        else:
            self._setbacks.forget(record.id)
        if self._report is not None:
            self._report(recovered)


def _is_of_the_store(error: Exception) -> bool:
    """Whether other records fail like that too."""
    return isinstance(error, StoreUnavailable | StoreUnfit) and not isinstance(error, TooLong)


def _came_of(found: Record | None, failed: str) -> tuple[Ending, str]:
    """How what was taken up has ended, and why; `failed` is why where it is not over."""
    if found is not None and found.state is State.COMPLETED and found.answer is not None:
        return Ending.FINISHED, f"status {found.answer.status}"
    if found is not None and found.state is State.UNKNOWN:
        return Ending.UNKNOWN, "it was refused, or cannot tell how it ended"
    return Ending.FAILED, failed


# ------------------------------------------------------------------------------------ telling

_LEVELS = {
    Ending.FINISHED: logging.INFO,
    Ending.FAILED: logging.WARNING,
    Ending.UNKNOWN: logging.ERROR,
    Ending.LEFT: logging.WARNING,
    Ending.TAKEN: logging.DEBUG,
}


def tell(recovered: Recovered) -> None:
    """Say in the log what became of an orphan, and who has to act."""
    level = _LEVELS[recovered.ending]
    if _log.isEnabledFor(level):
        _log.log(level, "%s %s", _describe(recovered.record), text_of(recovered))


def text_of(recovered: Recovered) -> str:
    """What became of an orphan, and who has to act: the end of a sentence that names it."""
    reason, record = recovered.reason, recovered.record
    match recovered.ending:
        case Ending.FINISHED:
            return f"was abandoned and is finished now: {reason}"
        case Ending.FAILED:
            return f"was abandoned and failed again ({reason}): next try when the lease is over"
        case Ending.UNKNOWN:
            return (
                f"was abandoned, and nobody knows how it ended: {reason}. Find out, then "
                f"`oncekey resolve {record.id.hex()[:16]}`"
            )
        case Ending.LEFT:
            return (
                f"is abandoned, and nobody here can finish it: {reason}. It is left to its client "
                "and to other processes for a while, then its outcome is unknown"
            )
        case Ending.TAKEN:
            return f"was abandoned: {reason}"


def _describe(record: Record) -> str:
    return f"{printable(record.operation)} key={short_hash(record.key)}"
