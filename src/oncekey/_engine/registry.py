"""The registry: who can run an operation again when no client comes back for it.

One per store. Whatever runs operations puts a runner in: the middleware, and every function that is
guarded. The recoverer asks it, and so reaches handlers without knowing what a request or a function
is.
"""

from __future__ import annotations

from typing import Protocol
from weakref import WeakValueDictionary

from oncekey._core.policy import Policy
from oncekey._core.record import Record
from oncekey._core.values import value
from oncekey._engine.guard import Guard
from oncekey.stores.base import Store, location_of
from oncekey.stores.urls import as_store


@value
class Orphan:
    """A record whose owner died, and what was asked of it. Nobody owns it by being shown it."""

    record: Record
    request: bytes | None
    """As the runner's own edge encoded it; None where it was not kept."""
    looked_at: float
    """When the record was read, by this process's monotonic clock."""


class Runner(Protocol):
    """Runs operations again, as a retry of their client would."""

    guard: Guard

    def policy(self, record: Record) -> Policy | None:
        """The rules for this record's operation; None where it is not this runner's. A guess is
        enough: it says only how long an unknown outcome waits.
        """

    def owns(self, orphan: Orphan) -> bool:
        """Whether this runner would give the orphan's request this very record."""

    async def recover(self, orphan: Orphan) -> bool:
        """Take the record over (`Guard.take_up`), run it and conclude. False if it could not be
        taken over.

        What became of it stands in the record. What it raises is logged, and nothing more.
        """


class Registry:
    """The runners of one store."""

    def __init__(self, store: str | Store) -> None:
        self.store = store
        self._runners: list[Runner] = []

    def __len__(self) -> int:
        return len(self._runners)

    def add(self, runner: Runner) -> None:
        self._runners.append(runner)

    def owner(self, orphan: Orphan) -> Runner | None:
        """Who can run it. Of several the newest: an application that was built again is one."""
        return next((runner for runner in reversed(self._runners) if runner.owns(orphan)), None)

    def judge(self, record: Record) -> tuple[Guard, Policy | None]:
        """Who may declare this record's outcome unknown, and by which rules."""
        for runner in self._runners:
            if (policy := runner.policy(record)) is not None:
                return runner.guard, policy
        return self._runners[0].guard, None


_shared: WeakValueDictionary[object, Registry] = WeakValueDictionary()


def registry_of(store: str | Store) -> Registry:
    """The registry of a store: the same for everybody in this process who means the same records,
    by whatever URL or object.

    `memory://` names another store each time, and so has another registry each time.
    """
    if isinstance(store, str) and store.lower().startswith("memory:"):
        return Registry(store)
    # An object is kept alive by its registry: its id is its own for as long as that is found here.
    name = location_of(as_store(store))
    found = _shared.get(name)
    if found is None:
        found = _shared[name] = Registry(store)
    return found


def registries() -> list[Registry]:
    """All in this process that somebody registered with."""
    return [registry for registry in list(_shared.values()) if len(registry)]
