"""What became of a call of a guarded function, or of the delivery of a message, as values."""

from __future__ import annotations

import json
from typing import Any

from oncekey._core import refusals
from oncekey._core.problems import Kind, Problem
from oncekey._core.record import Answer
from oncekey._core.values import value
from oncekey._engine.decisions import Finished, Given, GivenUp, Refuse, Replay, Stored, Unstored
from oncekey.errors import (
    InFlight,
    LeaseLost,
    Mismatch,
    Misuse,
    NotKept,
    OncekeyError,
    Refusal,
    StoreUnavailable,
    Unknown,
)


@value
class Ran:
    """It ran now."""

    result: Any
    stored: bool = True
    """False where the result could not be recorded, or the policy let it run unprotected."""


@value
class Replayed:
    """It ran before: what it gave then."""

    result: Any


@value
class Released:
    """It ran now and said that this is not final: another try runs again."""

    result: Any


@value
class Doubted:
    """It ran now and said that nobody can tell what it did (`unknown()`)."""

    result: Any
    problem: Problem
    """What later calls get."""
    of: str
    """As that of `Declined`."""


@value
class Declined:
    """It was refused, or ran and must not say what it gave."""

    problem: Problem
    sent: bool
    """Whether the store may have heard of this call."""
    of: str
    """Which operation, and the short hash of its key: `shop.pay key=0c8698d5d0dc`."""

    def error(self) -> OncekeyError:
        """The same as an exception."""
        told = f"{self.of}: {self.problem.detail}"
        if self.problem.kind is Kind.STORE_UNAVAILABLE:
            return StoreUnavailable(told, sent=self.sent)
        return _RAISED.get(self.problem.kind, Refusal)(told, self.problem)


Outcome = Ran | Replayed | Released | Doubted | Declined

_RAISED: dict[Kind, type[Refusal]] = {
    Kind.IN_FLIGHT: InFlight,
    Kind.MISMATCH: Mismatch,
    Kind.OUTCOME_UNKNOWN: Unknown,
    Kind.ANSWER_NOT_KEPT: NotKept,
    Kind.STALE_ANSWER: NotKept,
    Kind.KEY_EXPIRED: NotKept,
}


def outcome_of(finished: Finished, own: object, of: str) -> Outcome:
    """`own` is what was to be recorded, where that was an answer; `of` says of which call."""
    match finished:
        case Stored(_, recorded):
            return Ran(_result(recorded or own))
        case Unstored():
            return Ran(_result(own), stored=False)
        case Given():
            return Released(_result(own))
        case GivenUp():
            return Doubted(_result(own), refusals.outcome_unknown(), of)
        case Replay(answer):
            return replayed(answer)
        case Refuse(problem):
            return Declined(problem, sent=True, of=of)


def committable(finished: Finished, own: Answer, of: str) -> Outcome:
    """Nobody but the caller can undo what `work` wrote, so the caller must hear of it."""
    outcome = outcome_of(finished, own, of)
    if isinstance(outcome, Declined):
        raise outcome.error()
    if not isinstance(outcome, Ran):
        raise LeaseLost(
            f"{of}: another call with this key was committed meanwhile: roll this one back"
        )
    return outcome


def replayed(answer: Answer) -> Replayed:
    """What an operator gave it may be plain text: nobody could call it any more if that failed."""
    try:
        return Replayed(_result(answer))
    except Misuse:
        return Replayed((answer.body or b"").decode(errors="replace"))


def _result(answer: object) -> Any:
    """What every caller gets: as JSON gives it back, the first one too."""
    body = answer.body if isinstance(answer, Answer) else None
    try:
        return json.loads(body or b"null")
    except ValueError as error:
        raise Misuse(
            f"the kept answer is not JSON ({error}): give complete_in a body that JSON can write"
        ) from error
