"""A connection that is lent to a handler for one transaction, and given back however that ends.

`Lent` blocks and `AsyncLent` awaits. Drivers differ in how a connection is taken, lent and given
back, hardly in how a transaction on it ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from oncekey._engine.decisions import Ended
from oncekey.errors import Misuse
from oncekey.stores import transactions

ACQUIRE_S_MAX = 5.0
"""How long to wait for a connection of a pool."""


def must_open(source: object, takes: str) -> None:
    """Raise `Misuse` for a text, which is not shown: it may be a URL, with a password."""
    if isinstance(source, str):
        raise Misuse(f"{takes}, not a text; store=… is where a URL is given")


class Lent:
    """`lend` makes the loan (`loan.py`). `give_back` takes the connection in whatever state it is,
    and is told whether it is tainted: then it must be closed.
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
        return self._loan.lent

    def ask(self, question: Any) -> Any:
        if self._loan is not None and self._loan.ended:
            raise Ended
        return self._ask(question)

    def flush(self) -> None:
        """There is no session."""

    def recall(self) -> bool:
        return self._loan is None or bool(self._loan.recall(cut=False))

    def taint(self) -> None:
        self._is_tainted = True

    def commit(self) -> None:
        try:
            self.connection.commit()
        finally:
            self._end()

    def rollback(self) -> None:
        try:
            if self._loan is None or self._loan.recall(cut=True):
                with contextlib.suppress(Exception):  # a broken one has nothing left to roll back
                    self.connection.rollback()
        finally:
            self._end()

    def _end(self) -> None:
        self._give_back(self._is_tainted or (self._loan is not None and self._loan.tainted))


class AsyncLent:
    """As `Lent`, for an event loop."""

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
        return self._loan.lent

    async def ask(self, question: Any) -> Any:
        if self._loan is not None and self._loan.ended:
            raise Ended
        return await self._ask(question)

    async def flush(self) -> None:
        """There is no session."""

    async def recall(self) -> bool:
        return self._loan is None or bool(await self._loan.recall(cut=False))

    def taint(self) -> None:
        self._is_tainted = True

    async def commit(self) -> None:
        try:
            await self.connection.commit()
        finally:
            await self._end()

    async def rollback(self) -> None:
        try:
            if self._loan is None or await self._loan.recall(cut=True):
                with contextlib.suppress(Exception):  # a broken one has nothing left to roll back
                    await self.connection.rollback()
        finally:
            await self._end()

    async def _end(self) -> None:
        await self._give_back(self._is_tainted or (self._loan is not None and self._loan.tainted))
