"""Which move a swap asks for, and records in words."""

from __future__ import annotations

from oncekey._core.record import Record, State
from oncekey._core.verbs import Swap, When
from simulator.ghost import Ghost


def tell(kept: Record | Ghost) -> str:
    return f"{kept.state}, fence {kept.fence}, attempt {kept.attempt}, lapses {kept.lapses}"


def name_of(verb: Swap) -> str:
    """Which transition a swap asks for, by what it would do."""
    if verb.claim is not None:
        if verb.to is State.COMPLETED:
            return "fade"
        if verb.fresh:
            return "start over" if verb.attempt == 1 else "run anew"
        return "run again" if verb.state is State.RELEASED else "take over"
    match verb.to:
        case State.RUNNING:
            if verb.when is When.OVERLONG:
                return "shorten"
            return "renew" if verb.lease_s else "lapse"
        case State.UNKNOWN:
            return "doubt" if verb.when is When.LAPSED else "give up"
        case State.COMPLETED:
            return "complete" if verb.state is State.RUNNING else "resolve as completed"
        case State.RELEASED:
            return "release" if verb.state is State.RUNNING else "resolve as released"
