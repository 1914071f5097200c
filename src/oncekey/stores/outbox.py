"""The outbox's table, as the publisher queries it.

`OutboxTable` is the same for every database; `outbox.py` in an engine's folder is how its database
is asked. Everything is a generator (`oncekey._core.op`): it yields questions in the store's own
language.

Look, then claim
    `look` only reads: the first row of each lane, from some lane on. It is a hint. `claim` decides,
    by the database's clock at the write, which of them are this worker's until the lease is over.
    The first row of a lane stays the first until it is published or parked, so a row that `look`
    found is still the first when it is claimed.

Owned
    Every later write names the row and presents the claim's token. A worker whose lease is over and
    whose rows another worker has claimed changes nothing.
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
"""No lease and no pause after a failure is longer. A row that is due later was written before the
database's clock was set back, and is due now.
"""


@value
class LaneHead:
    """The first row of a lane, as `look` found it."""

    n: int
    lane: bytes
    due: bool
    payload_bytes: int
    left: bool
    """A worker claimed it and did not finish: it died, or was too late."""
    topic: str


@value
class ClaimedRow:
    """A row that was claimed."""

    n: int
    message: Message
    parked: bool
    """It was claimed too often without an end, and must not be published."""


@value
class ReturnedRow:
    """A row that goes back unpublished."""

    n: int
    delay_s: float
    attempts: int
    error: str | None
    parked: bool


class OutboxTable(Protocol):
    """The outbox's table in one kind of database."""

    def with_clock(self, clock: Clock) -> OutboxTable:
        """The same with another clock, where the time is this process's."""

    def put(self, message: Message) -> Op[None]:
        """Write a message, in the transaction in which the questions are asked."""

    def look(self, after: bytes, heads_max: int) -> Op[list[LaneHead]]:
        """Return the first rows of the lanes after `after`, in the order of lanes."""

    def claim(
        self, ns: Sequence[int], token: bytes, *, lease_s: float, attempts_max: int
    ) -> Op[list[ClaimedRow]]:
        """Claim the rows that are still due; in the order in which they were written."""

    def remove(self, ns: Sequence[int], token: bytes) -> Op[int]:
        """Remove published rows; returns how many were still this claim's."""

    def give_back(self, returns: Sequence[ReturnedRow], token: bytes) -> Op[int]:
        """Return unpublished rows; returns how many were still this claim's."""

    def list_parked(self, limit: int) -> Op[list[Parked]]:
        """Return parked messages, oldest first."""

    def retry(self, ids: Sequence[str]) -> Op[int]:
        """Publish parked messages again; returns how many there were."""
