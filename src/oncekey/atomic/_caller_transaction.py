"""Run a function in a transaction that the caller opens, commits and rolls back.

The other adapters own their transactions. These only use one: the caller commits or rolls back, so
whatever must not count has to reach the caller as an exception.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oncekey._core.endings import End
from oncekey._engine import attempt as attempts
from oncekey._engine.decisions import Call, Execute
from oncekey._engine.operation import Operation, await_if_needed
from oncekey._engine.outcomes import Outcome, committable, outcome_of
from oncekey._engine.unawaited import not_awaitable
from oncekey.atomic._unit_of_work import CALLERS, AsyncUnit, Unit
from oncekey.stores import transactions
from oncekey.stores.base import Store


async def run_in(
    transaction: Any, operation: Operation, call: Call, work: Callable[[], Any]
) -> Outcome:
    """Run `work`, and record that in a transaction of the caller's: it counts if and only if the
    caller commits. Whatever must not be committed is raised.
    """
    session, runtime = operation.join(call), operation.runtime
    adapter, seconds_max = AsyncCallerAdapter(transaction), session.policy.atomic_s_max
    unit = AsyncUnit(adapter, runtime.store, seconds_max, runtime.async_gatherer.ask)
    decision = await unit.drive(session.open())
    if not isinstance(decision, Execute):
        return outcome_of(decision, None, operation.describe(call))
    with attempts.within(session.attempt):
        result = await await_if_needed(work())
    answer = operation.answer_in(session.attempt, result, call)
    ended = await unit.drive(session.answered(End.KEPT, answer))
    return committable(ended, answer, operation.describe(call))


def run_in_sync(
    transaction: Any, operation: Operation, call: Call, work: Callable[[], Any]
) -> Outcome:
    """Blocking `run_in`."""
    session, runtime = operation.join(call), operation.runtime
    adapter, seconds_max = CallerAdapter(transaction), session.policy.atomic_s_max
    unit = Unit(adapter, runtime.store, seconds_max, runtime.gatherer.ask)
    decision = unit.drive_sync(session.open())
    if not isinstance(decision, Execute):
        return outcome_of(decision, None, operation.describe(call))
    with attempts.within(session.attempt):
        result = not_awaitable(work())
    answer = operation.answer_in(session.attempt, result, call)
    ended = unit.drive_sync(session.answered(End.KEPT, answer))
    return committable(ended, answer, operation.describe(call))


class CallerAdapter:
    """A caller's open transaction, on a blocking connection."""

    engine = CALLERS
    awaited = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def begin(self, store: Store, record_id: bytes, seconds_max: float) -> Any:
        return _CallerTransaction(self._connection, transactions.join(store, self._connection))


class _CallerTransaction:
    def __init__(self, connection: Any, ask: transactions.Ask) -> None:
        self._connection = connection
        self.ask = ask

    def lend(self) -> Any:
        return self._connection

    def taint(self) -> None:
        """Nothing: the connection is the caller's."""

    def recall(self) -> bool:
        return True

    def flush(self) -> None:
        """Nothing: the caller's commit flushes."""

    def commit(self) -> None:
        """Nothing: the caller does it."""

    def rollback(self) -> None:
        """Nothing: the caller does it."""


class AsyncCallerAdapter:
    """A caller's open transaction on an async connection or session, or on a blocking one."""

    engine = CALLERS
    awaited = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def begin(self, store: Store, record_id: bytes, seconds_max: float) -> Any:
        return _AsyncCallerTransaction(
            self._connection, await transactions.ajoin(store, self._connection)
        )


class _AsyncCallerTransaction:
    def __init__(self, connection: Any, ask: transactions.AsyncAsk) -> None:
        self._connection = connection
        self.ask = ask

    def lend(self) -> Any:
        return self._connection

    def taint(self) -> None:
        """Nothing: the connection is the caller's."""

    async def recall(self) -> bool:
        return True

    async def flush(self) -> None:
        """Nothing: the caller's commit flushes."""

    async def commit(self) -> None:
        """Nothing: the caller does it."""

    async def rollback(self) -> None:
        """Nothing: the caller does it."""
