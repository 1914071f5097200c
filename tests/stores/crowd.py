"""A crowd that works through a store while something is done to it, and counts what ran twice.

Every caller takes new keys, and now and then asks for an old one again, as retries do; whoever is
refused asks again. Nothing lapses into a second run (`block`), so a key can run twice only if the
store has forgotten its record.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import oncekey
from oncekey import Policy, Runtime
from oncekey.errors import InFlight, StoreUnavailable, Unknown
from oncekey.stores.base import Store

LEASE_S = 120.0
_GIVE_UP_S = 90.0


class Crowd:
    """What so many callers at a time saw."""

    def __init__(self, store: Store, callers: int = 16, *, patient: bool = True) -> None:
        self._store = store
        self._callers = callers
        self._patient = patient
        """Whether to ask until there is an answer; else a key that fails is left behind."""
        self.runs: Counter[int] = Counter()
        """How often the handler ran, for each key."""
        self.answers: dict[int, str] = {}
        """What was told, for each key."""
        self.wrong: list[tuple[int, str, str]] = []
        """Where somebody was told something else than somebody before."""
        self.unknown: set[int] = set()
        self.unavailable = 0
        self._next = 0

    def work(self, disturb: Callable[[Crowd], Awaitable[None]]) -> None:
        """Work until the disturbance is over; then ask for every key once more."""
        asyncio.run(self._work(disturb))

    @property
    def twice(self) -> list[int]:
        return [key for key, runs in self.runs.items() if runs > 1]

    async def answered(self, more: int) -> None:
        """Wait until so many more keys are done: proof that the store works again."""
        wanted = len(self.answers) + more
        deadline = time.monotonic() + _GIVE_UP_S
        while len(self.answers) < wanted:
            assert time.monotonic() < deadline, f"only {len(self.answers)} of {wanted} were done"
            await asyncio.sleep(0.02)

    async def _work(self, disturb: Callable[[Crowd], Awaitable[None]]) -> None:
        over = asyncio.Event()
        async with Runtime(self._store) as runtime:
            self._do = self._guard(runtime)
            callers = [asyncio.create_task(self._call(over)) for _ in range(self._callers)]
            try:
                await self.answered(50)
                await disturb(self)
                await self.answered(50)
            finally:
                over.set()
                await asyncio.gather(*callers)
            for batch in range(0, self._next, 64):
                keys = range(batch, min(batch + 64, self._next))
                await asyncio.gather(*(self._ask(key, _GIVE_UP_S, last=True) for key in keys))

    def _guard(self, runtime: Runtime) -> Callable[[int], Awaitable[str]]:
        policy = Policy(recovery="block", lease_s=LEASE_S)

        @oncekey.once(runtime, key="{number}", name="work", policy=policy)
        async def work(number: int) -> str:
            self.runs[number] += 1
            return f"{number}: run {self.runs[number]}"

        return work

    async def _call(self, over: asyncio.Event) -> None:
        chance = random.Random(self._next)
        while not over.is_set():
            key, self._next = self._next, self._next + 1
            await self._ask(key, _GIVE_UP_S if self._patient else 0.0)
            await self._ask(chance.randrange(self._next), 0.0)

    async def _ask(self, key: int, patience_s: float, *, last: bool = False) -> None:
        """The `last` time, a claim whose reply was lost may be in flight for one lease."""
        until = time.monotonic() + patience_s
        while True:
            try:
                told = await self._do(key)
            except StoreUnavailable:
                self.unavailable += 1
            except Unknown:
                self.unknown.add(key)
                return
            except InFlight:
                if last:
                    return
            else:
                before = self.answers.setdefault(key, told)
                if before != told:
                    self.wrong.append((key, before, told))
                return
            if time.monotonic() >= until:
                return
            await asyncio.sleep(0.05)
