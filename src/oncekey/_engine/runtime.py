"""The runtime: one store with the engine, heartbeat and sweeper that work on it.

What the middleware, `@once` and the inbox share. It opens nothing before it is first used, starts
its threads on the first call, and starts them again in a forked worker.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Coroutine, Iterable
from typing import Any, Literal, Self, TypeVar

from oncekey._core.op import Op, arun, run
from oncekey._core.policy import Policy
from oncekey._core.profiles import PROFILES, Profile
from oncekey._core.quota import Quota
from oncekey._engine.background import Background
from oncekey._engine.guard import Guard
from oncekey._engine.handler_calls import Ports, in_thread, through
from oncekey._engine.heartbeat import Heartbeat
from oncekey._engine.notices import Notices
from oncekey._engine.registry import registry_of
from oncekey._engine.sweeper import Sweeper
from oncekey._system.clock import Clock, SystemClock
from oncekey._system.warn_once import warn
from oncekey.errors import Misuse
from oncekey.events import Hook, Hooks
from oncekey.metrics._logs import LoggingHook
from oncekey.stores.base import Store
from oncekey.stores.batching import AsyncGatherer, Gatherer
from oncekey.stores.urls import as_store

T = TypeVar("T")

DRAIN_S_MAX = 30.0


class Runtime:
    """The parts that run operations on one store, for sync and async callers alike."""

    def __init__(
        self,
        store: str | Store,
        *,
        hooks: Iterable[Hook] = (),
        clock: Clock | None = None,
        retention_from: Literal["completion", "first use"] = "completion",
        profile: Profile = PROFILES["oncekey"],
        quota: Quota | None = None,
    ) -> None:
        if not isinstance(quota, Quota | None):
            raise Misuse("quota=… takes an oncekey.Quota, such as Quota(records_max=100_000)")
        self.store = as_store(store)
        self.registry = registry_of(store)
        """Whoever can finish abandoned operations of this store adds itself here."""
        self.clock = clock or SystemClock()
        self.guard = Guard(
            clock=self.clock,
            hooks=Hooks(hooks, otherwise=LoggingHook()),
            retention_from=retention_from,
            notices=Notices(self.clock),
            quota=quota,
        )
        self.heartbeat = Heartbeat(self.store, self.guard.ownership, self.clock)
        chores = [
            chore
            for chore in (self.guard.ownership.tombstones, self.guard.quotas)
            if chore is not None
        ]
        self.sweeper = Sweeper(self.store, self.guard.replays.counters, chores=chores)
        self.gatherer = Gatherer(self.store)
        self.async_gatherer = AsyncGatherer(self.store)
        self.background = Background(self.guard.ownership, self.drive, self.drive_sync)
        self._ports_sync = Ports(
            self.guard.ownership,
            self.store,
            self.heartbeat,
            ask=in_thread(self.gatherer.ask),
            ask_sync=self.gatherer.ask,
            forget=self.background.forget_sync,
            profile=profile,
        )
        self._profile = profile
        self._ports_async: Ports | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.started_in: int | None = None
        """The process in which it was last started: this one, or the one that forked it."""
        self._kinds: dict[str, str] = {}

    def drive(self, op: Op[T]) -> Coroutine[Any, Any, T]:
        """Drive an operation of the engine, awaited."""
        return arun(op, self.async_gatherer.ask)

    def drive_sync(self, op: Op[T]) -> T:
        """Drive an operation of the engine, blocking."""
        return run(op, self.gatherer.ask)

    def ports(self) -> Ports:
        """How handlers that run in this event loop reach the engine."""
        loop = asyncio.get_running_loop()
        if self._ports_async is None or self._loop is not loop:
            ask, self._loop = self.async_gatherer.ask, loop
            self._ports_async = Ports(
                self.guard.ownership,
                self.store,
                self.heartbeat,
                ask=ask,
                ask_sync=through(loop, ask),
                forget=self.background.forget,
                loop=loop,
                profile=self._profile,
            )
        return self._ports_async

    def belongs_elsewhere(self) -> bool:
        """Whether another event loop than this one is served."""
        loop = self._loop
        return loop is not None and loop is not asyncio.get_running_loop() and loop.is_running()

    def ports_sync(self) -> Ports:
        """How handlers that block a thread reach the engine."""
        return self._ports_sync

    def reserve(self, operation: str, kind: str) -> None:
        """This name is that of an inbox, a receiver, a function. `Misuse` if something of another
        kind has it: each would take the other's ids for its own, and what they stand for would
        never be done.
        """
        other = self._kinds.setdefault(operation, kind)
        if other != kind:
            raise Misuse(
                f"{operation}: {other} and {kind} of this name would take each other's ids for "
                "their own, on one store: name them apart"
            )

    def expect(self, policy: Policy) -> None:
        """Operations of this policy run here."""
        if self.guard.quotas is not None:
            self.guard.quotas.expect(policy)

    def start(self) -> bool:
        """Begin housekeeping. True the first time of all, False if it runs, or runs again in a
        forked worker.
        """
        if self.started_in == os.getpid():
            return False
        self.sweeper.start()
        first, self.started_in = self.started_in is None, os.getpid()
        if first:
            self.warn_of_memory()
        return first

    def warn_of_memory(self) -> None:
        """Warn where records are kept in this process only."""
        if self.store.durability.process_crash:
            return
        warn(
            "store",
            "records are kept in this process only: it forgets them when it ends, and in another "
            "one, such as a second worker, a retry runs again. That is for tests: outside of them "
            "name a store that lasts, such as sqlite:///keys.db",
        )

    def stop(self) -> None:
        """Stop the threads; waits for what they have under way."""
        self.started_in = None
        self.heartbeat.stop()
        self.sweeper.stop()

    def close(self) -> None:
        """Stop, and give the blocking callers' connections back."""
        atexit.unregister(self.close)
        self.stop()
        self.gatherer.close()

    async def aclose(self, drain_s_max: float = DRAIN_S_MAX) -> None:
        """Wait for handlers whose callers have left, stop, and give all connections back."""
        await self.background.drain(drain_s_max)
        await asyncio.to_thread(self.close)
        await self.async_gatherer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
