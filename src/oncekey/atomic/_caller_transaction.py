"""The caller's own transaction, for those who open, commit and roll back themselves.

The other adapters own their transactions. This one only stands in one: its commit and its rollback
are the caller's to do, so whatever is not to count must reach the caller as an exception.
"""

from __future__ import annotations

from typing import Any

from oncekey.atomic._unit_of_work import CALLERS
from oncekey.stores import transactions
from oncekey.stores.base import Store


class Callers:
    """A transaction that a caller has open, on a connection that blocks."""

    engine = CALLERS
    awaited = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def begin(self, store: Store, record_id: bytes, seconds_max: float) -> Any:
        return _Callers(self._connection, transactions.join(store, self._connection))


class _Callers:
    def __init__(self, connection: Any, ask: transactions.Ask) -> None:
        self._connection = connection
        self.ask = ask

    def lend(self) -> Any:
        return self._connection

    def taint(self) -> None:
        """The connection is the caller's."""

    def recall(self) -> bool:
        return True

    def flush(self) -> None:
        """The caller's commit does."""

    def commit(self) -> None:
        """The caller does."""

    def rollback(self) -> None:
        """The caller does."""


class AsyncCallers:
    """The same on an async connection or session; a blocking one will do too."""

    engine = CALLERS
    awaited = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def begin(self, store: Store, record_id: bytes, seconds_max: float) -> Any:
        return _AsyncCallers(self._connection, await transactions.ajoin(store, self._connection))


class _AsyncCallers:
    def __init__(self, connection: Any, ask: transactions.AsyncAsk) -> None:
        self._connection = connection
        self.ask = ask

    def lend(self) -> Any:
        return self._connection

    def taint(self) -> None:
        """The connection is the caller's."""

    async def recall(self) -> bool:
        return True

    async def flush(self) -> None:
        """The caller's commit does."""

    async def commit(self) -> None:
        """The caller does."""

    async def rollback(self) -> None:
        """The caller does."""
