"""The engine, step by step: what it asks next when the store's answers are unkind.

The promises as a whole are held by the simulator (tests/testing/simulate); these are single steps
that it found wanting once. How attempts end is for `test_guard_ends.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from oncekey._core.op import Pause
from oncekey._core.problems import Kind
from oncekey._core.reasons import LossKind
from oncekey._core.record import State
from oncekey._core.verbs import Found, Insert, Peek, Refused, Swap, When
from oncekey._engine.decisions import Bypass, Execute, Refuse
from oncekey._engine.guard import ROUNDS_MAX, Guard
from oncekey.events import Event, Hooks, LeaseWasLost, Started
from oncekey.stores.memory import MemoryStore
from tests.engine.guard_world import CALL, DOWN, LEASE_S, World, world

__all__ = ["world"]


# ----------------------------------------------------------------- a process that stands still


def asleep(
    world: World, times: int, then: Callable[[], object] = lambda: None
) -> Callable[[Any], Any]:
    """Asks, and then stands still for a lease, so often; then something else happens."""
    left = times

    def ask(question: Any) -> Any:
        nonlocal left
        answer = world.ask(question)
        if isinstance(question, Insert | Swap) and left:
            left -= 1
            world.clock.advance(LEASE_S)
            then()
        return answer

    return ask


@pytest.mark.parametrize("lapses", [0, 1])
def test_p1_whoever_sleeps_for_a_lease_again_and_again_does_not_run(lapses: int) -> None:
    world = World()
    for _ in range(lapses):
        world.execute()
        world.clock.advance(LEASE_S)
    claim = world.guard.claim(CALL, world.policy)
    late = world.drive(world.guard.begin(CALL, world.policy, claim), asleep(world, 9))
    assert isinstance(late, Refuse)
    assert late.problem.kind is Kind.STORE_UNAVAILABLE
    assert late.lost_claim == claim
    world.drive(world.guard.ownership.forget(claim))
    assert world.execute().attempt.attempt == 1 + 2 * lapses


def test_why_nothing_ran_is_told_where_a_lease_was_over_before_it_began() -> None:
    """Its client is told that the store does not answer, and the store had answered."""
    world, told = World(), list[Event]()
    world.guard = Guard(clock=world.clock, chance=lambda: 0.5, hooks=Hooks([told.append]))
    world.drive(world.guard.begin(CALL, world.policy), asleep(world, 9))
    [lost] = [event for event in told if isinstance(event, LeaseWasLost)]
    assert lost.reason.startswith("its lease was over before it began")
    assert lost.kind is LossKind.LAPSED_BEFORE_START
    assert not any(isinstance(event, Started) for event in told)  # nothing did


def test_p1_whoever_slept_for_a_lease_while_it_claimed_asks_for_another_before_it_runs() -> None:
    world = World()
    begun = world.drive(world.guard.begin(CALL, world.policy), asleep(world, 1))
    assert isinstance(begun, Execute)
    assert begun.attempt.lease.until == world.clock.monotonic() + LEASE_S
    assert not world.found().lapsed


def test_p1_whoever_slept_for_a_lease_does_not_run_what_another_has_taken_over() -> None:
    world = World()
    heirs: list[Execute] = []
    late = world.drive(
        world.guard.begin(CALL, world.policy),
        asleep(world, 1, then=lambda: heirs.append(world.execute())),
    )
    assert isinstance(late, Refuse)
    assert late.problem.kind is Kind.STORE_UNAVAILABLE
    assert world.found().fence == heirs[0].attempt.fence


def test_p1_a_recoverer_that_slept_for_a_lease_does_not_run_it() -> None:
    world = World(recovery="resume")
    world.execute()
    world.clock.advance(LEASE_S)

    def sleep(question: Any) -> Any:
        answer = world.ask(question)
        world.clock.advance(LEASE_S)
        return answer

    looked_at, orphan = world.clock.monotonic(), world.found()
    taking = world.guard.take_up(orphan, CALL, world.policy, looked_at)
    assert world.drive(taking, sleep) is None


# ---------------------------------------------------------------------- the store goes down


def test_nothing_runs_unprotected_once_the_store_has_answered() -> None:
    """P1: `store_down="run"` is for stores that heard nothing, not for take-overs that failed."""
    world = World(store_down="run")
    world.execute()
    world.clock.advance(LEASE_S + 1)

    def ask(question: Any) -> Any:
        if isinstance(question, Swap):
            raise DOWN
        return world.ask(question)

    decision = world.drive(world.guard.begin(CALL, world.policy), ask)

    assert isinstance(decision, Refuse)
    assert decision.problem.kind is Kind.STORE_UNAVAILABLE


def test_a_request_that_the_store_never_heard_of_may_run_unprotected() -> None:
    world = World(store_down="run")

    def ask(question: Any) -> Any:
        if isinstance(question, Pause):
            return None
        raise DOWN

    assert world.drive(world.guard.begin(CALL, world.policy), ask) == Bypass()


def test_a_waiter_that_hears_nothing_more_is_told_in_flight() -> None:
    world = World(in_flight="wait", wait_s=5.0, store_down="run")
    world.execute()

    def ask(question: Any) -> Any:
        if isinstance(question, Peek):
            raise DOWN
        return world.ask(question)

    decision = world.drive(world.guard.begin(CALL, world.policy), ask)

    assert isinstance(decision, Refuse)
    assert decision.problem.kind is Kind.IN_FLIGHT
    assert decision.lost_claim is None


# ---------------------------------------------------------------------------- what is ours


def test_our_own_token_on_a_record_that_does_not_run_is_no_claim() -> None:
    """P1: a doubt that arrives late leaves our token behind; nothing may run under it."""
    world = World(recovery="block")
    world.execute()
    world.clock.advance(LEASE_S + 1)
    claim = world.guard.claim(CALL, world.policy)
    assert isinstance(world.begin(claim=claim), Refuse)
    assert (world.found().state, world.found().token) == (State.UNKNOWN, claim.token)

    decision = world.begin(claim=claim)
    assert isinstance(decision, Refuse)
    assert decision.problem.kind is Kind.OUTCOME_UNKNOWN


def test_a_claim_that_is_found_again_has_been_running_since(world: World) -> None:
    """P8: an owner never believes in more of its lease than the store does."""
    claim = world.guard.claim(CALL, world.policy)
    world.ask(Insert(claim))
    world.clock.advance(12.0)
    decision = world.begin(claim=claim)

    assert isinstance(decision, Execute)
    assert decision.attempt.lease.until == world.clock.monotonic() + LEASE_S - 12.0


def test_a_take_over_counts_its_lease_from_its_own_question(world: World) -> None:
    world.execute()
    world.clock.advance(LEASE_S + 1)

    def ask(question: Any) -> Any:
        outcome = world.ask(question)
        if isinstance(question, Insert):
            world.clock.advance(20.0)  # a slow reply, or a pause after it
        return outcome

    decision = world.drive(world.guard.begin(CALL, world.policy), ask)
    assert isinstance(decision, Execute)
    assert decision.attempt.lease.until == world.clock.monotonic() + LEASE_S
    assert decision.attempt.age_s == pytest.approx(LEASE_S + 1 + 20.0)


def test_an_insert_that_lands_before_the_take_over_has_been_running_since(world: World) -> None:
    """P8: the take-over is refused because the record is ours already, for a while."""
    world.execute()
    world.clock.advance(world.policy.retention_s + LEASE_S + 1)
    claim = world.guard.claim(CALL, world.policy)

    def ask(question: Any) -> Any:
        if isinstance(question, Swap):
            world.store = MemoryStore(world.clock)  # swept; and then a late copy of the insert
            world.ask(Insert(claim))
            world.clock.advance(3.0)
        return world.ask(question)

    asked_at = world.clock.monotonic()
    decision = world.drive(world.guard.begin(CALL, world.policy, claim), ask)

    assert isinstance(decision, Execute)
    assert decision.attempt.lease.until <= asked_at + LEASE_S
    assert (decision.attempt.attempt, decision.attempt.age_s) == (1, 0.0)


def test_p11_a_record_that_changes_at_every_look_is_not_looked_at_for_ever(world: World) -> None:
    world.drive(world.guard.ownership.abandon(world.execute().attempt, no_effect=False))
    swaps: list[Swap] = []

    def ask(question: Any) -> Any:
        if isinstance(question, Swap):  # somebody was quicker, and failed as well
            swaps.append(question)
            return Refused(world.found())
        return world.ask(question)

    decision = world.drive(world.guard.begin(CALL, world.policy), ask)
    assert isinstance(decision, Refuse)
    assert decision.problem.retryable
    assert len(swaps) == ROUNDS_MAX


# ------------------------------------------------------------------- a clock that was set back


def test_a_deadline_that_could_not_be_shortened_is_looked_at_again(world: World) -> None:
    """P8: by the time of the write the owner had completed."""
    first = world.execute()
    record = world.found()
    overlong = Found(replace(record, lease_left_s=10 * LEASE_S))
    asked: list[Any] = []

    def ask(question: Any) -> Any:
        asked.append(question)
        if isinstance(question, Insert):
            return overlong
        if isinstance(question, Swap) and question.when is When.OVERLONG:
            world.drive(world.guard.ownership.abandon(first.attempt, no_effect=False))
            return Refused(world.found())
        return world.ask(question)

    decision = world.drive(world.guard.begin(CALL, world.policy), ask)
    assert isinstance(decision, Execute)
    assert [type(question) for question in asked] == [Insert, Swap, Swap]
