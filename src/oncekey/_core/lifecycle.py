"""The life of a record: every transition and every decision, in two literal tables.

Theory of operation
-------------------
At most one attempt owns a record at a time. Ownership is a *lease*, which ends by the store's clock
unless renewed. Every write proves it with two values: the *fence*, a counter that rises with every
change of owner, and the *token*, random bytes that only this attempt knows. A store carries out a
write only if state, fence and token are still what the writer believes. So nothing that an attempt
writes after it lost its record has an effect, however long it slept, and no decision based on an
old read can overrule what happened since.

Two kinds of change need more than equality. A take-over needs a lease that is over, and starting
over needs an expired record, *by the store's clock at the write*: `When`. Reading "lapsed" and then
writing would let a take-over beat a renewal in between.

A lost reply is harmless, because a repeated write finds its own token: `took_effect()` tells
"somebody else was there" from "it was me, a moment ago".

Released means one of two things. After a failure the record stays bound to its request, because the
first try may have had an effect. Released without effect, on a first attempt, the key is as good as
new. Without this difference a typo would burn a key, or a failed charge could be followed by
another one under the same key.

`TRANSITIONS` is the state machine. `DECISIONS` says what a request gets for what it finds.
Everything else in this file only reads them. The diagram in ARCHITECTURE.md is generated from
`TRANSITIONS`.
"""

from __future__ import annotations

import enum

from oncekey._core.fingerprint import Comparison
from oncekey._core.policy import Policy
from oncekey._core.record import Answer, Claim, Record, State
from oncekey._core.retention import blank_answer, is_tombstone
from oncekey._core.values import value
from oncekey._core.verbs import Swap, When

RUNNING, COMPLETED, RELEASED, UNKNOWN = (
    State.RUNNING,
    State.COMPLETED,
    State.RELEASED,
    State.UNKNOWN,
)


@value
class Transition:
    """From which states to which, on what condition, and whether the fence rises (a new owner)."""

    sources: tuple[State, ...]
    to: State
    when: When
    raise_fence: bool


TRANSITIONS = {
    "renew": Transition((RUNNING,), RUNNING, When.ANY, False),
    "shorten": Transition((RUNNING,), RUNNING, When.OVERLONG, False),
    "lapse": Transition((RUNNING,), RUNNING, When.ANY, False),
    "complete": Transition((RUNNING,), COMPLETED, When.ANY, False),
    "release": Transition((RUNNING,), RELEASED, When.ANY, False),
    "take over": Transition((RUNNING,), RUNNING, When.LAPSED, True),
    "doubt": Transition((RUNNING,), UNKNOWN, When.LAPSED, True),
    "give up": Transition((RUNNING,), UNKNOWN, When.ANY, True),
    "run again": Transition((RELEASED,), RUNNING, When.ANY, True),
    "run anew": Transition((COMPLETED,), RUNNING, When.ANY, True),
    "start over": Transition((RUNNING, COMPLETED, RELEASED, UNKNOWN), RUNNING, When.EXPIRED, True),
    "fade": Transition((COMPLETED,), COMPLETED, When.ANY, True),
    "resolve as completed": Transition((UNKNOWN,), COMPLETED, When.ANY, True),
    "resolve as released": Transition((UNKNOWN,), RELEASED, When.ANY, True),
}


class Situation(enum.Enum):
    """What a request finds under its record id; the first five depend on the store's clock."""

    IN_FLIGHT = "running, lease live"
    OVERLONG = "running, deadline further away than one lease"
    LAPSED = "running, lapsed"
    WORN_OUT = "running, lapsed too often"
    EXPIRED = "expired"
    FAILED = "released after failure"
    NO_EFFECT = "released without effect"
    COMPLETED = "completed"
    STALE = "completed under another schema version"
    BODILESS = "completed without body"
    GONE = "completed, its answer's retention is over"
    UNKNOWN = "unknown"


class Action(enum.Enum):
    """What to do about it."""

    START_OVER = "run, as if nothing had been there"
    RUN_AGAIN = "run again"
    ASK = "take over, then ask the application what became of it"
    RECOVER = "as the operation's recovery says"
    DOUBT = "declare the outcome unknown"
    SHORTEN = "cut the deadline to one lease, then look again"
    IN_FLIGHT = "refuse or wait: still running"
    REPLAY = "replay"
    CONVERT = "upcast, replay, run or refuse, as the operation's versions say"
    UPCAST = "replay, brought to the schema version of now"
    STALE = "refuse: kept under an older schema version"
    FACT_ONLY = "tell that it happened; the answer was not kept"
    GONE = "refuse: done too long ago"
    UNKNOWN = "refuse: outcome unknown"
    MISMATCH = "refuse: other request"
    NEWER = "refuse for now: written by a newer release"


_SAME, _OTHER, _NEWER = Comparison.SAME, Comparison.DIFFERENT, Comparison.UNKNOWN_VERSION

# What was found; what the same request gets; what another request gets; what a request gets whose
# fingerprint cannot be compared.
_ROWS = (
    (Situation.EXPIRED, Action.START_OVER, Action.START_OVER, Action.START_OVER),
    (Situation.NO_EFFECT, Action.RUN_AGAIN, Action.RUN_AGAIN, Action.RUN_AGAIN),
    (Situation.FAILED, Action.RUN_AGAIN, Action.MISMATCH, Action.NEWER),
    (Situation.IN_FLIGHT, Action.IN_FLIGHT, Action.MISMATCH, Action.NEWER),
    (Situation.OVERLONG, Action.SHORTEN, Action.MISMATCH, Action.NEWER),
    (Situation.LAPSED, Action.RECOVER, Action.MISMATCH, Action.NEWER),
    (Situation.WORN_OUT, Action.DOUBT, Action.MISMATCH, Action.NEWER),
    (Situation.COMPLETED, Action.REPLAY, Action.MISMATCH, Action.NEWER),
    (Situation.STALE, Action.CONVERT, Action.MISMATCH, Action.NEWER),
    (Situation.BODILESS, Action.FACT_ONLY, Action.MISMATCH, Action.NEWER),
    (Situation.GONE, Action.GONE, Action.GONE, Action.GONE),
    (Situation.UNKNOWN, Action.UNKNOWN, Action.MISMATCH, Action.NEWER),
)
DECISIONS = {
    (situation, comparison): action
    for situation, *actions in _ROWS
    for comparison, action in zip((_SAME, _OTHER, _NEWER), actions, strict=True)
}


def situation(record: Record, policy: Policy) -> Situation:
    """Classify a record that a request found."""
    if record.expires_in_s <= 0:
        return Situation.EXPIRED
    match record.state:
        case State.COMPLETED:
            if is_tombstone(record):
                return Situation.GONE
            if record.answer is None or record.answer.body is None:
                return Situation.BODILESS
            current = record.schema_version == policy.schema_version
            return Situation.COMPLETED if current else Situation.STALE
        case State.RELEASED:
            return Situation.NO_EFFECT if record.no_effect else Situation.FAILED
        case State.UNKNOWN:
            return Situation.UNKNOWN
    if record.lapsed:
        worn_out = record.lapses + 1 >= policy.lapses_max
        return Situation.WORN_OUT if worn_out else Situation.LAPSED
    return Situation.OVERLONG if record.overlong else Situation.IN_FLIGHT


def decide(record: Record, comparison: Comparison, policy: Policy) -> Action:
    """Decide what a request gets that finds this record. Never `RECOVER` or `CONVERT`: the policy
    has resolved these.
    """
    action = DECISIONS[situation(record, policy), comparison]
    if action is Action.RECOVER:
        return recover(record, policy)
    return convert(record, policy) if action is Action.CONVERT else action


def recover(record: Record, policy: Policy) -> Action:
    """Decide what to do about a lapsed attempt.

    The code that ran it declared the record's own recovery; a deployment in between must not weaken
    it.
    """
    declared = (record.recovery, policy.recovery)
    if "block" in declared or ("ask" in declared and policy.ask is None):
        return Action.DOUBT
    return Action.ASK if "ask" in declared else Action.RUN_AGAIN


def convert(record: Record, policy: Policy) -> Action:
    """Decide what to do about a response of another schema version.

    A request runs again only for a newer version: otherwise, during a rolling deployment, two
    versions would replace each other's responses without end. And only if the code that ran it
    allowed that too.
    """
    old, new = record.schema_version, policy.schema_version
    if policy.upcasts is not None and policy.upcasts.path(old, new) is not None:
        return Action.UPCAST
    if policy.stale == "replay" or (policy.stale == "rerun" and old > new):
        return Action.REPLAY
    if policy.stale == "refuse":
        return Action.NEWER if old > new else Action.STALE
    return Action.RUN_AGAIN if record.recovery in ("rerun", "resume") else Action.STALE


def _swap(name: str, found: Record | Held, **changes: object) -> Swap:
    transition = TRANSITIONS[name]
    if found.state not in transition.sources:
        raise ValueError(f"a record that is {found.state} cannot {name}")
    return Swap(
        id=found.id,
        state=found.state,
        fence=found.fence,
        token=found.token,
        to=transition.to,
        when=transition.when,
        raise_fence=transition.raise_fence,
        **changes,  # type: ignore[arg-type]
    )


@value
class Held:
    """A record as its owner knows it: what every write of an attempt proves itself with."""

    id: bytes
    fence: int
    token: bytes
    state: State = State.RUNNING


def renew(held: Held, *, lease_s: float, retention_s: float) -> Swap:
    """Extend the lease; changes only the deadline and the beat."""
    return _swap("renew", held, lease_s=lease_s, retention_s=retention_s)


def shorten(found: Record) -> Swap:
    """Cut the deadline to one lease from now, after the store's clock was set back: a lease must
    not reach far into the future, so the first request that sees it cuts it.
    """
    return _swap("shorten", found, lease_s=found.lease_s, retention_s=found.retention_s)


def lapse(held: Held, *, retention_s: float) -> Swap:
    """End the owner's lease now, so that the next request finds out what happened."""
    return _swap("lapse", held, lease_s=0.0, retention_s=retention_s)


def complete(
    held: Held, answer: Answer, *, retention_s: float, resource_id: str | None = None
) -> Swap:
    return _swap("complete", held, retention_s=retention_s, answer=answer, resource_id=resource_id)


def release(held: Held, *, no_effect: bool, retention_s: float) -> Swap:
    return _swap("release", held, retention_s=retention_s, no_effect=no_effect)


def doubt(found: Record, *, new_token: bytes, retention_s: float) -> Swap:
    """Declare the outcome unknown; a new fence and token keep its old owner from writing."""
    return _swap(
        "doubt", found, new_token=new_token, retention_s=retention_s, lapses=found.lapses + 1
    )


def give_up(held: Held, *, new_token: bytes, lapses: int, retention_s: float) -> Swap:
    """Let the owner declare its own outcome unknown: as after `doubt`, only an operator ends it."""
    return _swap("give up", held, new_token=new_token, retention_s=retention_s, lapses=lapses)


def take(found: Record, claim: Claim) -> Swap:
    """Become the owner of a record that is expired, released, lapsed, or completed under an older
    schema version.
    """
    if found.expired:
        name, fresh, attempt, lapses = "start over", True, 1, 0
    elif found.state is State.RELEASED and found.no_effect:  # as if it had never run
        name, fresh, attempt, lapses = "run again", False, 1, 0
    elif found.state is State.RELEASED:
        name, fresh, attempt, lapses = "run again", False, found.attempt + 1, found.lapses
    elif found.state is State.COMPLETED and found.schema_version < claim.schema_version:
        # Fresh, so that the old response and its steps are removed; but not a first attempt, since
        # the record stays bound to its request.
        name, fresh, attempt, lapses = "run anew", True, found.attempt + 1, 0
    else:
        name, fresh, attempt, lapses = "take over", False, found.attempt + 1, found.lapses + 1
    return _swap(
        name,
        found,
        new_token=claim.token,
        claim=claim,
        lease_s=claim.lease_s,
        retention_s=claim.retention_s,
        fresh=fresh,
        attempt=attempt,
        lapses=lapses,
    )


def fade(found: Record, *, new_token: bytes) -> Swap:
    """Blank a completed record: until it expires, a request with its key only learns that it was
    done.
    """
    claim = Claim(
        id=found.id,
        token=new_token,
        tenant=found.tenant,
        operation=found.operation,
        key="",
        fingerprint=bytes(len(found.fingerprint)),
        fingerprint_version=found.fingerprint_version,
        lease_s=found.lease_s,
        retention_s=found.retention_s,
        schema_version=found.schema_version,
    )
    left = found.answer and blank_answer(found.answer)
    return _swap(
        "fade",
        found,
        new_token=new_token,
        claim=claim,
        fresh=True,
        answer=left,
        retention_s=max(found.expires_in_s, 0.0),
    )


def resolve(found: Record, *, new_token: bytes, answer: Answer | None, retention_s: float) -> Swap:
    """End an unknown outcome: completed with this response, or released (None) for a retry."""
    name = "resolve as released" if answer is None else "resolve as completed"
    return _swap(name, found, new_token=new_token, answer=answer, retention_s=retention_s)


def took_effect(swap: Swap, found: Record | None) -> bool:
    """Return whether a refused swap was carried out before: only its reply was lost."""
    if found is None or found.state is not swap.to:
        return False
    return found.token == (swap.new_token or swap.token) and (
        found.fence > swap.fence if swap.raise_fence else found.fence == swap.fence
    )
