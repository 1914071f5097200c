"""A batch of verbs on an SQL server: which go together, and one handler for each kind among them.
Pure: a handler is a generator that asks questions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from oncekey._core.op import Op
from oncekey._core.record import State
from oncekey._core.verbs import AppendStep, Find, Insert, Peek, Requested, Steps, Swap, Verb, When
from oncekey.errors import StoreUnavailable, StoreUnfit

CHORE_TIMEOUT_S = 60.0
"""The timeout of housekeeping, whatever `timeout_s` is."""

T = TypeVar("T")
L = TypeVar("L")
Handler = Callable[[Any, L], Op[list[Any]]]
"""Carries out verbs of its kind, with the timeouts of its store."""


class RowHeld(StoreUnavailable):
    """Another transaction locked a row for too long; nothing was written."""


class Denied(StoreUnfit):
    """The user of the URL lacks a privilege."""


class FunctionGone(StoreUnavailable):
    """A function that only one layout has is missing: a move to another dropped it."""


_SPECIAL = attrgetter(
    "raise_fence", "new_token", "claim", "fresh", "attempt", "lapses", "no_effect"
)
_NOT_SPECIAL = (False, None, None, False, None, None, False)


def is_plain(verb: Swap) -> bool:
    """Whether it continues what its owner runs: neither fence nor owner changes."""
    return verb.state is State.RUNNING and _SPECIAL(verb) == _NOT_SPECIAL


def is_renewal(verb: Swap) -> bool:
    return verb.to is State.RUNNING and verb.when in (When.ANY, When.OVERLONG) and is_plain(verb)


_GROUPS: dict[type, str] = {
    Insert: "insert",
    Swap: "swap",
    AppendStep: "step",
    Find: "read",
    Peek: "read",
    Steps: "read",
    Requested: "read",
}


def group(verb: Verb) -> str:
    """Return a verb's group. Renewals are a separate one, so that nothing slow delays them."""
    if type(verb) is Swap and is_renewal(verb):
        return "renew"
    return _GROUPS.get(type(verb), "chores")


def perform(
    verbs: Sequence[Verb], handler_of: Callable[[Verb], Handler[L]], limits: L
) -> Op[list[Any]]:
    """Carry out verbs of one group, each kind together."""
    handlers = [handler_of(verb) for verb in verbs]
    if handlers.count(handlers[0]) == len(handlers):
        return _mark_sent(handlers[0](verbs, limits))
    return _mark_sent(_kind_by_kind(handlers, verbs, limits))


def _kind_by_kind(
    handlers: Sequence[Handler[L]], verbs: Sequence[Verb], limits: L
) -> Op[list[Any]]:
    outcomes: list[Any] = [None] * len(verbs)
    for kind in dict.fromkeys(handlers):
        places = [place for place, handler in enumerate(handlers) if handler is kind]
        part = yield from kind([verbs[place] for place in places], limits)
        for place, outcome in zip(places, part, strict=True):
            outcomes[place] = outcome
    return outcomes


def _mark_sent(op: Op[T]) -> Op[T]:
    """Run `op`; after its first answer no failure counts as "not sent"."""
    answered = False
    try:
        question = next(op)
        while True:
            try:
                answer = yield question
            except Exception as error:
                if isinstance(error, StoreUnavailable):
                    error.sent |= answered
                question = op.throw(error)
            else:
                answered = True
                question = op.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value
