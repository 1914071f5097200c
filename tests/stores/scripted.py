"""A store whose answers a test writes: it drives a gatherer, it keeps nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from oncekey._core.op import Op
from oncekey._core.verbs import Find, Verb
from oncekey.stores.base import Durability

PATIENCE_S = 20.0
PREPARE = object()


def ids(verbs: Sequence[Verb]) -> list[Any]:
    """The usual answer: of every verb its id."""
    return [verb.id for verb in verbs if isinstance(verb, Find)]


def find(name: str) -> Find:
    return Find(name.encode())


class Scripted:
    """Asks each batch as one question; its connections note it and answer by `answer`."""

    name = "scripted"
    durability = Durability(False, False, False, "keeps nothing")

    def __init__(self, answer: Callable[[Sequence[Verb]], list[Any]] = ids) -> None:
        self.answer = answer
        self.asked: list[list[Verb]] = []
        self.connections: list[_Connection] = []
        self.prepared = 0
        self.group_of: Callable[[Verb], Hashable] = lambda verb: "all"
        self.refuse: Callable[[], None] = lambda: None
        """Raises where connecting is to fail."""
        self.unfit: Callable[[], None] = lambda: None
        """Raises where preparing is to fail."""
        self.open = threading.Event()
        """While it is not set, round trips do not end."""
        self.open.set()
        self.aopen = asyncio.Event()
        self.aopen.set()
        self.under_way = threading.Semaphore(0)
        """Released whenever a round trip begins."""

    def group(self, verb: Verb) -> Hashable:
        return self.group_of(verb)

    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        outcomes: list[Any] = yield list(verbs)
        return outcomes

    def prepare(self) -> Op[None]:
        yield PREPARE

    def migrate(self) -> Op[list[str]]:
        yield PREPARE
        return []

    def connect(self) -> SyncConnection:
        self.refuse()
        connection = SyncConnection(self)
        self.connections.append(connection)
        return connection

    async def aconnect(self) -> AsyncConnection:
        self.refuse()
        connection = AsyncConnection(self)
        self.connections.append(connection)
        return connection

    @property
    def closed(self) -> list[bool]:
        return [connection.is_closed for connection in self.connections]


class _Connection:
    def __init__(self, store: Scripted) -> None:
        self._store = store
        self._busy = False
        self.is_closed = False

    def _begin(self, question: Any) -> bool:
        """Note the question; False if nothing more is to be done about it."""
        assert not self.is_closed, "asked after it was closed"
        assert not self._busy, "asked twice at once"
        store = self._store
        if question is PREPARE:
            store.prepared += 1
            store.unfit()
            return False
        self._busy = True
        store.asked.append(question)
        store.under_way.release()
        return True

    def _end(self, question: Any) -> list[Any]:
        self._busy = False
        return self._store.answer(question)


class SyncConnection(_Connection):
    def ask(self, question: Any) -> Any:
        if not self._begin(question):
            return None
        assert self._store.open.wait(PATIENCE_S)
        return self._end(question)

    def close(self) -> None:
        assert not self._busy, "closed within a round trip"
        self.is_closed = True


class AsyncConnection(_Connection):
    async def ask(self, question: Any) -> Any:
        if not self._begin(question):
            return None
        await self._store.aopen.wait()
        return self._end(question)

    async def close(self) -> None:
        assert not self._busy, "closed within a round trip"
        self.is_closed = True
