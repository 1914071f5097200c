"""Planted bugs about schema versions: while a deployment rolls, or after it (P1, P2, P3, P5)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from oncekey._core import lifecycle
from oncekey._core.fingerprint import Comparison
from oncekey._core.lifecycle import Action, Situation
from oncekey._core.op import Op
from oncekey._core.policy import Policy
from oncekey._core.record import Claim, Record
from oncekey._core.verbs import Done, Refused, Swap
from oncekey._engine import guard, ownership
from oncekey._engine.decisions import Call
from oncekey._engine.replays import compare_request
from simulator.bugs.planting import Pliable, changing, deciding, planted
from simulator.parts import Parts
from simulator.upgrade import STRANGE


@planted(seeds=200)
def version_not_compared() -> Parts:
    """After a release, retries get an old answer that the new clients cannot read."""
    return deciding(Situation.STALE, Comparison.SAME, Action.REPLAY)


@planted(seeds=500)
def version_lost_on_take_over() -> Parts:
    """A new process completes what an old one began, and its answer is kept as an old one."""

    class Store(Pliable):
        def _swap(self, verb: Swap, now: float) -> Done | Refused:
            row = self._rows.get(verb.id)
            if row is not None and verb.claim is not None and not verb.fresh:
                version = row.claim.schema_version
                claim = dataclasses.replace(verb.claim, schema_version=version)
                verb = dataclasses.replace(verb, claim=claim)
            return super()._swap(verb, now)

    return Parts(store=Store)


@planted(seeds=1_000)
def anew_without_fence() -> Parts:
    """Two processes run an operation anew for its new version, and both believe to own it."""
    return changing("run anew", raise_fence=False)


@planted(seeds=1_000)
def anew_as_if_never_run() -> Parts:
    """The second run is refused inside, and the key is free for another request: the first run's
    effect is forgotten.
    """

    @contextmanager
    def tables() -> Iterator[None]:
        take = lifecycle.take

        def forgetful(found: Record, claim: Claim) -> Swap:
            swap = take(found, claim)
            return dataclasses.replace(swap, attempt=1) if swap.fresh else swap

        lifecycle.take = forgetful
        try:
            yield
        finally:
            lifecycle.take = take

    return Parts(tables=tables)


@planted(seeds=4_000)
def anew_despite_block() -> Parts:
    """What its own release would never have repeated is run again for a new version."""

    @contextmanager
    def tables() -> Iterator[None]:
        convert = lifecycle.convert

        def forgetful(record: Record, policy: Policy) -> Action:
            return convert(dataclasses.replace(record, recovery="rerun"), policy)

        lifecycle.convert = forgetful
        try:
            yield
        finally:
            lifecycle.convert = convert

    return Parts(tables=tables)


@planted(seeds=500)
def earlier_rules_forgotten() -> Parts:
    """After a deployment no retry finds the answer that the earlier release has kept for it."""
    return _comparing_earlier(Comparison.DIFFERENT)


@planted(seeds=1_000)
def earlier_records_not_compared() -> Parts:
    """After a deployment every request gets the answer that the earlier release has kept."""
    return _comparing_earlier(Comparison.SAME)


@planted(seeds=500)
def earlier_rules_not_asked_for() -> Parts:
    """After a deployment retries are told for ever that another release knows the answer."""
    return _comparing_earlier(Comparison.UNKNOWN_VERSION)


def _comparing_earlier(outcome: Comparison) -> Parts:
    """What this release makes of all that the earlier one wrote."""

    def careless(record: Record, call: Call) -> Op[Comparison]:
        if record.fingerprint_version < call.fingerprint.version < STRANGE:
            return outcome
        return (yield from compare_request(record, call))

    @contextmanager
    def tables() -> Iterator[None]:
        guard.compare_request = ownership.compare_request = careless  # type: ignore[attr-defined]
        try:
            yield
        finally:
            guard.compare_request = ownership.compare_request = compare_request  # type: ignore[attr-defined]

    return Parts(tables=tables)
