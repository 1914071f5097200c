"""Adapters for a transaction that the caller opens, commits and rolls back.

The other adapters own their transactions. These only use one: the caller commits or rolls back, so
whatever must not count has to reach the caller as an exception.
"""

from __future__ import annotations

from typing import Any

from oncekey.atomic._unit_of_work import CALLERS
from oncekey.stores import transactions
from oncekey.stores.base import Store


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
