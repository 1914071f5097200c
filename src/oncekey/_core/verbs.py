"""Queries to a store as values: the verbs and their outcomes.

The engine yields verbs; `oncekey.stores.base` says what a store must do for each. Every change of
ownership goes through `Insert` and `Swap`, so correctness rests on these two.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from oncekey._core.record import Answer, Claim, Record, State, Step
from oncekey._core.values import value


class When(enum.Enum):
    """What must be true *by the store's clock, at the write*, for a swap to happen."""

    ANY = "any"
    LAPSED = "lapsed"
    EXPIRED = "expired"
    OVERLONG = "overlong"


@value
class Insert:
    """Write a new running record, or find the existing one. → `Inserted | Found`"""

    claim: Claim

    @property
    def id(self) -> bytes:
        return self.claim.id


@value
class Inserted:
    fence: int


@value
class Found:
    record: Record


@value
class Swap:
    """Change a record if its state, fence and token are as expected and `when` holds. → `Done |
    Refused`
    """

    id: bytes
    state: State
    fence: int
    token: bytes
    when: When
    to: State
    raise_fence: bool
    retention_s: float
    lease_s: float | None = None
    """Set exactly if `to` is running: the new deadline is the store's now plus this."""
    new_token: bytes | None = None
    claim: Claim | None = None
    """On a take-over: the request, recovery and schema version of the new attempt."""
    fresh: bool = False
    """Start over: created now, counters 0, stored response and steps removed."""
    attempt: int | None = None
    lapses: int | None = None
    no_effect: bool = False
    answer: Answer | None = None
    resource_id: str | None = None


@value
class Done:
    fence: int


@value
class Refused:
    """Nothing changed; `record` is what was there instead, None if nothing was."""

    record: Record | None


@value
class Find:
    """→ `Record | None`"""

    id: bytes


@value
class Peek:
    """→ `Glimpse | None`"""

    id: bytes


@value
class AppendStep:
    """Store a step if the attempt still owns the record. → `Done | Refused`"""

    id: bytes
    fence: int
    token: bytes
    step: Step


@value
class Steps:
    """→ `list[Step]` in the order in which they were first appended."""

    id: bytes


@value
class Requested:
    """→ the request stored with a claim, None if there is none or the record has ended."""

    id: bytes


@value
class Tally:
    """Add to counters; no decision depends on them. → None"""

    replays: Mapping[bytes, int]
    conflicts: Mapping[bytes, int]


@value
class Due:
    """→ ids of at most `limit` records that are lapsed or expired: a hint, oldest first.

    With `abandoned` only lapsed ones that a recoverer acts on: all but those with `rerun`, which
    wait for a retry.
    """

    limit: int
    abandoned: bool = False


@value
class Sweep:
    """Remove at most `limit` expired records. → how many"""

    limit: int


@value
class Scan:
    """→ at most `limit` records without bodies, by id, after the id `after`."""

    limit: int
    after: bytes = b""
    state: State | None = None
    tenant: str | None = None


@value
class Count:
    """→ `dict[State, int]`"""


@value
class Purge:
    """Blank at most `limit` finished records of a tenant; their ids stay. → how many"""

    tenant: str
    limit: int


Verb = (
    Insert
    | Swap
    | Find
    | Peek
    | AppendStep
    | Steps
    | Requested
    | Tally
    | Due
    | Sweep
    | Scan
    | Count
    | Purge
)
