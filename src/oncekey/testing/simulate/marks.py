"""Coverage marks: proof that the rare things happened.

Counted are the rows of `lifecycle.DECISIONS` that were looked up, the transitions that the store
carried out, the faults, what transactions went through, and what clients were told. A simulation
that never reaches a row proves nothing about it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from oncekey.core import lifecycle
from oncekey.core.fingerprint import Comparison
from oncekey.core.lifecycle import Action, Situation

Row = tuple[Situation, Comparison]
ATOMIC = (
    "committed",
    "committed unheard",
    "its commit is lost",
    "rolled back",
    "another has the id",
    "another's record at the end",
    "a leased one waits for the row",
)
"""What transactions go through."""


class _Counting(dict[Row, Action]):
    """The table of decisions, counting which rows are looked up."""

    def __init__(self, table: dict[Row, Action], marks: Marks) -> None:
        super().__init__(table)
        self._counts = marks.decisions

    def __getitem__(self, row: Row) -> Action:
        self._counts[row] += 1
        return super().__getitem__(row)


class Marks:
    """How often each thing happened. Adds up over schedules and over processes."""

    def __init__(self) -> None:
        self.decisions: Counter[Row] = Counter()
        self.transitions: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        self.atomic: Counter[str] = Counter()
        self.batches = 0
        """Round trips that carried more than one verb."""

    def add(self, other: Marks) -> None:
        self.decisions += other.decisions
        self.transitions += other.transitions
        self.faults += other.faults
        self.told += other.told
        self.atomic += other.atomic
        self.batches += other.batches

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count the decisions that are taken meanwhile."""
        table = lifecycle.DECISIONS
        lifecycle.DECISIONS = _Counting(table, self)
        try:
            yield
        finally:
            lifecycle.DECISIONS = table

    def missing(self) -> list[str]:
        """The rows and transitions that were never reached."""
        rows = [
            f"{situation.value} / {comparison.value}"
            for situation, comparison in lifecycle.DECISIONS
            if not self.decisions[situation, comparison]
        ]
        moves = [name for name in lifecycle.TRANSITIONS if not self.transitions[name]]
        return rows + moves + [name for name in ATOMIC if not self.atomic[name]]
