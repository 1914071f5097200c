"""A line: one connection to a store that is made, checked, and made anew after it broke."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from typing import Any

from oncekey._core.op import arun, run
from oncekey._core.verbs import Verb
from oncekey._system.clock import SystemClock
from oncekey.errors import CorruptRecord, OncekeyError, StoreUnavailable
from oncekey.stores.base import AGAIN, AsyncConnection, Connection, Store
from oncekey.stores.sql_batch import Denied

DENIED_S = 1.0
"""How often it is looked whether a right that was missing is there."""


class _Rights:
    """MySQL goes by the rights that there were when a connection was made: after one was missing,
    it has to be made anew to see whether it was granted.
    """

    __slots__ = ("_look_at",)

    def __init__(self) -> None:
        self._look_at: float | None = None

    def missed(self) -> None:
        if self._look_at is None:
            self._look_at = SystemClock.monotonic() + DENIED_S

    def may_have_changed(self) -> bool:
        if self._look_at is None or SystemClock.monotonic() < self._look_at:
            return False
        self._look_at = None
        return True


class Line:
    """A connection that is made, checked and made anew as needed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._connection: Connection | None = None
        self._rights = _Rights()

    @property
    def connected(self) -> bool:
        """Whether there is a connection; where making one failed, no verb has been sent."""
        return self._connection is not None

    def perform(self, verbs: Sequence[Verb]) -> list[Any]:
        """Carry out verbs of one group; on `StoreUnavailable` the connection is given up. So it is
        on whatever is not said by the store: a signal may have raised it, as one that enforces a
        time limit does, and the next question would be given the answer to this one.
        """
        if self._rights.may_have_changed():
            self.close()
        try:
            connection = self._connection or self._connect()
            return run(self._store.perform(verbs), connection.ask)
        except StoreUnavailable:
            self.close()
            raise
        except Denied:
            self._rights.missed()
            raise
        except OncekeyError:
            raise
        except Exception:
            self.close()
            raise

    def perform_all(self, verbs: Sequence[Verb]) -> list[Any]:
        """Carry out verbs of any groups, each with those of its own; outcomes in the same order.
        One is `AGAIN` where somebody holds its record, or nobody can read it.
        """
        groups: dict[Hashable, list[int]] = {}
        for at, verb in enumerate(verbs):
            groups.setdefault(self._store.group(verb), []).append(at)
        outcomes: list[Any] = [None] * len(verbs)
        for places in groups.values():
            answers = self._perform_readable([verbs[at] for at in places])
            for at, answer in zip(places, answers, strict=True):
                outcomes[at] = answer
        return outcomes

    def _perform_readable(self, verbs: list[Verb]) -> list[Any]:
        try:
            return self.perform(verbs)
        except CorruptRecord:
            if len(verbs) == 1:
                return [AGAIN]
            return [outcome for verb in verbs for outcome in self._perform_readable([verb])]

    def _connect(self) -> Connection:
        connection = self._store.connect()
        try:
            run(self._store.prepare(), connection.ask)
        except StoreUnavailable as error:
            connection.close()
            raise _before_any_verb(error) from error
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def abandon(self) -> None:
        """Leave the connection to itself: interrupted, nobody knows what it still carries."""
        self._connection = None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it may be broken; it is given up either way
                connection.close()


def _before_any_verb(error: StoreUnavailable) -> StoreUnavailable:
    """The checks may have been sent; the verbs that wait for this connection were not."""
    return StoreUnavailable(str(error), sent=False)


class AsyncLine:
    """The same for async callers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._connection: AsyncConnection | None = None
        self._rights = _Rights()

    @property
    def connected(self) -> bool:
        return self._connection is not None

    async def perform(self, verbs: Sequence[Verb]) -> list[Any]:
        if self._rights.may_have_changed():
            await self.close()
        try:
            connection = self._connection or await self._connect()
            return await arun(self._store.perform(verbs), connection.ask)
        except StoreUnavailable:
            await self.close()
            raise
        except Denied:
            self._rights.missed()
            raise
        except OncekeyError:
            raise
        except Exception:
            await self.close()
            raise

    async def _connect(self) -> AsyncConnection:
        connection = await self._store.aconnect()
        try:
            await arun(self._store.prepare(), connection.ask)
        except StoreUnavailable as error:
            await connection.close()
            raise _before_any_verb(error) from error
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        return connection

    def abandon(self) -> None:
        self._connection = None

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it may be broken; it is given up either way
                await connection.close()
