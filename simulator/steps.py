"""Handlers that take steps, and what must hold of each step.

A step's effect is in another service, which dedupes by the step's child key: whatever dies or wakes
up late, it happens once per record. A step whose result was kept before an attempt began is never
taken again by it, and gives back what was kept. One that is declared at most once is never asked
for twice unless an operator said so.
"""

from __future__ import annotations

from typing import Any

from oncekey._core.op import Op, Pause
from oncekey._core.record import Step
from oncekey._core.verbs import AppendStep, Done, Refused
from oncekey._engine.attempt import Attempt
from oncekey._engine.ownership import Ownership
from oncekey._engine.steps import Kept, Take
from simulator.ghost import ABSENT, RUNNING, Ghost
from simulator.plans import Broke
from simulator.task import Task
from simulator.violation import Violation

NAMES = ("reserve", "charge", "mail")


class Downstream:
    """The other service: it has an effect once per key."""

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._results = 0

    def ask(self, task: Task, name: str, key: str) -> None:
        """Have the effect, unless this key had it."""
        if key in self._keys:
            return
        self._keys.add(key)
        effects = task.book.step_effects
        effects[name] = effects.get(name, 0) + 1
        if effects[name] > 1:
            raise Violation("P1", f"{task}: the step {name} has effect {effects[name]}")

    def result(self) -> int:
        """Never the same twice."""
        self._results += 1
        return self._results


def key_of(attempt: Attempt, name: str) -> str:
    """What the other service is sent as a key."""
    return attempt.child_key(name)


def take_steps(
    task: Task, attempt: Attempt, ownership: Ownership, downstream: Downstream, at_most_once: str
) -> Op[None]:
    """What a handler does that takes three steps."""
    for name in NAMES:
        once = name == at_most_once
        begun = yield from attempt.steps.begin(ownership, name, (name,), at_most_once=once)
        if isinstance(begun, Kept):
            _gets_back(task, name, begun.result)
            continue
        _takes(task, name, once=once)
        yield Pause(task.plan.seconds / len(NAMES))
        breaks = once and task.plan.step
        if not breaks or task.plan.effect_first:
            downstream.ask(task, name, key_of(attempt, name))
        if breaks:
            _break(attempt, begun, caught=task.plan.step == "caught")
            return
        yield from attempt.steps.end(ownership, begun, downstream.result())
        task.steps.broke = False


def _break(attempt: Attempt, begun: Take, *, caught: bool) -> None:
    """The step raises; a handler that catches it answers all the same."""
    try:
        with attempt.steps.run(begun, undone=False):
            raise Broke
    except Broke:
        if not caught:
            raise


def _gets_back(task: Task, name: str, result: Any) -> None:
    kept = task.steps.told.get(name)
    if kept != b"%d" % result:
        raise Violation("P3", f"{task}: the step {name} gives {result}; kept was {kept!r}")


def _takes(task: Task, name: str, *, once: bool) -> None:
    known = task.steps.known.get(name, b"")
    if known:
        raise Violation("P6", f"{task} takes the step {name} again, whose result was kept")
    task.book.once_begun += once
    task.steps.broke = task.steps.broke or once
    if once and (known is None or task.book.once_begun > 1 + task.book.cleared):
        raise Violation("P1", f"{task} repeats the step {name}, which must not be repeated")


# ---------------------------------------------------------------------------- at the store


def kept(ghost: Ghost, task: Task, verb: AppendStep, outcome: Done | Refused) -> None:
    """The store was asked to keep a step."""
    owner = ghost.state is RUNNING and (ghost.fence, ghost.token) == (verb.fence, verb.token)
    if owner is isinstance(outcome, Refused):
        promise, was = ("P9", "refused") if owner else ("P2", "kept")
        raise Violation(promise, f"{task}: the step {verb.step.name} was {was} by {ghost}")
    if owner and (verb.step.result is not None or not ghost.book.steps.get(verb.step.name)):
        ghost.book.steps[verb.step.name] = verb.step.result


def told(ghost: Ghost, task: Task, steps: list[Step]) -> None:
    """The store said which steps there are."""
    found = [(step.name, step.result) for step in steps]
    task.steps.told = dict(found)
    kept = [] if ghost.state is ABSENT else list(ghost.book.steps.items())
    if found != kept:
        raise Violation("P3", f"{task} is told other steps than {ghost} has: {found}")
