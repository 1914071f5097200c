"""The parts that a schedule runs on: the real ones, or variants with a planted bug."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from oncekey._engine.guard import Guard
from oncekey._engine.session import Session
from oncekey.atomic._transaction import AtomicOperation
from oncekey.stores.batching import Queue
from oncekey.stores.memory import MemoryStore
from simulator.heartbeat import Heart
from simulator.statements import Statements
from simulator.task import Task


def _nothing_changed() -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Parts:
    """What the workers and the store are made of."""

    store: type[MemoryStore] = MemoryStore
    guard: type[Guard] = Guard
    queue: type[Queue[Task]] = Queue
    heart: type[Heart] = Heart
    session: type[Session] = Session
    work: type[AtomicOperation] = AtomicOperation
    statements: type[Statements] = Statements
    with_path: bool = True
    """Whether fingerprints cover the concrete path."""
    tables: Callable[[], AbstractContextManager[None]] = _nothing_changed
    """Changes the literal tables of the lifecycle while the schedules run."""


REAL = Parts()
