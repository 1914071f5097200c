"""The outbox's table, as the publisher queries it.

`OutboxTable` is the same for every database; `outbox.py` in an engine's folder is how its database
is asked. Everything is a generator (`oncekey._core.op`): it yields questions in the store's own
language.

Look, then claim
    `look` only reads: the first row of each lane, from some lane on. It is a hint. `claim` decides,
    by the database's clock at the write, which of them are this worker's until the lease is over.
    The first row of a lane stays the first until it is published or parked, so what was the first
    when it was looked at still is when it is claimed.

Owned
    Every later write names the row and presents the claim's token. A worker whose lease was over,
    and whose rows another has taken, changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from oncekey._core.message import Message, Parked
from oncekey._core.op import Op
from oncekey._core.values import value
from oncekey._system.clock import Clock

DIED = "it was begun too often without an end: its workers died"
DUE_S_MAX = 3_600.0
"""No lease is longer, and no pause after a failure. What is due later than that was written before
the database's clock was set back, and is due now.
"""


@value
class Head:
    """The first row of a lane, as it was seen."""

    n: int
    lane: bytes
    due: bool
    payload_bytes: int
    left: bool
    """A worker took it and never came back: it died, or was too late."""
    topic: str


@value
class Taken:
    """A row that was claimed."""

    n: int
    message: Message
    parked: bool
    """It was begun too often without an end, and is not to be published."""


@value
class Return:
    """A row that goes back unpublished."""

    n: int
    delay_s: float
    attempts: int
    error: str | None
    parked: bool


class OutboxTable(Protocol):
    """The outbox's table in one kind of database."""

    def with_clock(self, clock: Clock) -> OutboxTable:
        """The same by another clock, where the time is this process's."""

    def put(self, message: Message) -> Op[None]:
        """Write a message, in whatever transaction the questions are asked in."""

    def look(self, after: bytes, heads_max: int) -> Op[list[Head]]:
        """The first rows of the lanes after `after`, in the order of lanes."""

    def claim(
        self, ns: Sequence[int], token: bytes, *, lease_s: float, attempts_max: int
    ) -> Op[list[Taken]]:
        """Take what is still due, in the order in which it was written."""

    def remove(self, ns: Sequence[int], token: bytes) -> Op[int]:
        """These were published. How many were still this claim's."""

    def give_back(self, returns: Sequence[Return], token: bytes) -> Op[int]:
        """These were not. How many were still this claim's."""

    def parked(self, limit: int) -> Op[list[Parked]]:
        """What waits for a person, oldest first."""

    def retry(self, ids: Sequence[str]) -> Op[int]:
        """Let parked messages be published after all. How many there were."""
