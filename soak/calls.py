"""Orders without a middleware: calls of a function with `@once`, messages to an inbox.

Both return the response that the middleware would send.
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
Reply = tuple[Order, int, dict[str, str]]
"""Body, status and headers."""
OPERATIONS = "orders/"
UNKNOWN_LINE = ("Idempotency-Outcome", "unknown")
"""Tells the client of a failed request that a retry will not run it again."""

_unstored: ContextVar[list[Event]] = ContextVar("unstored")


def watch(event: Event) -> None:
    """Note results that could not be stored: their caller gets them anyway, only hooks are told."""
    if isinstance(event, Unprotected):
        _unstored.get([]).append(event)  # the recoverer has no caller


def success(answer: Order, *, stored: bool = True) -> Reply:
    return answer, 201, {} if stored else {"Idempotency-Stored": "false"}


def failure(error: Exception) -> Reply:
    """Render a function's exception, whose notes say whether a later call may run it again."""
    is_final = any("nobody knows" in note for note in getattr(error, "__notes__", ()))
    return {"error": repr(error)}, 500, dict([UNKNOWN_LINE]) if is_final else {}


def refusal(kind: Kind) -> Reply:
    return {"type": f"urn:oncekey:problem:{kind}"}, 409, {}


def render_exception(error: Exception) -> Reply:
    match error:
        case StoreUnavailable():
            return refusal(Kind.STORE_UNAVAILABLE)
        case Refusal():
            return refusal(error.problem.kind)
    return failure(error)


class FunctionCalls:
    """A guarded function for each route, sync or async like `work`."""

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

    async def call(self, route: str, account: str, key: str, order: Order) -> Reply:
        unstored: list[Event] = []
        _unstored.set(unstored)
        try:
            answer = await self._guarded[route](account, key, order)
        except Exception as error:
            return render_exception(error)
        return success(answer, stored=not unstored)

    def call_sync(self, route: str, account: str, key: str, order: Order) -> Reply:
        unstored: list[Event] = []
        _unstored.set(unstored)
        try:
            answer = self._guarded[route](account, key, order)
        except Exception as error:
            return render_exception(error)
        return success(answer, stored=not unstored)


class InboxCalls:
    """An inbox for each route; `atomic` runs in the consumer's own transaction."""

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

    async def call(self, route: str, account: str, key: str, order: Order) -> Reply:
        message: dict[str, Any] = {"tenant": account, "payload": json.dumps(order).encode()}
        box, work, driver = self._inboxes[route], self._work, self._driver
        try:
            if route != "atomic":
                return _render_outcome(await box.handle(key, work, order, **message))
            if not isinstance(driver, Awaited):
                return await asyncio.to_thread(self.call_sync, route, account, key, order)
            async with driver.transaction() as connection:
                handled = await box.handle_in(connection, key, work, order, **message)
            return _render_outcome(handled)
        except Exception as error:
            return render_exception(error) if route != "atomic" else refusal(Kind.STORE_UNAVAILABLE)

    def call_sync(self, route: str, account: str, key: str, order: Order) -> Reply:
        message: dict[str, Any] = {"tenant": account, "payload": json.dumps(order).encode()}
        box, work, driver = self._inboxes[route], self._work_sync, self._driver
        try:
            if route != "atomic":
                return _render_outcome(box.handle_sync(key, work, order, **message))
            assert isinstance(driver, Blocking)
            with driver.transaction() as connection:
                handled = box.handle_in_sync(connection, key, work, order, **message)
            return _render_outcome(handled)
        except Exception as error:
            return render_exception(error) if route != "atomic" else refusal(Kind.STORE_UNAVAILABLE)


def _render_outcome(outcome: inbox.Outcome) -> Reply:
    match outcome:
        case inbox.Handled(result, stored):
            return success(result, stored=stored)
        case inbox.Duplicate(result):
            return success(result)
        case inbox.Busy() | inbox.Released():
            return refusal(Kind.IN_FLIGHT)
        case inbox.Unknown(problem) | inbox.Rejected(problem):
            return refusal(problem.kind)
