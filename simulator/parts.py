"""The parts that a schedule runs on: the real ones, or variants with a planted bug."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from oncekey.atomic.work import Work
from oncekey.guard import Guard
from oncekey.stores.gather import Queue
from oncekey.stores.memory import MemoryStore
from oncekey.testing.simulate.edge import Edge
from oncekey.testing.simulate.heart import Heart
from oncekey.testing.simulate.statements import Statements
from oncekey.testing.simulate.task import Task


def _nothing_changed() -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Parts:
    """What the workers and the store are made of."""

    store: type[MemoryStore] = MemoryStore
    guard: type[Guard] = Guard
    queue: type[Queue[Task]] = Queue
    heart: type[Heart] = Heart
    edge: type[Edge] = Edge
    work: type[Work] = Work
    statements: type[Statements] = Statements
    with_path: bool = True
    """Whether fingerprints cover the concrete path."""
    tables: Callable[[], AbstractContextManager[None]] = _nothing_changed
    """Changes the literal tables of the lifecycle while the schedules run."""


REAL = Parts()
