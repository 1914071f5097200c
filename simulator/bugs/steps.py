"""Planted bugs about steps and orphans: repeated, kept for the wrong owner, left (P1, P2, P6)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from oncekey._core.endings import End
from oncekey._core.op import Op
from oncekey._core.record import Answer, Step
from oncekey._core.verbs import AppendStep, Done, Refused, Swap, When
from oncekey._engine.attempt import Attempt
from oncekey._engine.guard import Call, Finished
from oncekey._engine.ownership import Ownership
from simulator import steps as stepping
from simulator.bugs.planting import Pliable, as_found, owning, planted
from simulator.parts import Parts


@planted(seeds=200)
def steps_begin_anew() -> Parts:
    """A later attempt does not look what was kept: it takes every step again."""

    class Engine(Ownership):
        def steps(self, attempt: Attempt) -> Op[list[Step]]:
            yield from super().steps(attempt)
            return []

    return Parts(guard=owning(Engine))


@planted(seeds=500)
def a_key_for_every_attempt() -> Parts:
    """Downstream sees another key from each attempt, and has its effect again."""

    @contextmanager
    def tables() -> Iterator[None]:
        honest, calls = stepping.key_of, itertools.count()
        stepping.key_of = lambda attempt, name: f"{honest(attempt, name)}/{next(calls)}"
        try:
            yield
        finally:
            stepping.key_of = honest

    return Parts(tables=tables)


@planted(seeds=1500)
def steps_are_kept_for_zombies() -> Parts:
    """Whoever knows the id may keep a step, whatever its fence."""

    class Store(Pliable):
        def _append_step(self, verb: AppendStep, now: float) -> Done | Refused:
            row = self._rows.get(verb.id)
            if row is None:
                return Refused(None)
            row.steps[verb.step.name] = verb.step
            return Done(row.fence)

    return Parts(store=Store)


@planted(seeds=2000)
def at_most_once_leaves_no_mark() -> Parts:
    """The start of a step that must not be repeated is not written down."""

    class Engine(Ownership):
        def keep_step(self, attempt: Attempt, step: Step) -> Any:
            if step.result is not None:
                return (yield from super().keep_step(attempt, step))
            return Done(attempt.fence)

    return Parts(guard=owning(Engine))


# ----------------------------------------------------------------------------- the recoverer


@planted(seeds=200)
def recoverer_takes_without_asking() -> Parts:
    """What looks abandoned is taken over whatever has happened since it was read."""

    class Store(Pliable):
        def _swap(self, verb: Swap, now: float) -> Done | Refused:
            row = self._rows.get(verb.id)
            if row is not None and verb.when is When.LAPSED and verb.claim is not None:
                verb = dataclasses.replace(as_found(row, verb), when=When.ANY)
            return super()._swap(verb, now)

    return Parts(store=Store)


@planted(seeds=4000)
def orphan_gives_up_at_once() -> Parts:
    """An orphan whose handler failed is given up at the first try."""

    class Engine(Ownership):
        def conclude(
            self, attempt: Attempt, end: End, answer: Answer | None, call: Call
        ) -> Op[Finished]:
            if attempt.recovering and end is End.BROKEN:
                end = End.UNKNOWN
            return super().conclude(attempt, end, answer, call)

    return Parts(guard=owning(Engine))
