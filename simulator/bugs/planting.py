"""How bugs are planted: a registry, and the real parts opened at the places where they hurt."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from oncekey._core import lifecycle
from oncekey._core.fingerprint import Comparison
from oncekey._core.lifecycle import Action, Situation
from oncekey._core.op import Op
from oncekey._core.verbs import AppendStep, Done, Insert, Refused, Swap, Sweep, Verb
from oncekey._engine.admission import Admission
from oncekey._engine.guard import Guard
from oncekey._engine.ownership import Ownership
from oncekey._engine.store_calls import StoreCalls
from oncekey.stores.memory import MemoryStore
from simulator.parts import Parts


@dataclass(frozen=True, slots=True)
class Bug:
    """A planted bug and the seeds within which it must be found."""

    name: str
    story: str
    seeds: int
    parts: Callable[[], Parts]
    every: int = 1
    """Only every so many-th schedule can show it: the others are not played."""


BUGS: dict[str, Bug] = {}


def planted(seeds: int, *, every: int = 1) -> Callable[[Callable[[], Parts]], Callable[[], Parts]]:
    """Register a bug under its function's name."""

    def register(parts: Callable[[], Parts]) -> Callable[[], Parts]:
        name = parts.__name__.replace("_", "-")
        story = " ".join((parts.__doc__ or "").split())
        BUGS[name] = Bug(name, story, seeds, parts, every)
        return parts

    return register


# --------------------------------------------------------------------------- how they are made


class Pliable(MemoryStore):
    """The real store, with its verbs open to be overridden."""

    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        yield from ()
        now = self._now()
        outcomes: list[Any] = []
        for verb in verbs:
            match verb:
                case Insert():
                    outcomes.append(self._insert(verb, now))
                case Swap():
                    outcomes.append(self._swap(verb, now))
                case Sweep():
                    outcomes.append(self._sweep(verb, now))
                case AppendStep():
                    outcomes.append(self._append_step(verb, now))
                case _:
                    outcomes += yield from super().perform([verb])
        return outcomes


def swapping(change: Callable[[Any, Swap], Swap]) -> Parts:
    """A store that carries out another swap than it was asked for."""

    class Store(Pliable):
        def _swap(self, verb: Swap, now: float) -> Done | Refused:
            row = self._rows.get(verb.id)
            return super()._swap(verb if row is None else change(row, verb), now)

    return Parts(store=Store)


def owning(kind: type[Ownership]) -> type[Guard]:
    """An engine that does with its records what this one does."""

    class Engine(Guard):
        make_ownership = kind

    return Engine


def asking(kind: type[StoreCalls]) -> type[Guard]:
    """An engine that asks the store as this one does."""

    class Engine(Guard):
        make_calls = kind

    return Engine


def admitting(kind: type[Admission]) -> type[Guard]:
    """An engine that lets run what this one does."""

    class Engine(Guard):
        make_admission = kind

    return Engine


def as_found(row: Any, verb: Swap) -> Swap:
    """The swap as if it had presented what stands there."""
    return dataclasses.replace(verb, state=row.state, fence=row.fence, token=row.token)


def deciding(situation: Situation, comparison: Comparison, action: Action) -> Parts:
    """A table of decisions with another entry."""

    @contextmanager
    def tables() -> Iterator[None]:
        table = lifecycle.DECISIONS
        lifecycle.DECISIONS = {**table, (situation, comparison): action}
        try:
            yield
        finally:
            lifecycle.DECISIONS = table

    return Parts(tables=tables)


def changing(name: str, **fields: Any) -> Parts:
    """A table of transitions with another entry."""

    @contextmanager
    def tables() -> Iterator[None]:
        transition = lifecycle.TRANSITIONS[name]
        lifecycle.TRANSITIONS[name] = dataclasses.replace(transition, **fields)
        try:
            yield
        finally:
            lifecycle.TRANSITIONS[name] = transition

    return Parts(tables=tables)
