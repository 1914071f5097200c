"""Planted bugs about expiry: tombstones that are lost or ignored, keys older than memory."""

from __future__ import annotations

from oncekey.core.fingerprint import Comparison
from oncekey.core.lifecycle import Action, Situation
from oncekey.core.op import Op
from oncekey.core.policy import Policy
from oncekey.core.problem import Problem
from oncekey.core.record import State
from oncekey.core.tombstone import tombstone_s
from oncekey.core.verbs import Sweep
from oncekey.decision import Call, Execute, Refuse, Replay
from oncekey.guard import Guard
from oncekey.testing.simulate.bugs.planting import Pliable, deciding, planted
from oncekey.testing.simulate.parts import Parts


@planted(seeds=500)
def tombstone_is_swept() -> Parts:
    """The sweep goes by the retention of the answer: a late retry finds nothing, and runs."""

    class Store(Pliable):
        def _sweep(self, verb: Sweep, now: float) -> int:
            for row in self._rows.values():
                if row.state is State.COMPLETED:
                    row.expires -= tombstone_s(row.record(now))
            return super()._sweep(verb, now)

    return Parts(store=Store)


@planted(seeds=500)
def answer_outlives_its_retention() -> Parts:
    """What is not blanked yet is replayed, whether or not its retention is over."""

    return deciding(Situation.GONE, Comparison.SAME, Action.REPLAY)


@planted(seeds=500)
def old_keys_run() -> Parts:
    """A key tells that it is older than memory, and nobody asks: what was done is done again."""

    class Engine(Guard):
        def barred(self, call: Call, policy: Policy) -> Problem | None:
            return None

        def let_run(self, claimed: Execute, call: Call) -> Op[Execute | Replay | Refuse]:
            yield from ()
            return claimed

    return Parts(guard=Engine)
