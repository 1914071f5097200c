"""Planted bugs about attempts that broke: given back, forgotten, ended with the wrong word (P6)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from oncekey._core import endings, lifecycle
from oncekey._core.endings import RECOVERIES, End, Fate
from oncekey._core.lifecycle import Action
from oncekey._core.op import Op
from oncekey._core.policy import Policy, Verdict
from oncekey._core.record import Answer, Claim, Record, State
from oncekey._core.verbs import Done, Refused, Swap
from oncekey._engine.admission import Admission
from oncekey._engine.attempt import Attempt
from oncekey._engine.decisions import Call, Execute, Finished, Given, Refuse, Replay
from oncekey._engine.lease import Phase
from oncekey._engine.ownership import Ownership
from oncekey.atomic._transaction import AtomicOperation, Commit
from oncekey.errors import StoreUnavailable
from simulator.bugs.planting import admitting, changing, owning, planted
from simulator.parts import Parts
from simulator.world import ASKED_EVERY


def _ending(*rows: tuple[End, str], fate: Fate) -> Parts:
    """A table of endings with other entries."""

    @contextmanager
    def tables() -> Iterator[None]:
        table = endings.FATES
        endings.FATES = {**table, **dict.fromkeys(rows, fate)}
        try:
            yield
        finally:
            endings.FATES = table

    return Parts(tables=tables)


# ------------------------------------------------------------------------- what broke runs again


@planted(seeds=100)
def an_exception_under_block_releases() -> Parts:
    """A bank did not answer in time, and the handler raised: the retry charges a second time."""

    class Engine(Ownership):
        def conclude_failed(
            self, attempt: Attempt, error: BaseException, call: Call
        ) -> Op[Finished]:
            if isinstance(error, Exception) and attempt.policy.recovery == "block":
                return self.conclude(attempt, End.FAILED, None, call)
            return super().conclude_failed(attempt, error, call)

    return Parts(guard=owning(Engine))


@planted(seeds=200)
def a_cancellation_under_block_releases() -> Parts:
    """A limit on time cut the handler off after it had charged: the retry charges again."""

    class Engine(Ownership):
        def conclude_failed(
            self, attempt: Attempt, error: BaseException, call: Call
        ) -> Op[Finished]:
            if not isinstance(error, Exception) and attempt.policy.recovery == "block":
                return self.conclude(attempt, End.FAILED, None, call)
            return super().conclude_failed(attempt, error, call)

    return Parts(guard=owning(Engine))


@planted(seeds=200)
def a_500_under_block_releases() -> Parts:
    """The framework made a 500 of an exception: the retry runs what may have been done."""

    @contextmanager
    def tables() -> Iterator[None]:
        honest = endings.end_of_status

        def forgiving(judged: Verdict, status: int, policy: Policy) -> End:
            end = honest(judged, status, policy)
            return End.FAILED if end is End.BROKEN and policy.recovery == "block" else end

        endings.end_of_status = forgiving
        try:
            yield
        finally:
            endings.end_of_status = honest

    return Parts(tables=tables)


@planted(seeds=200)
def what_broke_under_ask_releases() -> Parts:
    """The application could be asked whether it was done, and nobody asks: the retry just runs."""
    return _ending((End.BROKEN, "ask"), fate=Fate.RELEASE)


@planted(seeds=200)
def unknown_is_not_heard() -> Parts:
    """A handler says that it cannot tell what it did, and its key is given back all the same."""
    return _ending(*((End.UNKNOWN, recovery) for recovery in RECOVERIES), fate=Fate.RELEASE)


@planted(seeds=500)
def a_step_that_broke_releases() -> Parts:
    """A step that must not be repeated has raised, and nobody is told to look what it did."""
    return _ending(*((End.STEP_BROKEN, recovery) for recovery in RECOVERIES), fate=Fate.RELEASE)


@planted(seeds=500)
def a_step_that_broke_is_overlooked() -> Parts:
    """Only the exception counts, not that it came out of a step that must not be repeated."""

    class Engine(Ownership):
        def conclude(
            self, attempt: Attempt, end: End, answer: Answer | None, call: Call
        ) -> Op[Finished]:
            attempt.steps._begun.clear()
            return super().conclude(attempt, end, answer, call)

    return Parts(guard=owning(Engine))


@planted(seeds=100)
def proofs_are_not_believed() -> Parts:
    """A declined card proves that nothing was charged, and still an operator must look into it."""
    return _ending((End.NO_EFFECT, "block"), fate=Fate.GIVE_UP)


# ------------------------------------------------------------------------------ under `ask`


@planted(seeds=500)
def a_lapse_is_left_to_itself() -> Parts:
    """An attempt that broke keeps its lease: every retry is refused until that runs out."""

    class Engine(Ownership):
        def _lapse(self, attempt: Attempt, call: Call) -> Any:
            yield from ()
            attempt.lease.move(Phase.ENDED)
            return Given()

    return Parts(guard=owning(Engine))


@planted(seeds=500)
def a_lapse_completes() -> Parts:
    """What nobody knows the end of is stored as done, with an answer that is none."""

    class Engine(Ownership):
        def _lapse(self, attempt: Attempt, call: Call) -> Any:
            return self.finish(attempt, Answer(500, (), b"failed"), call)

    return Parts(guard=owning(Engine))


@planted(seeds=3000)
def a_lapse_is_not_counted() -> Parts:
    """A request that breaks each time is asked about without end."""

    @contextmanager
    def tables() -> Iterator[None]:
        take = lifecycle.take

        def forgetful(found: Record, claim: Claim) -> Swap:
            swap = take(found, claim)
            if claim.recovery != "ask" or not swap.lapses:
                return swap
            return dataclasses.replace(swap, lapses=found.lapses)

        lifecycle.take = forgetful
        try:
            yield
        finally:
            lifecycle.take = take

    return Parts(tables=tables)


@planted(seeds=500)
def nobody_is_asked() -> Parts:
    """What died or broke under `ask` is taken over, and runs at once."""

    @contextmanager
    def tables() -> Iterator[None]:
        recover = lifecycle.recover

        def rash(record: Record, policy: Policy) -> Action:
            action = recover(record, policy)
            return Action.RUN_AGAIN if action is Action.ASK else action

        lifecycle.recover = rash
        try:
            yield
        finally:
            lifecycle.recover = recover

    return Parts(tables=tables)


@planted(seeds=5000)
def runs_when_it_has_found_out_too_late() -> Parts:
    """To find out took longer than the lease: another has asked too, and both of them run."""

    class Engine(Ownership):
        def _overslept(self, attempt: Attempt) -> bool:
            return False

    return Parts(guard=owning(Engine))


@planted(seeds=100_000, every=ASKED_EVERY)
def too_old_frees_what_must_be_asked_about() -> Parts:
    """A host whose clock is ahead gives back what lapsed: another one runs it, and asks nobody."""

    class Engine(Admission):
        def let_run(self, claimed: Execute, call: Call) -> Op[Execute | Replay | Refuse]:
            lease = claimed.attempt.lease
            phase, lease.phase = lease.phase, Phase.RUNNING
            decision = yield from super().let_run(claimed, call)
            lease.phase = phase
            return decision

    return Parts(guard=admitting(Engine))


@planted(seeds=10_000, every=ASKED_EVERY)
def a_lost_take_over_frees_what_must_be_asked_about() -> Parts:
    """No reply came to a take-over: when that is found it is given back, and a retry runs it."""

    class Engine(Ownership):
        def forget(self, claim: Claim) -> Op[None]:
            op = super().forget(claim)
            try:
                verb = next(op)
                while True:
                    try:
                        found = yield verb
                    except StoreUnavailable as error:
                        verb = op.throw(error)
                    else:
                        if isinstance(found, Record):
                            found = dataclasses.replace(found, recovery="rerun")
                        verb = op.send(found)
            except StopIteration:
                return

    return Parts(guard=owning(Engine))


@planted(seeds=10_000)
def rows_of_what_nobody_knows_are_committed() -> Parts:
    """An atomic handler cannot tell what it did; its rows stay, and the next run writes more."""

    class Careless(AtomicOperation):
        def _end_without_rows(self, swap: Swap) -> Op[Done | Refused]:
            if swap.to is State.UNKNOWN:
                return (yield from super()._end_without_rows(swap))
            if not self._open:
                return (yield from self._refusal())
            fence = yield from self._write(swap)
            self._open = False
            yield Commit()
            return Done(fence or swap.fence)

    return Parts(work=Careless)


# -------------------------------------------------------------------------------- given up


@planted(seeds=500)
def giving_up_keeps_the_fence() -> Parts:
    """What was declared unknown can still be completed by whoever slept through that."""
    return changing("give up", raise_fence=False)
