"""Planted bugs about owners: two of them at once, or one that is none any more (P1, P2)."""

from __future__ import annotations

import dataclasses
from typing import Any

from oncekey._core.op import Op
from oncekey._core.record import State
from oncekey._core.verbs import Done, Find, Found, Insert, Refused, Swap, Sweep, Verb, When
from oncekey._engine.attempt import Attempt
from oncekey._engine.ownership import Ownership
from oncekey._engine.store_calls import StoreCalls
from oncekey._system.clock import Clock
from oncekey.stores.batching import Queue, Ticket
from oncekey.stores.memory import MemoryStore
from simulator.bugs.planting import Pliable, as_found, asking, changing, owning, planted, swapping
from simulator.parts import Parts
from simulator.store_link import StoreClock
from simulator.task import Task

# ------------------------------------------------------------------------------- one owner (P1)


@planted(seeds=300)
def check_then_insert() -> Parts:
    """Two requests look, both find nothing, both write: the handler runs twice."""

    class Store(Pliable):
        def _insert(self, verb: Insert, now: float) -> Any:
            self._rows.pop(verb.id, None)
            return super()._insert(verb, now)

    class Engine(StoreCalls):
        def ask(self, verb: Verb, about: Any, *, heard_of: bool = True) -> Op[Any]:
            if isinstance(verb, Insert):
                found = yield from super().ask(Find(verb.id), about, heard_of=heard_of)
                if found is not None:
                    return Found(found)
            return (yield from super().ask(verb, about, heard_of=heard_of))

    return Parts(store=Store, guard=asking(Engine))


@planted(seeds=300)
def lease_by_client_clock() -> Parts:
    """Whoever asks brings the time along: a host that is ahead takes healthy leases over."""

    class Store(MemoryStore):
        def __init__(self, clock: Clock | None = None) -> None:
            super().__init__(clock)
            self._now = self._believe

        def _believe(self) -> float:
            clock = self._clock
            ahead_s = clock.asker_ahead_s if isinstance(clock, StoreClock) else 0.0
            return clock.boot() + ahead_s

    return Parts(store=Store)


@planted(seeds=3000)
def take_over_beats_renewal() -> Parts:
    """Lapsed is judged when reading, not when writing: a renewal that landed in between loses."""
    return changing("take over", when=When.ANY)


@planted(seeds=3000)
def take_over_beats_completion() -> Parts:
    """The take-over does not look whether the record still runs: a kept answer is overwritten."""

    def change(row: Any, verb: Swap) -> Swap:
        if verb.claim is not None and verb.when is When.LAPSED:
            return dataclasses.replace(verb, state=row.state, when=When.ANY)
        return verb

    return swapping(change)


@planted(seeds=1000)
def two_winners_in_one_batch() -> Parts:
    """A batch is judged by what stood there before it, and holds two claims of one key."""

    class Careless(Queue[Task]):
        def take(self) -> list[Ticket[Task]]:
            batch = list(self.waiting)[: self._rows_max]
            for ticket in batch:
                self.discard(ticket)
            return batch

    return Parts(queue=Careless)


@planted(seeds=40_000)
def unprotected_after_an_answer() -> Parts:
    """The store goes down after it told that the key is taken; the request runs unprotected."""

    class Engine(StoreCalls):
        def ask(self, verb: Verb, about: Any, *, heard_of: bool = True) -> Op[Any]:
            return (yield from super().ask(verb, about, heard_of=False))

    return Parts(guard=asking(Engine))


# --------------------------------------------------------------------------------- fenced (P2)


@planted(seeds=300)
def complete_without_fence() -> Parts:
    """A zombie wakes up and replaces the answer that its successor gave."""
    return swapping(lambda row, verb: as_found(row, verb) if verb.to is State.COMPLETED else verb)


@planted(seeds=4000)
def heartbeat_without_fence() -> Parts:
    """A zombie's heartbeat keeps its successor's record alive after the successor died."""

    def change(row: Any, verb: Swap) -> Swap:
        renews = verb.lease_s is not None and verb.claim is None and verb.when is When.ANY
        return as_found(row, verb) if renews and row.state is State.RUNNING else verb

    return swapping(change)


@planted(seeds=2000)
def blind_delete_on_exception() -> Parts:
    """A zombie's handler raises and gives away the record that its successor holds."""

    def change(row: Any, verb: Swap) -> Swap:
        return as_found(row, verb) if verb.to is State.RELEASED else verb

    return swapping(change)


@planted(seeds=200)
def fence_reset_after_delete() -> Parts:
    """Releasing deletes the record and its counter: a zombie's fence becomes valid again."""

    class Store(Pliable):
        def _swap(self, verb: Swap, now: float) -> Done | Refused:
            outcome = super()._swap(verb, now)
            if verb.to is State.RELEASED and isinstance(outcome, Done):
                del self._rows[verb.id]
            return outcome

    return Parts(store=Store)


@planted(seeds=500)
def fence_restarts_after_sweep() -> Parts:
    """What is swept takes its fence along: the next owner begins at 1 again."""

    class Store(Pliable):
        def _sweep(self, verb: Sweep, now: float) -> int:
            removed = super()._sweep(verb, now)
            self._fence_floor = 0
            return removed

    return Parts(store=Store)


@planted(seeds=500)
def fence_stays_on_take_over() -> Parts:
    """A change of owner that downstream systems cannot see."""
    return changing("take over", raise_fence=False)


@planted(seeds=1000)
def zombie_completes_unknown() -> Parts:
    """A record was declared unknown and told so; later it has an answer after all."""

    def change(row: Any, verb: Swap) -> Swap:
        unknown = verb.to is State.COMPLETED and row.state is State.UNKNOWN
        return as_found(row, verb) if unknown else verb

    return swapping(change)


@planted(seeds=3000)
def late_renew_revives() -> Parts:
    """A renewal that comes late turns a completed record back into a running one."""

    def change(row: Any, verb: Swap) -> Swap:
        renews = verb.lease_s is not None and verb.claim is None and verb.when is When.ANY
        return dataclasses.replace(verb, state=row.state) if renews else verb

    return swapping(change)


@planted(seeds=1000)
def loss_is_not_signalled() -> Parts:
    """A handler that asks before each effect is never told that somebody else goes on."""

    class Silent(Ownership):
        def lose(self, attempt: Attempt, reason: str) -> None:
            pass

    return Parts(guard=owning(Silent))
