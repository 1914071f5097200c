"""Planted bugs about limits: stuck, left behind, misjudged, swept, endless (P6 to P11)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from oncekey._core import lifecycle
from oncekey._core.fingerprint import Comparison
from oncekey._core.lifecycle import Action, Situation
from oncekey._core.op import Op
from oncekey._core.policy import Policy
from oncekey._core.record import Claim, Record, State
from oncekey._core.verbs import Find, Found, Insert, Sweep
from oncekey._engine.attempt import Attempt
from oncekey._engine.guard import Call, Execute, Guard, Refuse
from oncekey._engine.ownership import Ownership
from oncekey._engine.session import Session
from simulator.bugs.planting import Pliable, deciding, owning, planted, swapping
from simulator.heartbeat import Heart
from simulator.parts import Parts

# ------------------------------------------------------------------------ never wedged (P6)


@planted(seeds=100)
def no_lease() -> Parts:
    """A crash leaves its key in flight for ever."""

    class Store(Pliable):
        def _insert(self, verb: Insert, now: float) -> Any:
            outcome = super()._insert(verb, now)
            self._rows[verb.id].lease_until = now + 1e9
            return outcome

    patient = deciding(Situation.OVERLONG, Comparison.SAME, Action.IN_FLIGHT)
    return dataclasses.replace(patient, store=Store)


@planted(seeds=500)
def block_weakened_by_deploy() -> Parts:
    """Code that blocked died; the release that follows it reruns what nobody dared to repeat."""

    @contextmanager
    def tables() -> Iterator[None]:
        decide = lifecycle.decide

        def forgetful(record: Record, comparison: Comparison, policy: Policy) -> Action:
            return decide(dataclasses.replace(record, recovery="rerun"), comparison, policy)

        lifecycle.decide = forgetful
        try:
            yield
        finally:
            lifecycle.decide = decide

    return Parts(tables=tables)


@planted(seeds=3000)
def lapses_are_not_counted() -> Parts:
    """A request that kills its process is run again by every retry, and kills the next one."""
    return swapping(lambda row, verb: dataclasses.replace(verb, lapses=None))


@planted(seeds=3000)
def hang_is_renewed_for_ever() -> Parts:
    """A handler that never ends keeps its key in flight for as long as its process lives."""

    class Endless(Heart):
        def _hangs(self, attempt: Attempt, now: float) -> bool:
            return False

    return Parts(heart=Endless)


# ------------------------------------------------------------------ refusals spend nothing (P7)


@planted(seeds=500)
def refusal_binds_the_key() -> Parts:
    """A request was refused with 403; its corrected successor is told that it is another one."""
    return deciding(Situation.NO_EFFECT, Comparison.DIFFERENT, Action.MISMATCH)


@planted(seeds=5000)
def lost_claim_stays() -> Parts:
    """The store did not answer the claim, the client was told so, and then the key is in flight."""

    class Forgetful(Session):
        def _forget(self) -> None:
            pass

    return Parts(session=Forgetful)


@planted(seeds=5000)
def lost_claim_looked_for_once() -> Parts:
    """The search for a lost claim overtakes it on another connection, and finds nothing."""

    class Engine(Ownership):
        def forget(self, claim: Claim) -> Op[None]:
            found = yield Find(claim.id)
            if found is not None and found.token == claim.token and found.state is State.RUNNING:
                held = lifecycle.Held(claim.id, found.fence, claim.token)
                yield lifecycle.release(held, no_effect=found.attempt == 1, retention_s=60.0)

    return Parts(guard=owning(Engine))


# ------------------------------------------------------- one clock, lost replies (P8, P9)


@planted(seeds=500)
def deadline_never_shortened() -> Parts:
    """The store's clock was set back an hour: dead owners hold their keys an hour longer."""
    return deciding(Situation.OVERLONG, Comparison.SAME, Action.IN_FLIGHT)


@planted(seeds=500)
def own_claim_not_recognised() -> Parts:
    """The reply to an insert was lost; the repetition is told that somebody else has the key."""

    class Engine(Guard):
        def _insert(
            self, claim: Claim, policy: Policy, *, heard_of: bool = False
        ) -> Op[Execute | Record]:
            asked_at = self._clock.monotonic()
            outcome = yield from self.calls.ask(Insert(claim), claim, heard_of=heard_of)
            if isinstance(outcome, Found):
                return outcome.record
            return Execute(Attempt(claim, policy, outcome.fence, asked_at))

    return Parts(guard=Engine)


# -------------------------------------------------------------- swept, bounded (P10, P11)


@planted(seeds=500)
def sweeper_removes_in_flight() -> Parts:
    """Retention is counted from creation: a long handler's record is swept under its feet."""

    class Store(Pliable):
        def _sweep(self, verb: Sweep, now: float) -> int:
            for row in self._rows.values():
                row.expires = min(row.expires, row.created + row.claim.lease_s)
            return super()._sweep(verb, now)

    return Parts(store=Store)


@planted(seeds=1000)
def waits_for_ever() -> Parts:
    """A retry waits for as long as the first request runs, and holds its connection."""

    class Engine(Guard):
        def _wait(
            self, found: Record, until: float, call: Call, policy: Policy
        ) -> Op[Refuse | None]:
            return (yield from super()._wait(found, until + 1e9, call, policy))

    return Parts(guard=Engine)


@planted(seeds=5000)
def crowds_wait() -> Parts:
    """Any number of retries of one key wait in one process."""

    class Engine(Guard):
        def _wait(
            self, found: Record, until: float, call: Call, policy: Policy
        ) -> Op[Refuse | None]:
            endless = dataclasses.replace(policy, waiters_per_key_max=1_000_000)
            return (yield from super()._wait(found, until, call, endless))

    return Parts(guard=Engine)


@planted(seeds=500)
def unknown_is_swept() -> Parts:
    """An outcome that nobody knows disappears before an operator looks; the next retry runs it."""

    class Store(Pliable):
        def _sweep(self, verb: Sweep, now: float) -> int:
            for row in self._rows.values():
                row.expires = now if row.state is State.UNKNOWN else row.expires
            return super()._sweep(verb, now)

    return Parts(store=Store)
