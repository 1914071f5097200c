"""What hooks and the log hear of requests and attempts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from oncekey import events
from oncekey._core.key import short_hash
from oncekey._core.printable import printable
from oncekey._core.problems import Problem
from oncekey._core.record import Claim, Record
from oncekey._engine.attempt import Attempt
from oncekey._system.warn_once import warn

WARNED_MAX = 100
"""So many operations at most are warned of."""


class Reports:
    """Emits events, and warns once of what is used wrongly."""

    def __init__(self, hooks: events.Hooks) -> None:
        self.hooks = hooks
        self.names: Collection[str] | None = None
        """The operations that have a name; None: all. Any client can choose what others are called.
        """
        self._warned: set[str] = set()

    def emit(
        self, event: type[events.Event], about: Claim | Record | Attempt, **details: Any
    ) -> None:
        if self.hooks.are_wanted or event is events.OutcomeUnknown:
            told = about.claim if isinstance(about, Attempt) else about
            operation, key_hash = told.operation, short_hash(told.key)
            named = self._is_named(operation)
            self.hooks(event(operation=operation, key_hash=key_hash, named=named, **details))

    def decline(self, operation: str, problem: Problem) -> None:
        """Tell of a request that was refused before its key was looked up."""
        if self.hooks:
            named = self._is_named(operation)
            self.hooks(events.Declined(operation, "", str(problem.kind), named=named))

    def _is_named(self, operation: str) -> bool:
        return self.names is None or operation in self.names

    def not_atomic(self, attempt: Attempt, status: int) -> None:
        """Warn, once for each operation, that an atomic handler did not use its transaction."""
        if status >= 400 or attempt.operation in self._warned:
            return  # one that refuses has nothing to write
        if len(self._warned) >= WARNED_MAX:
            return
        self._warned.add(attempt.operation)
        operation = printable(attempt.operation)
        warn(
            "atomic",
            f"{operation} is Policy(atomic=True), but its handler answered {status} without using "
            "its transaction: what it wrote did not commit with its answer. Write to "
            "oncekey.current().connection, or to a session that is the same (docs/atomic.md); or "
            "write Policy(atomic=False)",
            subject=operation,
        )
        self.emit(events.NotAtomic, attempt, status=status)
