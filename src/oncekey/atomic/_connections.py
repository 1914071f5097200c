"""A transaction on a driver's connection, which is returned to its pool however it ends.

`DriverTransaction` blocks, `AsyncDriverTransaction` awaits. Drivers differ in how they open, lend
and return a connection, hardly in how a transaction ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from oncekey._engine.decisions import Ended
from oncekey.errors import Misuse
from oncekey.stores import transactions

ACQUIRE_S_MAX = 5.0
"""How long to wait for a connection from a pool."""


def must_not_be_url(source: object, takes: str) -> None:
    """Raise `Misuse` for a text, without showing it: it may be a URL with a password."""
    if isinstance(source, str):
        raise Misuse(f"{takes}, not a text; URLs go into store=…")


class DriverTransaction:
    """A blocking transaction. `lend` makes the loan of the connection. `give_back` takes the
    connection in any state; its argument says whether it is tainted and must be closed.
    """

    def __init__(
        self,
        connection: Any,
        ask: transactions.Ask,
        give_back: Callable[[bool], Any],
        lend: Callable[[Any], Any],
    ) -> None:
        self.connection = connection
        self._ask = ask
        self._give_back = give_back
        self._lend = lend
        self._loan: Any = None
        self._is_tainted = False

    def lend(self) -> Any:
        self._loan = self._lend(self.connection)
        return self._loan.stand_in

    def ask(self, question: Any) -> Any:
        if self._loan is not None and self._loan.is_ended:
            raise Ended
        return self._ask(question)

    def flush(self) -> None:
        """Nothing to flush: there is no session."""

    def recall(self) -> bool:
        return self._loan is None or bool(self._loan.recall(cut=False))

    def taint(self) -> None:
        self._is_tainted = True

    def commit(self) -> None:
        try:
            self.connection.commit()
        finally:
            self._return_connection()

    def rollback(self) -> None:
        try:
            if self._loan is None or self._loan.recall(cut=True):
                with contextlib.suppress(Exception):  # a broken one is rolled back by the server
                    self.connection.rollback()
        finally:
            self._return_connection()

    def _return_connection(self) -> None:
        is_tainted = self._loan is not None and self._loan.is_tainted
        self._give_back(self._is_tainted or is_tainted)


class AsyncDriverTransaction:
    """An async transaction, with the same parameters."""

    def __init__(
        self,
        connection: Any,
        ask: transactions.AsyncAsk,
        give_back: Callable[[bool], Awaitable[Any]],
        lend: Callable[[Any], Any],
    ) -> None:
        self.connection = connection
        self._ask = ask
        self._give_back = give_back
        self._lend = lend
        self._loan: Any = None
        self._is_tainted = False

    def lend(self) -> Any:
        self._loan = self._lend(self.connection)
        return self._loan.stand_in

    async def ask(self, question: Any) -> Any:
        if self._loan is not None and self._loan.is_ended:
            raise Ended
        return await self._ask(question)

    async def flush(self) -> None:
        """Nothing to flush: there is no session."""

    async def recall(self) -> bool:
        return self._loan is None or bool(await self._loan.recall(cut=False))

    def taint(self) -> None:
        self._is_tainted = True

    async def commit(self) -> None:
        try:
            await self.connection.commit()
        finally:
            await self._return_connection()

    async def rollback(self) -> None:
        try:
            if self._loan is None or await self._loan.recall(cut=True):
                with contextlib.suppress(Exception):  # a broken one is rolled back by the server
                    await self.connection.rollback()
        finally:
            await self._return_connection()

    async def _return_connection(self) -> None:
        await self._give_back(
            self._is_tainted or (self._loan is not None and self._loan.is_tainted)
        )
