"""Faults: what can go wrong at a card network, switched on by name.

An armed fault meets the next requests that move money, one request each, `times` times. Armed
faults are stored in the network's file, so a crash does not disarm those that come after it.
"""

import sqlite3
from dataclasses import dataclass
from typing import Literal

TIMES_MAX = 1_000_000
SLOW_S = 3.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to fail."""

    name: str
    explains: str
    moment: Literal["before", "middle", "after"]
    """Before the write, between write and commit, or after the commit."""
    does: Literal["wait", "answer 500", "reset", "hang up", "exit"]


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("slow", f"The answer takes {SLOW_S:g} seconds longer.", "after", "wait"),
        Fault(
            "lost-answer-after",
            "The card is charged, but the line is cut before the answer.",
            "after",
            "hang up",
        ),
        Fault("500-before", "Answers 500; nothing was charged.", "before", "answer 500"),
        Fault("500-after", "Answers 500, although the card was charged.", "after", "answer 500"),
        Fault("reset", "The connection is reset before anything is charged.", "before", "reset"),
        Fault(
            "crash-before",
            "The network dies in the middle: written, but not yet committed.",
            "middle",
            "exit",
        ),
        Fault(
            "crash-after",
            "The network dies after charging the card, before it can answer.",
            "after",
            "exit",
        ),
    )
}


class UnknownFault(ValueError):
    """No such fault, or an invalid number of times; the text says what is valid."""


class ArmedFaults:
    """The armed faults of a network."""

    def __init__(self, file: sqlite3.Connection) -> None:
        file.execute(
            "CREATE TABLE IF NOT EXISTS faults"
            " (name TEXT PRIMARY KEY, times INTEGER NOT NULL) STRICT"
        )
        self._file = file
        # Read once: with nothing armed, requests pay nothing for it.
        self._times: dict[str, int] = dict(
            file.execute("SELECT name, times FROM faults ORDER BY rowid")
        )

    def times(self, name: str) -> int:
        """Return how many more requests this fault will meet."""
        return self._times.get(name, 0)

    def arm(self, name: str, times: int = 1) -> None:
        """Make the next `times` requests fail in this way; 0 disarms."""
        if name not in FAULTS:
            raise UnknownFault(f"There is no fault {name!r}. There are: {', '.join(FAULTS)}.")
        if not 0 <= times <= TIMES_MAX:
            raise UnknownFault(f"times={times}: give 0 to {TIMES_MAX}.")
        if times == 0:
            self._times.pop(name, None)
            self._file.execute("DELETE FROM faults WHERE name = ?", (name,))
            return
        self._times[name] = times
        self._file.execute(
            "INSERT INTO faults VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET times = excluded.times",
            (name, times),
        )

    def disarm(self) -> None:
        """Disarm all faults."""
        self._times.clear()
        self._file.execute("DELETE FROM faults")

    def take(self) -> Fault | None:
        """Take the fault for this request, if any: the one armed first."""
        name = next(iter(self._times), None)
        if name is None:
            return None
        self.arm(name, self._times[name] - 1)
        return FAULTS[name]
