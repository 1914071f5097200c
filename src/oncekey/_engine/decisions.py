"""What the engine is asked and what it decides, as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from oncekey._core.fingerprint import Fingerprint
from oncekey._core.problems import Problem
from oncekey._core.record import Answer, Claim, Record
from oncekey._core.values import value
from oncekey._engine.attempt import Attempt
from oncekey.errors import Misuse


@value
class Call:
    """A request, as far as the engine is concerned."""

    tenant: str
    operation: str
    key: str
    fingerprint: Fingerprint
    field_digests: Mapping[str, str] = field(default_factory=dict)
    request: bytes | None = None
    """The request itself, where it may have to be finished without its client."""
    asked: tuple[tuple[str | bytes, ...], float] | None = None
    """What an edge recognises the request by when it comes again, and when it came."""
    first_sent: float | None = None
    """When its client sent it for the first time, where the client says so; seconds since 1970."""
    retention_s: float | None = None
    """The retention that its client asks for, within the policy's limits; None: the policy's."""
    put_away: Callable[[], None] | None = field(default=None, compare=False, repr=False)
    """Takes the request's body out of memory, for as long as it waits for another one."""


@value
class Execute:
    """Run the handler; then `finish` or `abandon` this attempt."""

    attempt: Attempt


@value
class Replay:
    """Send the kept answer."""

    answer: Answer
    expires_in_s: float
    record: Record
    """What it is the answer of."""


@value
class Refuse:
    """Send the refusal; the handler does not run."""

    problem: Problem
    lost_claim: Claim | None = None
    """An insert that may have happened unheard: `forget` it in the background."""


@value
class Bypass:
    """Run the handler unprotected: the store is down and the policy says so."""


@value
class Stored:
    """The answer is recorded: send it, or `answer` where the handler recorded one itself."""

    expires_in_s: float
    answer: Answer | None = None


@value
class Unstored:
    """The answer could not be recorded, and a retry could only learn that its outcome is unknown:
    send it, marked.
    """


@value
class Given:
    """The record was given back: send the answer, a retry runs again, or asks what became of it."""


@value
class GivenUp:
    """Nobody knows what it did, and the record says so: send the answer, marked; a retry is
    refused.
    """


Decision = Execute | Replay | Refuse | Bypass
Finished = Stored | Unstored | Given | GivenUp | Replay | Refuse


class Ended(Misuse):
    """The transaction is not the one that was begun: what the handler committed is committed."""

    def __init__(self) -> None:
        super().__init__(
            "the handler ended the transaction itself, or closed its session, or went on after a "
            "deadlock did, so its rows do not go with its answer: leave commit and rollback to "
            "oncekey, and use a savepoint to undo a part"
        )
