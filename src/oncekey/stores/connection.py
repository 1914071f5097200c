"""One connection to a store: made, checked and made anew after it broke; and what goes with that,
the outages of a store and the time limit of a query.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from oncekey._core.op import arun, run
from oncekey._core.printable import printable
from oncekey._core.verbs import Verb
from oncekey._system.clock import Clock, SystemClock
from oncekey.errors import CorruptRecord, OncekeyError, StoreError, StoreUnavailable
from oncekey.stores.base import AGAIN, AsyncConnection, Connection, Store
from oncekey.stores.sql_batch import Denied

_log = logging.getLogger("oncekey")
DENIED_S = 1.0
"""How often to check whether a missing privilege was granted."""
REASON_CHARS_MAX = 1000
QUIET_S = 5.0
"""How long no query may fail before an outage is over."""
PAUSE_S_MAX = 5.0
_DOUBLINGS_MAX = 10


class _Privileges:
    """When to reconnect after a missing privilege: MySQL uses the privileges that a user had when
    the connection was made.
    """

    __slots__ = ("check_at",)

    def __init__(self) -> None:
        self.check_at: float | None = None
        """When to look again; None while nothing was denied."""

    def record_denial(self) -> None:
        if self.check_at is None:
            self.check_at = SystemClock.monotonic() + DENIED_S

    def may_have_changed(self) -> bool:
        if self.check_at is None or SystemClock.monotonic() < self.check_at:
            return False
        self.check_at = None
        return True


class StoreConnection:
    """A connection that is opened, checked and reopened as needed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._connection: Connection | None = None
        self._privileges = _Privileges()

    @property
    def is_connected(self) -> bool:
        """Whether a connection is open; if opening one failed, no verb was sent."""
        return self._connection is not None

    def perform(self, verbs: Sequence[Verb]) -> list[Any]:
        """Carry out verbs of one group; drop the connection on `StoreUnavailable`.

        Also drop it on an exception that is not the store's: a signal handler that enforces a time
        limit may have raised it, and the next question would get the answer to this one.
        """
        if self._privileges.check_at is not None and self._privileges.may_have_changed():
            self.close()
        try:
            connection = self._connection or self._connect()
            return run(self._store.perform(verbs), connection.ask)
        except StoreUnavailable:
            self.close()
            raise
        except Denied:
            self._privileges.record_denial()
            raise
        except OncekeyError:
            raise
        except Exception:
            self.close()
            raise

    def perform_all(self, verbs: Sequence[Verb]) -> list[Any]:
        """Carry out verbs of any groups and return their outcomes in the same order. One is `AGAIN`
        if its record is locked, or cannot be read.
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
        """Forget the connection: after an interruption it may still carry a reply."""
        self._connection = None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it may be broken
                connection.close()


def _before_any_verb(error: StoreUnavailable) -> StoreUnavailable:
    """Mark as not sent: the checks may have been sent, the verbs that wait were not."""
    return StoreUnavailable(str(error), sent=False)


class AsyncStoreConnection:
    """The same for async callers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._connection: AsyncConnection | None = None
        self._privileges = _Privileges()

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    async def perform(self, verbs: Sequence[Verb]) -> list[Any]:
        if self._privileges.check_at is not None and self._privileges.may_have_changed():
            await self.close()
        try:
            connection = self._connection or await self._connect()
            return await arun(self._store.perform(verbs), connection.ask)
        except StoreUnavailable:
            await self.close()
            raise
        except Denied:
            self._privileges.record_denial()
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
            with contextlib.suppress(Exception):  # it may be broken
                await connection.close()


# ----------------------------------------------------------------------------------- outages


class Outage:
    """An outage of a connection, or of a worker whose rounds fail: logged once when it begins,
    with its reason, and once when it is over.

    Clients are told that the store does not answer, but not why: that is for the operator, and a
    line for every request would bury it. A worker whose rounds fail pauses longer each time, up to
    `PAUSE_S_MAX`.

    A store that can be read but not written to, for example because its disk is full, answers
    replays between the claims that fail. So an outage is over when nothing has failed for a while.
    """

    __slots__ = ("_clock", "_ended", "_failed", "_failures", "_level", "_logged", "failed_at")

    def __init__(
        self,
        who: str = "the store",
        clock: Clock | None = None,
        *,
        fails: str = "does not answer",
        works: str = "answers again",
        level: int = logging.ERROR,
    ) -> None:
        self._failed, self._ended = f"{who} {fails}", f"{who} {works}"
        self._level = level
        self._clock = clock or SystemClock()
        self.failed_at: float | None = None
        """When the last failure was, during an outage."""
        self._failures = 0
        """In a row."""
        self._logged: set[type[Exception]] = set()

    def record_failure(self, error: Exception) -> None:
        self.failed_at = self._clock.monotonic()
        self._failures = min(self._failures + 1, _DOUBLINGS_MAX)
        is_ours = isinstance(error, StoreError)  # its text is enough, without a traceback
        kind = StoreError if is_ours else type(error)
        if kind not in self._logged:
            self._logged.add(kind)
            reason = printable(" ".join(str(error).split()), REASON_CHARS_MAX)
            trace = None if is_ours else error
            _log.log(self._level, "%s: %s", self._failed, reason, exc_info=trace)

    def record_success(self) -> None:
        failed_at, self._failures = self.failed_at, 0
        if failed_at is not None and self._clock.monotonic() - failed_at >= QUIET_S:
            self.failed_at = None
            self._logged.clear()
            _log.warning("%s", self._ended)

    @property
    def failures(self) -> int:
        """How many in a row, counted up to a limit."""
        return self._failures

    def pause_s(self, usual_s: float) -> float:
        """Return how long a worker pauses before its next round."""
        if not self._failures:
            return usual_s
        return max(usual_s, min(usual_s * 2.0**self._failures, PAUSE_S_MAX))


# ------------------------------------------------------------------------------- time limits


class AnswerTimer:
    """Calls `give_up` when a question has waited too long for its answer.

    Setting up and taking down a timer costs an event loop more than all else on this side of a
    question. So one timer runs on from question to question: when it rings, it checks whether the
    present deadline has passed, and if not is set again for the rest.
    """

    def __init__(self, give_up: Callable[[], None]) -> None:
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._deadline = math.inf
        self._rings = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, seconds: float) -> None:
        """Start the timeout of a question."""
        self._deadline = self._loop.time() + seconds
        if self._deadline < self._rings:
            self._set()

    def end(self) -> None:
        """Stop it: the answer is here."""
        self._deadline = math.inf

    def close(self) -> None:
        """Cancel the timer for good."""
        self.end()
        if self._timer is not None:
            self._timer.cancel()

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings = self._deadline
        self._timer = self._loop.call_at(self._deadline, self._ring)

    def _ring(self) -> None:
        self._timer, self._rings = None, math.inf
        if self._deadline <= self._loop.time():
            self._give_up()
        elif self._deadline < math.inf:
            self._set()
