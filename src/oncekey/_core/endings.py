"""How an attempt ended, and what that means for its record: one literal table.

An attempt that raises, is cut off or answers 5xx may have had its effect: a bank that did not
answer in time may have charged the card. With `rerun` and `resume` a retry runs it again anyway.
With `block` and `ask` it counts like an attempt whose process died, unless the handler said that
nothing happened or that it may run again.
"""

from __future__ import annotations

import enum

from oncekey._core.policy import Policy, Verdict


class End(enum.Enum):
    """How an attempt ended."""

    KEPT = "a response that is stored"
    NO_EFFECT = "nothing happened: `no_effect()`, `no_effect_on`, or a refusal such as 401 or 429"
    TRANSIENT = "`transient()`"
    FAILED = "a response below 500 that is not stored"
    BROKEN = "5xx, an exception, a time limit, a cancellation, or a response that broke off"
    ROLLED_BACK = "the same in an atomic handler, whose rows are rolled back"
    UNKNOWN = "`unknown()`"
    STEP_BROKEN = "a step that is `at_most_once` raised, and nothing was answered that is stored"


class Fate(enum.Enum):
    """What becomes of the record, named by what a retry gets."""

    STORE = "the stored response"
    FORGET = "a new run, even of another request"
    RELEASE = "a new run"
    ASK = "what your `ask` function finds out, at once"
    GIVE_UP = "a refusal: outcome unknown"


RECOVERIES = ("rerun", "resume", "ask", "block")
_ROWS = (
    (End.KEPT, Fate.STORE, Fate.STORE, Fate.STORE, Fate.STORE),
    (End.NO_EFFECT, Fate.FORGET, Fate.FORGET, Fate.FORGET, Fate.FORGET),
    (End.TRANSIENT, Fate.RELEASE, Fate.RELEASE, Fate.RELEASE, Fate.RELEASE),
    (End.FAILED, Fate.RELEASE, Fate.RELEASE, Fate.RELEASE, Fate.RELEASE),
    (End.BROKEN, Fate.RELEASE, Fate.RELEASE, Fate.ASK, Fate.GIVE_UP),
    (End.ROLLED_BACK, Fate.RELEASE, Fate.RELEASE, Fate.RELEASE, Fate.RELEASE),
    (End.UNKNOWN, Fate.GIVE_UP, Fate.GIVE_UP, Fate.ASK, Fate.GIVE_UP),
    (End.STEP_BROKEN, Fate.GIVE_UP, Fate.GIVE_UP, Fate.GIVE_UP, Fate.GIVE_UP),
)
FATES = {
    (end, recovery): fate
    for end, *fates in _ROWS
    for recovery, fate in zip(RECOVERIES, fates, strict=True)
}

_OF_VERDICT = {
    Verdict.KEEP: End.KEPT,
    Verdict.NO_EFFECT: End.NO_EFFECT,
    Verdict.FAILED: End.TRANSIENT,
    Verdict.UNKNOWN: End.UNKNOWN,
}


def end_of_verdict(said: Verdict) -> End:
    """Return the end of a handler that said what its response means."""
    return _OF_VERDICT[said]


def end_of_status(judged: Verdict, status: int, policy: Policy) -> End:
    """Return the end of a handler that responded, from the policy's verdict on the status."""
    if judged is not Verdict.FAILED:
        return _OF_VERDICT[judged]
    return _end_of_failure(policy) if status >= 500 else End.FAILED


def end_of_error(said: Verdict | None, error: BaseException, policy: Policy) -> End:
    """Return the end of a handler that raised, was cut off, or sent no complete response.

    A handler that said `KEEP` has no response to store.
    """
    if said is not None and said is not Verdict.KEEP:
        return _OF_VERDICT[said]
    return End.NO_EFFECT if isinstance(error, policy.no_effect_on) else _end_of_failure(policy)


def _end_of_failure(policy: Policy) -> End:
    return End.ROLLED_BACK if policy.atomic else End.BROKEN
