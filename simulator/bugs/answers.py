"""Planted bugs about answers: changed, said too early, given to the wrong one (P3, P4, P5)."""

from __future__ import annotations

import dataclasses
from typing import Any

from oncekey._core import lifecycle
from oncekey._core.endings import End
from oncekey._core.fingerprint import Comparison
from oncekey._core.key import record_id
from oncekey._core.lifecycle import Action, Situation
from oncekey._core.op import Op
from oncekey._core.policy import Policy
from oncekey._core.record import Answer, Claim, Record, State
from oncekey._core.verbs import AppendStep, Done, Found, Insert, Refused, Swap, When
from oncekey._engine.attempt import Attempt
from oncekey._engine.guard import Call, Finished, Guard, Stored
from oncekey._engine.lease import Phase
from oncekey._engine.ownership import Ownership
from oncekey._engine.session import Session
from oncekey._engine.store_calls import StoreCalls
from oncekey.errors import StoreUnavailable
from simulator.bugs.planting import Pliable, as_found, asking, changing, deciding, owning, planted
from simulator.parts import Parts

# ------------------------------------------------------------- same answer, durable (P3, P4)


@planted(seeds=500)
def lost_ack_means_failure() -> Parts:
    """No reply to a completion is taken for a failure: the key is given back, a retry runs."""

    class Store(Pliable):
        def _swap(self, verb: Swap, now: float) -> Done | Refused:
            row = self._rows.get(verb.id)
            if row is not None and verb.to is State.RELEASED and row.token == verb.token:
                verb = as_found(row, verb)
            return super()._swap(verb, now)

    class Engine(StoreCalls):
        def persist(self, verb: Swap | AppendStep, attempt: Attempt) -> Op[Done | Refused]:
            if not isinstance(verb, Swap) or verb.to is not State.COMPLETED:
                return (yield from super().persist(verb, attempt))
            try:
                outcome: Done | Refused = yield verb
            except StoreUnavailable:
                yield lifecycle.release(attempt.held, no_effect=False, retention_s=60.0)
                raise
            return outcome

    return Parts(store=Store, guard=asking(Engine))


@planted(seeds=20)
def answer_before_commit() -> Parts:
    """The client has its answer before it is recorded; the process dies; the retry runs again."""

    class Hasty(Session):
        def answered(self, end: End, answer: Answer | None) -> Op[Finished]:
            if end is End.KEPT and self._ports is not None:
                self.attempt.lease.move(Phase.ENDED)
                yield from ()
                return Stored(self.policy.retention_s)
            return (yield from super().answered(end, answer))

    return Parts(session=Hasty)


@planted(seeds=500)
def own_answer_though_refused() -> Parts:
    """A zombie's completion was refused; its client is told the zombie's answer all the same."""

    class Engine(Ownership):
        def _answer_as_superseded(self, attempt: Attempt, found: Record | None, call: Call) -> Any:
            yield from ()
            return Stored(attempt.retention_s)

    return Parts(guard=owning(Engine))


@planted(seeds=50)
def headers_are_tidied() -> Parts:
    """Kept headers come back sorted: a signature over the answer breaks."""

    class Store(Pliable):
        def _insert(self, verb: Insert, now: float) -> Any:
            outcome = super()._insert(verb, now)
            if isinstance(outcome, Found) and outcome.record.answer is not None:
                answer = outcome.record.answer
                tidy = dataclasses.replace(answer, headers=tuple(sorted(answer.headers)))
                return Found(dataclasses.replace(outcome.record, answer=tidy))
            return outcome

    return Parts(store=Store)


@planted(seeds=500)
def retention_from_first_claim() -> Parts:
    """Retention counts from the first attempt: an answer is forgotten while clients still retry."""

    class Store(Pliable):
        def _apply(self, row: Any, verb: Swap, now: float) -> None:
            super()._apply(row, verb, now)
            if verb.to is State.COMPLETED:
                row.expires = row.created + verb.retention_s

    return Parts(store=Store)


@planted(seeds=80_000)
def start_over_by_old_read() -> Parts:
    """Expired is judged when reading, not when writing: what was written in between is lost."""
    return changing("start over", when=When.ANY)


# ---------------------------------------------------------------------- no wrong answer (P5)


@planted(seeds=100)
def in_flight_hides_mismatch() -> Parts:
    """Another request is told to retry later, for as long as the first one runs."""
    return deciding(Situation.IN_FLIGHT, Comparison.DIFFERENT, Action.IN_FLIGHT)


@planted(seeds=100)
def tenant_left_out() -> Parts:
    """Two accounts that choose the same key get each other's answers."""

    class Engine(Guard):
        def claim(self, call: Call, policy: Policy) -> Claim:
            claim = super().claim(call, policy)
            return dataclasses.replace(claim, id=record_id("", call.operation, call.key))

    return Parts(guard=Engine)


@planted(seeds=100)
def path_left_out() -> Parts:
    """The same body sent to another resource gets the first one's answer."""
    return Parts(with_path=False)


@planted(seeds=2000)
def failure_frees_the_key() -> Parts:
    """After a failure that may have had an effect, another request takes the key."""
    return deciding(Situation.FAILED, Comparison.DIFFERENT, Action.RUN_AGAIN)


@planted(seeds=2000)
def no_effect_covers_failure() -> Parts:
    """A refusal in the second attempt makes the first one's possible effect forgotten."""

    class Engine(Ownership):
        def abandon(self, attempt: Attempt, *, no_effect: bool) -> Op[None]:
            attempt.attempt = 1
            return super().abandon(attempt, no_effect=no_effect)

    return Parts(guard=owning(Engine))
