"""A store that loses questions or replies when told to: for engines that no wire leads to."""

from __future__ import annotations

from typing import Any

from oncekey.errors import StoreUnavailable
from oncekey.stores.base import AsyncConnection, Connection, Store


class Lossy:
    """Another store, asked like it. It is told what to lose as a `Wire` is."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.name, self.durability = store.name, store.durability
        self.group, self.perform = store.group, store.perform
        self.prepare, self.migrate = store.prepare, store.migrate
        self._mode = "pass"
        self._skipped = 0
        self.cuts = 0

    def cut_at_next_question(self, *, skipped: int = 0) -> None:
        self._mode, self._skipped = "question", skipped

    def cut_at_next_reply(self, *, skipped: int = 0) -> None:
        self._mode, self._skipped = "reply", skipped

    def pass_all(self) -> None:
        self._mode = "pass"

    def connect(self) -> Connection:
        return _LossyConnection(self._store.connect(), self)

    async def aconnect(self) -> AsyncConnection:
        return _AsyncLossyConnection(await self._store.aconnect(), self)

    def passes(self, mode: str) -> None:
        """A message of this kind is on its way; raises where it is the one to be lost."""
        if self._mode != mode:
            return
        self._skipped -= 1
        if self._skipped < 0:
            self.cuts += 1
            self._mode = "pass"
            raise StoreUnavailable(f"its {mode} was lost", sent=True)


class _LossyConnection:
    def __init__(self, connection: Connection, told: Lossy) -> None:
        self._connection = connection
        self._told = told
        self.close = connection.close

    def ask(self, question: Any) -> Any:
        self._told.passes("question")
        answer = self._connection.ask(question)
        self._told.passes("reply")
        return answer


class _AsyncLossyConnection:
    def __init__(self, connection: AsyncConnection, told: Lossy) -> None:
        self._connection = connection
        self._told = told
        self.close = connection.close

    async def ask(self, question: Any) -> Any:
        self._told.passes("question")
        answer = await self._connection.ask(question)
        self._told.passes("reply")
        return answer
