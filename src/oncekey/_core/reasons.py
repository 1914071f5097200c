"""Why something went wrong, as enums: values are metric labels, sentences are for people.

Sentences are made from the enum, so no label depends on how a sentence is worded.
"""

from __future__ import annotations

import enum

from oncekey._core.policy import Policy
from oncekey._core.values import value


class LossKind(enum.StrEnum):
    """Why an attempt does not own its record any more, or cannot know."""

    TAKEN_OVER = "taken-over"
    REFUSED_AT_STEP = "refused-at-step"
    REFUSED_AT_COMPLETION = "refused-at-completion"
    NOT_RENEWED = "not-renewed"
    RAN_TOO_LONG = "ran-too-long"
    LAPSED_BEFORE_START = "lapsed-before-start"
    LAPSED_BEFORE_EFFECT = "lapsed-before-effect"
    LAPSED_WHILE_ASKING = "lapsed-while-asking"

    def sentence(self, policy: Policy) -> str:
        """The same in words, for an attempt under this policy."""
        return _LOSSES[self].format(policy=policy)


_LOSSES = {
    LossKind.TAKEN_OVER: "taken over",
    LossKind.REFUSED_AT_STEP: "refused at a step",
    LossKind.REFUSED_AT_COMPLETION: "refused at completion",
    LossKind.NOT_RENEWED: "could not be renewed",
    LossKind.RAN_TOO_LONG: "ran longer than run_s_max={policy.run_s_max:g}",
    LossKind.LAPSED_BEFORE_START: (
        "its lease was over before it began: this process stood still, or the store took longer "
        "than lease_s"
    ),
    LossKind.LAPSED_BEFORE_EFFECT: "its lease was over before its next effect",
    LossKind.LAPSED_WHILE_ASKING: "its lease was over before it was known that it may run",
}


class StoreFailure(enum.StrEnum):
    """What is known of a store query that failed."""

    LOST = "lost"
    """The store may have acted on it."""
    NOT_SENT = "not sent"
    """The store cannot have acted on it."""


class GiveUpKind(enum.StrEnum):
    """Why a client does not send a request again, although a retry was in order."""

    ATTEMPTS = "attempts"
    TIME = "time"
    ASKED_TO_WAIT = "asked-to-wait"
    RETRY_BUDGET = "retry-budget"
    FORGOTTEN = "forgotten"
    SENT_ONCE = "sent-once"
    UNKNOWN = "unknown"


@value
class GaveUp:
    """Why a client gave up, with a sentence for its caller."""

    kind: GiveUpKind
    sentence: str
