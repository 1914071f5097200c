"""Orders that are no requests to oncekey: calls of a function with `@once`, messages to an inbox.

Both give what the caller is told, as the middleware would say it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from oncekey import Policy, Refusal, Runtime, StoreUnavailable, once
from oncekey._core.problems import Kind
from oncekey.events import Event, Unprotected
from oncekey.messaging import _inbox as inbox
from oncekey.messaging._inbox import Inbox
from soak.drivers import Awaited, Blocking

Order = dict[str, Any]
Told = tuple[Order, int, dict[str, str]]
"""Body, status and headers."""
OPERATIONS = "orders/"
UNKNOWN_LINE = ("Idempotency-Outcome", "unknown")
"""Says to whoever sent the request that failed: a retry does not run it again."""

_unstored: ContextVar[list[Event]] = ContextVar("unstored")


def watch(event: Event) -> None:
    """The caller of a function is given its result also where it could not be recorded; only
    hooks hear of that.
    """
    if isinstance(event, Unprotected):
        _unstored.get([]).append(event)  # unless it is the recoverer that runs it


def done(answer: Order, *, stored: bool = True) -> Told:
    return answer, 201, {} if stored else {"Idempotency-Stored": "false"}


def failed(error: Exception) -> Told:
    """A function's own exception says by a note that no later call runs it again."""
    told = any("nobody knows" in note for note in getattr(error, "__notes__", ()))
    return {"error": repr(error)}, 500, dict([UNKNOWN_LINE]) if told else {}


def refused(kind: Kind) -> Told:
    return {"type": f"urn:oncekey:problem:{kind}"}, 409, {}


def raised(error: Exception) -> Told:
    match error:
        case StoreUnavailable():
            return refused(Kind.STORE_UNAVAILABLE)
        case Refusal():
            return refused(error.problem.kind)
    return failed(error)


class Functions:
    """A function for each route, sync or async as `work` is."""

    def __init__(
        self, runtime: Runtime, policies: dict[str, Policy], work: Callable[[Order], Any]
    ) -> None:
        def order(account: str, key: str, order: Order) -> Any:
            return work(order)

        async def order_async(account: str, key: str, order: Order) -> Any:
            return await work(order)

        function = order_async if asyncio.iscoroutinefunction(work) else order
        self._guarded: dict[str, Callable[..., Any]] = {
            route: once(
                runtime,
                key="{key}",
                tenant=lambda account: account,
                name=f"{OPERATIONS}{route}",
                policy=policy,
            )(function)
            for route, policy in policies.items()
        }

    async def call(self, route: str, account: str, key: str, order: Order) -> Told:
        unstored: list[Event] = []
        _unstored.set(unstored)
        try:
            answer = await self._guarded[route](account, key, order)
        except Exception as error:
            return raised(error)
        return done(answer, stored=not unstored)

    def call_sync(self, route: str, account: str, key: str, order: Order) -> Told:
        unstored: list[Event] = []
        _unstored.set(unstored)
        try:
            answer = self._guarded[route](account, key, order)
        except Exception as error:
            return raised(error)
        return done(answer, stored=not unstored)


class Messages:
    """An inbox for each route; `atomic` is handled in a transaction of the consumer's."""

    def __init__(
        self,
        runtime: Runtime,
        policies: dict[str, Policy],
        work: Callable[[Order], Any],
        work_sync: Callable[[Order], Any],
        driver: Blocking | Awaited | None,
    ) -> None:
        self._work = work
        self._work_sync = work_sync
        self._driver = driver
        self._inboxes = {
            route: Inbox(runtime, name=f"{OPERATIONS}{route}", policy=policy)
            for route, policy in policies.items()
        }

    async def call(self, route: str, account: str, key: str, order: Order) -> Told:
        message: dict[str, Any] = {"tenant": account, "payload": json.dumps(order).encode()}
        box, work, driver = self._inboxes[route], self._work, self._driver
        try:
            if route != "atomic":
                return _told(await box.handle(key, work, order, **message))
            if not isinstance(driver, Awaited):
                return await asyncio.to_thread(self.call_sync, route, account, key, order)
            async with driver.transaction() as connection:
                handled = await box.handle_in(connection, key, work, order, **message)
            return _told(handled)
        except Exception as error:
            return raised(error) if route != "atomic" else refused(Kind.STORE_UNAVAILABLE)

    def call_sync(self, route: str, account: str, key: str, order: Order) -> Told:
        message: dict[str, Any] = {"tenant": account, "payload": json.dumps(order).encode()}
        box, work, driver = self._inboxes[route], self._work_sync, self._driver
        try:
            if route != "atomic":
                return _told(box.handle_sync(key, work, order, **message))
            assert isinstance(driver, Blocking)
            with driver.transaction() as connection:
                handled = box.handle_in_sync(connection, key, work, order, **message)
            return _told(handled)
        except Exception as error:
            return raised(error) if route != "atomic" else refused(Kind.STORE_UNAVAILABLE)


def _told(outcome: inbox.Outcome) -> Told:
    match outcome:
        case inbox.Handled(result, stored):
            return done(result, stored=stored)
        case inbox.Duplicate(result):
            return done(result)
        case inbox.Busy() | inbox.Released():
            return refused(Kind.IN_FLIGHT)
        case inbox.Unknown(problem) | inbox.Rejected(problem):
            return refused(problem.kind)
