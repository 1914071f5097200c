"""Ports: how an attempt reaches the engine and its store while the handler runs.

One per edge, shared by all its attempts. A handler may be async or run in a thread, whichever way
the edge itself works, so there are both ways to ask.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from oncekey._core.op import Op, arun, run
from oncekey._core.profiles import PROFILES, Profile
from oncekey._core.record import Claim
from oncekey.errors import Misuse

if TYPE_CHECKING:
    from oncekey._engine.attempt import Attempt
    from oncekey._engine.heartbeat import Heartbeat
    from oncekey._engine.ownership import Ownership
    from oncekey.stores.base import Store

T = TypeVar("T")


class Ports:
    """The engine, its store and its heartbeat, with the two ways to ask."""

    def __init__(
        self,
        ownership: Ownership,
        store: Store,
        heartbeat: Heartbeat,
        *,
        ask: Callable[[Any], Awaitable[Any]],
        ask_sync: Callable[[Any], Any],
        forget: Callable[[Claim], None],
        loop: asyncio.AbstractEventLoop | None = None,
        profile: Profile = PROFILES["oncekey"],
    ) -> None:
        self.ownership = ownership
        self.store = store
        self.heartbeat = heartbeat
        self.profile = profile
        """Whose headers are the edge's to write, and not kept."""
        self.forget = forget
        """Releases, in the background, a claim that may have been granted unheard."""
        self._ask = ask
        self._ask_sync = ask_sync
        self._loop = loop
        """Where the store is asked, None for threads."""

    def still_running(self, attempt: Attempt) -> bool:
        """Whether a thread still runs for an attempt whose handler has ended."""
        return attempt.still_running()

    # Checked before anything is asked: the first question comes only after a step's effect.

    async def drive(self, op: Op[T]) -> T:
        """Drive an operation of the engine, awaited."""
        if self._loop is not None and _running_loop() is not self._loop:
            raise Misuse(
                "this was awaited in another event loop than the handler's: use the blocking form "
                "of it in a thread"
            )
        return await arun(op, self._ask)

    async def drive_to_end(self, op: Op[T]) -> T:
        """The same for what was done and is to be kept: whoever is cancelled meanwhile, as by a
        limit on time, is so when it is over.
        """
        driving = asyncio.ensure_future(self.drive(op))
        cut_off: asyncio.CancelledError | None = None
        while not driving.done():
            try:
                await asyncio.wait([driving])
            except asyncio.CancelledError as error:
                cut_off = error
        if cut_off is not None:
            with contextlib.suppress(Exception):  # nobody is there to hear of it
                driving.result()
            raise cut_off
        return driving.result()

    def drive_sync(self, op: Op[T]) -> T:
        """Drive an operation of the engine, blocking."""
        if self._loop is not None and _running_loop() is self._loop:
            raise Misuse("this call would block the event loop: use the awaited form of it")
        return run(op, self._ask_sync)


def through(
    loop: asyncio.AbstractEventLoop, ask: Callable[[Any], Awaitable[Any]]
) -> Callable[[Any], Any]:
    """A blocking `ask` for threads, of an awaited one that belongs to `loop`."""

    async def ask_in_loop(question: Any) -> Any:
        return await ask(question)

    def ask_sync(question: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(ask_in_loop(question), loop).result()

    return ask_sync


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def in_thread(ask: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
    """An awaited `ask` of a blocking one."""

    async def ask_in_thread(question: Any) -> Any:
        return await asyncio.to_thread(ask, question)

    return ask_in_thread
