"""A connection that is lent to a handler for one transaction, and given back however that ends.

`Lent` blocks and `AsyncLent` awaits. Drivers differ in how a connection is taken and given back,
hardly in how a transaction on it ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from oncekey.errors import Misuse
from oncekey.stores import join

ACQUIRE_S_MAX = 5.0
"""How long to wait for a connection of a pool."""


def must_open(source: object, takes: str) -> None:
    """Raise `Misuse` for a text, which is not shown: it may be a URL, with a password."""
    if isinstance(source, str):
        raise Misuse(f"{takes}, not a text; store=… is where a URL is given")


class Lent:
    """`give_back` takes the connection in whatever state it is."""

    def __init__(self, connection: Any, ask: join.Ask, give_back: Callable[[], Any]) -> None:
        self.connection = connection
        self.ask = ask
        self._give_back = give_back

    def flush(self) -> None:
        """There is no session."""

    def commit(self) -> None:
        try:
            self.connection.commit()
        finally:
            self._give_back()

    def rollback(self) -> None:
        try:
            with contextlib.suppress(Exception):  # a broken one has nothing left to roll back
                self.connection.rollback()
        finally:
            self._give_back()


class AsyncLent:
    """As `Lent`, for an event loop."""

    def __init__(
        self, connection: Any, ask: join.AsyncAsk, give_back: Callable[[], Awaitable[Any]]
    ) -> None:
        self.connection = connection
        self.ask = ask
        self._give_back = give_back

    async def flush(self) -> None:
        """There is no session."""

    async def commit(self) -> None:
        try:
            await self.connection.commit()
        finally:
            await self._give_back()

    async def rollback(self) -> None:
        try:
            with contextlib.suppress(Exception):  # a broken one has nothing left to roll back
                await self.connection.rollback()
        finally:
            await self._give_back()
