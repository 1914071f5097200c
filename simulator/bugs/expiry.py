"""Planted bugs about expiry: tombstones that are lost or ignored, keys older than memory."""

from __future__ import annotations

from oncekey._core.fingerprint import Comparison
from oncekey._core.lifecycle import Action, Situation
from oncekey._core.op import Op
from oncekey._core.policy import Policy
from oncekey._core.problems import Problem
from oncekey._core.record import State
from oncekey._core.retention import tombstone_s
from oncekey._core.verbs import Sweep
from oncekey._engine.admission import Admission
from oncekey._engine.decisions import Call, Execute, Refuse, Replay
from simulator.bugs.planting import Pliable, admitting, deciding, planted
from simulator.parts import Parts


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

    class Engine(Admission):
        def refusal(self, call: Call, policy: Policy) -> Problem | None:
            return None

        def let_run(self, claimed: Execute, call: Call) -> Op[Execute | Replay | Refuse]:
            yield from ()
            return claimed

    return Parts(guard=admitting(Engine))
