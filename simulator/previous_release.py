"""The engine of the release before, for rolling deployments: it gave back whatever had failed."""

from __future__ import annotations

from oncekey._core.endings import End
from oncekey._core.op import Op
from oncekey._core.record import Answer
from oncekey._engine.attempt import Attempt
from oncekey._engine.decisions import Call, Finished, Given
from oncekey._engine.guard import Guard
from oncekey._engine.lease import Phase
from oncekey._engine.ownership import Ownership


def earlier(guard: type[Guard]) -> type[Guard]:
    """This engine as it was: a failed attempt is given back, whatever the recovery. `unknown()` it
    does not know.
    """

    owner: type[Ownership] = guard.make_ownership

    class Earlier(owner):  # type: ignore[misc, valid-type]
        def conclude(
            self, attempt: Attempt, end: End, answer: Answer | None, call: Call
        ) -> Op[Finished]:
            if end is End.KEPT or attempt.asks or attempt.doubted:
                op: Op[Finished] = super().conclude(attempt, end, answer, call)
                return (yield from op)
            no_effect = end is End.NO_EFFECT
            if attempt.recovering:
                if no_effect:
                    given_up: Op[Finished] = self.give_up(attempt, call)
                    return (yield from given_up)
                attempt.lease.move(Phase.ENDED)
                return Given()
            yield from self.abandon(attempt, no_effect=no_effect)
            return Given()

    class EarlierGuard(guard):  # type: ignore[misc, valid-type]
        make_ownership = Earlier

    return EarlierGuard
