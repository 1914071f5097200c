"""Coverage marks: proof that the rare things happened.

Counted are the rows of `lifecycle.DECISIONS` and of `endings.FATES` that were looked up, the
transitions that the store carried out, the faults, what transactions went through, what `ask` found
out, and what clients were told. A simulation that never reaches a row proves nothing about it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from oncekey._core import endings, lifecycle
from oncekey._core.endings import End
from oncekey._core.fingerprint import Comparison
from oncekey._core.lifecycle import Situation

Row = tuple[Situation, Comparison]
Ended = tuple[End, str]
Key = TypeVar("Key")
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
NOT_REACHED = (End.ROLLED_BACK, "resume")
"""An atomic handler takes no steps here, so there is nothing to resume."""
LEARNED = ("an answer", "not done", "unknown", "nothing")
"""What `ask` finds out."""


class _Counting(dict[Key, Any]):
    """A literal table, counting which rows are looked up."""

    def __init__(self, table: dict[Key, Any], counts: Counter[Key]) -> None:
        super().__init__(table)
        self._counts = counts

    def __getitem__(self, row: Key) -> Any:
        self._counts[row] += 1
        return super().__getitem__(row)


class Marks:
    """How often each thing happened. Adds up over schedules and over processes."""

    def __init__(self) -> None:
        self.decisions: Counter[Row] = Counter()
        self.ends: Counter[Ended] = Counter()
        self.transitions: Counter[str] = Counter()
        self.learned: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        self.atomic: Counter[str] = Counter()
        self.batches = 0
        """Round trips that carried more than one verb."""

    def add(self, other: Marks) -> None:
        self.decisions += other.decisions
        self.ends += other.ends
        self.transitions += other.transitions
        self.learned += other.learned
        self.faults += other.faults
        self.told += other.told
        self.atomic += other.atomic
        self.batches += other.batches

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count what is decided meanwhile, at the beginning and at the end of attempts."""
        decisions, fates = lifecycle.DECISIONS, endings.FATES
        lifecycle.DECISIONS = _Counting(decisions, self.decisions)
        endings.FATES = _Counting(fates, self.ends)
        try:
            yield
        finally:
            lifecycle.DECISIONS, endings.FATES = decisions, fates

    def missing(self) -> list[str]:
        """What was never reached."""
        rows = [
            f"{situation.value} / {comparison.value}"
            for situation, comparison in lifecycle.DECISIONS
            if not self.decisions[situation, comparison]
        ]
        rows += [
            f"{end.value} / {recovery}"
            for end, recovery in endings.FATES
            if not self.ends[end, recovery] and (end, recovery) != NOT_REACHED
        ]
        rows += [f"ask finds out: {what}" for what in LEARNED if not self.learned[what]]
        moves = [name for name in lifecycle.TRANSITIONS if not self.transitions[name]]
        return rows + moves + [name for name in ATOMIC if not self.atomic[name]]
