"""How attempts end when the store's answers are unkind: without effect, lost before they began, or
nobody can tell how.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from oncekey._core import lifecycle
from oncekey._core.endings import End
from oncekey._core.fingerprint import Fingerprint
from oncekey._core.op import Pause
from oncekey._core.policy import Learned
from oncekey._core.problems import Kind
from oncekey._core.record import Answer, State
from oncekey._core.verbs import Done, Find, Insert, Swap, Sweep
from oncekey._engine.decisions import Call, Execute, Refuse, Replay
from oncekey._engine.guard import Guard
from oncekey._system.clock import FakeClock
from oncekey.errors import CorruptRecord, StoreUnavailable, StoreUnfit
from oncekey.events import Event, Hooks, OutcomeUnknown
from tests.engine.guard_world import CALL, LEASE_S, World, world

__all__ = ["world"]

OTHER = Call("acme", "POST /orders", "k1", Fingerprint(1, b"\x01" * 32))


# ------------------------------------------------------------------------- without effect


def test_no_effect_speaks_of_one_attempt_alone(world: World) -> None:
    """P5: what an earlier attempt may have done keeps the key bound to its request."""
    world.drive(world.guard.ownership.abandon(world.execute().attempt, no_effect=False))
    world.drive(world.guard.ownership.abandon(world.execute().attempt, no_effect=True))

    decision = world.begin(OTHER)
    assert isinstance(decision, Refuse)
    assert decision.problem.kind is Kind.MISMATCH
    assert world.execute().attempt.attempt == 3


def test_after_no_effect_it_is_as_if_nobody_had_tried(world: World) -> None:
    """P7: another request may use the key, and it is the first attempt again."""
    world.drive(world.guard.ownership.abandon(world.execute().attempt, no_effect=True))
    attempt = world.execute(OTHER).attempt

    assert (attempt.attempt, attempt.lapses) == (1, 0)
    world.drive(world.guard.ownership.abandon(attempt, no_effect=True))
    assert world.found().no_effect


# ----------------------------------------------------------------------------- lost claims


@pytest.mark.parametrize("recovery", ["rerun", "block", "resume"])
def test_a_lost_claim_is_forgotten_without_effect(recovery: str) -> None:
    """P7"""
    world = World(recovery=recovery)
    claim = world.guard.claim(CALL, world.policy)
    world.ask(Insert(claim))
    world.asked.clear()
    world.drive(world.guard.ownership.forget(claim))

    assert [type(verb) for verb in world.asked] == [Find, Swap], "one that was found is found"
    assert (world.found().state, world.found().no_effect) == (State.RELEASED, True)


def test_a_lost_claim_after_a_failure_leaves_the_failure(world: World) -> None:
    """P5: forgetting the second claim must not forget what the first attempt may have done."""
    world.drive(world.guard.ownership.abandon(world.execute().attempt, no_effect=False))
    claim = world.guard.claim(CALL, world.policy)
    assert isinstance(world.begin(claim=claim), Execute)
    world.drive(world.guard.ownership.forget(claim))

    assert (world.found().state, world.found().no_effect) == (State.RELEASED, False)


@pytest.mark.parametrize("recovery", ["ask", "resume"])
def test_a_lost_take_over_is_left_to_lapse(recovery: str) -> None:
    """Given back, it would run without asking what became of the attempt that died, and no
    recoverer would finish it.
    """
    ask = (lambda attempt: Learned.UNKNOWN) if recovery == "ask" else None
    world = World(recovery=recovery, ask=ask)
    world.execute()
    world.clock.advance(LEASE_S)
    claim = world.guard.claim(CALL, world.policy)
    assert isinstance(world.begin(claim=claim), Execute)
    world.drive(world.guard.ownership.forget(claim))

    assert world.found().state is State.RUNNING
    world.clock.advance(LEASE_S)
    assert world.execute().attempt.asks is (recovery == "ask")


def test_p6_a_lost_take_over_of_what_may_run_again_is_given_back(world: World) -> None:
    world.execute()
    world.clock.advance(LEASE_S)
    claim = world.guard.claim(CALL, world.policy)
    assert isinstance(world.begin(claim=claim), Execute)
    world.drive(world.guard.ownership.forget(claim))

    assert (world.found().state, world.found().no_effect) == (State.RELEASED, False)


def test_a_lost_claim_that_is_still_on_its_way_is_found(world: World) -> None:
    """P7: the search may overtake the claim, on another connection."""
    claim = world.guard.claim(CALL, world.policy)
    looks = 0

    def ask(question: Any) -> Any:
        nonlocal looks
        if isinstance(question, Find):
            looks += 1
            if looks == 2:
                world.ask(Insert(claim))
        return world.ask(question)

    world.drive(world.guard.ownership.forget(claim), ask)
    assert world.found().state is State.RELEASED


def test_the_search_for_a_lost_claim_ends_where_one_is_found_that_nobody_can_read(
    world: World,
) -> None:
    """P11: as one that was sealed by a secret which this process was not given."""
    looks = 0

    def ask(question: Any) -> Any:
        nonlocal looks
        if isinstance(question, Find):
            looks += 1
            raise CorruptRecord("sealed by another secret")
        return world.ask(question)

    world.drive(world.guard.ownership.forget(world.guard.claim(CALL, world.policy)), ask)
    assert looks == 4


def test_the_search_for_a_lost_claim_ends(world: World) -> None:
    """P11"""
    started = world.clock.monotonic()
    world.drive(world.guard.ownership.forget(world.guard.claim(CALL, world.policy)))

    assert len(world.asked) == 4
    assert world.clock.monotonic() - started < LEASE_S


def test_p7_a_lost_claim_is_released_although_the_store_stays_down_for_a_while() -> None:
    """Under `block` it would lapse into an unknown outcome, although nothing ran."""
    world = World(recovery="block")
    claim = world.guard.claim(CALL, world.policy)
    world.ask(Insert(claim))
    up_at = world.clock.monotonic() + 15

    def ask(question: Any) -> Any:
        if not isinstance(question, Pause) and world.clock.monotonic() < up_at:
            raise StoreUnavailable("a failover")
        return world.ask(question)

    world.drive(world.guard.ownership.forget(claim), ask)
    assert world.clock.monotonic() < up_at + LEASE_S / 2
    world.clock.advance(LEASE_S)
    world.execute(OTHER)


# --------------------------------------------------------------------------- nobody can tell


def test_p3_under_block_too_no_answer_goes_out_beside_one_that_may_be_committed() -> None:
    world = World(recovery="block")
    attempt = world.execute().attempt
    attempt.recorded = Answer(201, (), b"in a transaction that is still open")

    def ask(question: Any) -> Any:
        if isinstance(question, Swap):
            raise StoreUnavailable("its row is held", sent=True)
        return world.ask(question)

    op = world.guard.ownership.conclude(attempt, End.KEPT, Answer(200, (), b"another"), CALL)
    assert world.drive(op, ask).problem.kind is Kind.STORE_UNAVAILABLE


def test_whoever_was_taken_over_does_not_say_that_nobody_knows(world: World) -> None:
    """P2: it is not its record any more; what counts is what stands there now."""
    doubtful = world.execute().attempt
    doubtful.doubted = True
    world.clock.advance(LEASE_S)
    other = world.execute().attempt

    op = world.guard.ownership.conclude(doubtful, End.FAILED, None, CALL)
    assert world.drive(op).problem.kind is Kind.IN_FLIGHT
    world.drive(world.guard.ownership.finish(other, Answer(201, (), b"paid"), CALL))
    ended = world.drive(world.guard.ownership.conclude(doubtful, End.FAILED, None, CALL))
    assert isinstance(ended, Replay)


@pytest.mark.parametrize("end", [End.KEPT, End.FAILED])
def test_p2_who_completed_in_vain_answers_from_what_another_recorded(
    world: World, end: End
) -> None:
    """Its transaction was rolled back: what it wrote there counts for nothing."""
    overtaken = world.execute().attempt
    overtaken.recorded = Answer(201, (), b"rolled back")
    world.clock.advance(LEASE_S)
    world.drive(
        world.guard.ownership.finish(world.execute().attempt, Answer(201, (), b"paid"), CALL)
    )

    ended = world.drive(world.guard.ownership.conclude(overtaken, end, overtaken.recorded, CALL))
    assert isinstance(ended, Replay)
    assert ended.answer.body == b"paid"
    assert overtaken.lost


def test_p2_whose_record_was_swept_does_not_answer_by_itself(world: World) -> None:
    """It was so late that nobody knows of it: a retry runs, and would say something else."""
    late = world.execute().attempt
    world.clock.advance(LEASE_S + world.policy.retention_s)
    assert world.ask(Sweep(1)) == 1

    ended = world.drive(world.guard.ownership.finish(late, Answer(201, (), b"late"), CALL))
    assert isinstance(ended, Refuse)
    assert (ended.problem.kind, ended.problem.retryable) == (Kind.IN_FLIGHT, True)
    assert late.lost


@pytest.mark.parametrize("failure", [StoreUnavailable("a failover"), StoreUnfit("a replica")])
def test_what_nobody_can_tell_is_said_although_the_store_does_not_hear_of_it(
    world: World, failure: Exception
) -> None:
    """It lapses, and whoever comes then finds the same step begun."""
    doubtful = world.execute().attempt
    doubtful.doubted = True

    def ask(question: Any) -> Any:
        if isinstance(question, Swap):
            raise failure
        return world.ask(question)

    ended = world.drive(world.guard.ownership.conclude(doubtful, End.FAILED, None, CALL), ask)
    assert ended.problem.kind is Kind.OUTCOME_UNKNOWN
    assert world.found().state is State.RUNNING


def test_somebody_is_told_of_what_was_given_up(world: World) -> None:
    heard: list[Event] = []
    world.guard = Guard(clock=world.clock, hooks=Hooks([heard.append]))
    doubtful = world.execute().attempt
    doubtful.doubted = True
    world.drive(world.guard.ownership.conclude(doubtful, End.FAILED, None, CALL))

    [told] = [event for event in heard if isinstance(event, OutcomeUnknown)]
    assert (told.operation, told.attempt, told.lapses) == ("POST /orders", 1, 0)


@pytest.mark.parametrize("late", [False, True])
def test_p1_who_finds_out_too_late_that_it_was_not_done_does_not_run_it(late: bool) -> None:
    """`ask` took longer than the lease, which nobody renewed: another may have run it by now."""
    world = World(recovery="ask", ask=lambda attempt: None)
    world.execute()
    world.clock.advance(LEASE_S)
    attempt = world.execute().attempt
    world.clock.advance(LEASE_S if late else LEASE_S / 2)
    ended = world.drive(world.guard.ownership.learned(attempt, Learned.NOT_DONE, CALL))
    assert attempt.lost is late
    if late:
        assert ended.problem.kind is Kind.UNSETTLED
    else:
        assert ended is None


def test_p9_a_take_over_whose_reply_was_lost_is_asked_about_too() -> None:
    """It landed, and its owner learns that only from its next insert."""
    world = World(recovery="ask", ask=lambda attempt: None)
    world.execute()
    world.clock.advance(LEASE_S)
    claim = world.guard.claim(CALL, world.policy)
    assert isinstance(world.ask(lifecycle.take(world.found(), claim)), Done)
    assert world.begin(CALL, claim).attempt.asks


def test_p6_a_key_that_is_too_old_does_not_free_what_must_be_asked_about() -> None:
    """A host whose clock is behind would run it, and nobody would be asked."""
    world = World(recovery="ask", ask=lambda attempt: None, key_age_s_max=600)
    call = dataclasses.replace(CALL, first_sent=world.clock.wall())
    world.execute(call)
    world.clock.advance(LEASE_S)
    ahead = Guard(clock=FakeClock(world.clock.wall() + 1000))
    assert world.drive(ahead.begin(call, world.policy)).problem.kind is Kind.OUTCOME_UNKNOWN
    assert world.found().state is State.UNKNOWN
