"""The engine, step by step: what it asks next when the store's answers are unkind.

The promises as a whole are held by the simulator (tests/testing/simulate); these are single steps
that it found wanting once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oncekey.clock import FakeClock
from oncekey.core.fingerprint import Fingerprint
from oncekey.core.op import Op, Pause, run
from oncekey.core.policy import Learned, Policy, Verdict
from oncekey.core.problem import Kind
from oncekey.core.record import Answer, Claim, Record, State
from oncekey.core.verbs import Find, Found, Insert, Peek, Refused, Swap, Verb, When
from oncekey.decision import Bypass, Call, Execute, Refuse, Replay
from oncekey.errors import CorruptRecord, StoreUnavailable
from oncekey.events import Event, Hooks, OutcomeUnknown
from oncekey.guard import ROUNDS_MAX, Guard
from oncekey.stores.gather import Gatherer
from oncekey.stores.memory import MemoryStore

CALL = Call("acme", "POST /orders", "k1", Fingerprint(1, bytes(32)))
OTHER = Call("acme", "POST /orders", "k1", Fingerprint(1, b"\x01" * 32))
LEASE_S = 30.0
DOWN = StoreUnavailable("down", sent=False)


class World:
    """A guard whose questions are answered by the memory store, unless a test answers itself."""

    def __init__(self, **policy: Any) -> None:
        self.clock = FakeClock()
        self.guard = Guard(clock=self.clock, chance=lambda: 0.5)
        self.policy = Policy(**{"lease_s": LEASE_S, **policy}).settled()
        self.store = MemoryStore(self.clock)
        self.asked: list[Verb] = []

    def ask(self, question: Any) -> Any:
        if isinstance(question, Pause):
            self.clock.advance(question.seconds)
            return None
        self.asked.append(question)
        return Gatherer(self.store).ask(question)

    def begin(self, call: Call = CALL, claim: Claim | None = None) -> Any:
        return self.drive(self.guard.begin(call, self.policy, claim))

    def drive(self, op: Op[Any], ask: Callable[[Any], Any] | None = None) -> Any:
        return run(op, ask or self.ask)

    def execute(self, call: Call = CALL) -> Execute:
        decision = self.begin(call)
        assert isinstance(decision, Execute)
        return decision

    def found(self) -> Record:
        found = self.ask(Find(self.guard.claim(CALL, self.policy).id))
        assert isinstance(found, Record)
        return found


@pytest.fixture
def world() -> World:
    return World()


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
    world.drive(world.guard.forget(claim))
    assert world.execute().attempt.attempt == 1 + 2 * lapses


def test_p1_whoever_slept_for_a_lease_while_it_claimed_asks_for_another_before_it_runs() -> None:
    world = World()
    begun = world.drive(world.guard.begin(CALL, world.policy), asleep(world, 1))
    assert isinstance(begun, Execute)
    assert begun.attempt.lease_until == world.clock.monotonic() + LEASE_S
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


# ------------------------------------------------------------------------- without effect


def test_no_effect_speaks_of_one_attempt_alone(world: World) -> None:
    """P5: what an earlier attempt may have done keeps the key bound to its request."""
    world.drive(world.guard.abandon(world.execute().attempt, no_effect=False))
    world.drive(world.guard.abandon(world.execute().attempt, no_effect=True))

    decision = world.begin(OTHER)
    assert isinstance(decision, Refuse)
    assert decision.problem.kind is Kind.MISMATCH
    assert world.execute().attempt.attempt == 3


def test_after_no_effect_it_is_as_if_nobody_had_tried(world: World) -> None:
    """P7: another request may use the key, and it is the first attempt again."""
    world.drive(world.guard.abandon(world.execute().attempt, no_effect=True))
    attempt = world.execute(OTHER).attempt

    assert (attempt.attempt, attempt.lapses) == (1, 0)
    world.drive(world.guard.abandon(attempt, no_effect=True))
    assert world.found().no_effect


# ----------------------------------------------------------------------------- lost claims


def test_a_lost_claim_is_forgotten_without_effect(world: World) -> None:
    """P7"""
    claim = world.guard.claim(CALL, world.policy)
    world.ask(Insert(claim))
    world.asked.clear()
    world.drive(world.guard.forget(claim))

    assert [type(verb) for verb in world.asked] == [Find, Swap], "one that was found is found"
    assert (world.found().state, world.found().no_effect) == (State.RELEASED, True)


def test_a_lost_claim_after_a_failure_leaves_the_failure(world: World) -> None:
    """P5: forgetting the second claim must not forget what the first attempt may have done."""
    world.drive(world.guard.abandon(world.execute().attempt, no_effect=False))
    claim = world.guard.claim(CALL, world.policy)
    assert isinstance(world.begin(claim=claim), Execute)
    world.drive(world.guard.forget(claim))

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
    world.drive(world.guard.forget(claim))

    assert world.found().state is State.RUNNING
    world.clock.advance(LEASE_S)
    assert world.execute().attempt.asks is (recovery == "ask")


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

    world.drive(world.guard.forget(claim), ask)
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

    world.drive(world.guard.forget(world.guard.claim(CALL, world.policy)), ask)
    assert looks == 4


def test_the_search_for_a_lost_claim_ends(world: World) -> None:
    """P11"""
    started = world.clock.monotonic()
    world.drive(world.guard.forget(world.guard.claim(CALL, world.policy)))

    assert len(world.asked) == 4
    assert world.clock.monotonic() - started < LEASE_S


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
    assert decision.attempt.lease_until == world.clock.monotonic() + LEASE_S - 12.0


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
    assert decision.attempt.lease_until == world.clock.monotonic() + LEASE_S
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
    assert decision.attempt.lease_until <= asked_at + LEASE_S
    assert (decision.attempt.attempt, decision.attempt.age_s) == (1, 0.0)


def test_p11_a_record_that_changes_at_every_look_is_not_looked_at_for_ever(world: World) -> None:
    world.drive(world.guard.abandon(world.execute().attempt, no_effect=False))
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
    overlong = Found(_with(record, lease_left_s=10 * LEASE_S))
    asked: list[Any] = []

    def ask(question: Any) -> Any:
        asked.append(question)
        if isinstance(question, Insert):
            return overlong
        if isinstance(question, Swap) and question.when is When.OVERLONG:
            world.drive(world.guard.abandon(first.attempt, no_effect=False))
            return Refused(world.found())
        return world.ask(question)

    decision = world.drive(world.guard.begin(CALL, world.policy), ask)
    assert isinstance(decision, Execute)
    assert [type(question) for question in asked] == [Insert, Swap, Swap]


def _with(record: Record, **changes: Any) -> Record:
    fields = {name: getattr(record, name) for name in Record.__dataclass_fields__}
    return Record(**{**fields, **changes})


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

    world.drive(world.guard.forget(claim), ask)
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

    op = world.guard.conclude(attempt, Verdict.KEEP, Answer(200, (), b"another"), CALL)
    assert world.drive(op, ask).problem.kind is Kind.STORE_UNAVAILABLE


def test_whoever_was_taken_over_does_not_say_that_nobody_knows(world: World) -> None:
    """P2: it is not its record any more; what counts is what stands there now."""
    doubtful = world.execute().attempt
    doubtful.doubted = True
    world.clock.advance(LEASE_S)
    other = world.execute().attempt

    op = world.guard.conclude(doubtful, Verdict.FAILED, None, CALL)
    assert world.drive(op).problem.kind is Kind.IN_FLIGHT
    world.drive(world.guard.finish(other, Answer(201, (), b"paid"), CALL))
    ended = world.drive(world.guard.conclude(doubtful, Verdict.FAILED, None, CALL))
    assert isinstance(ended, Replay)


def test_p2_who_completed_in_vain_answers_from_what_another_recorded(world: World) -> None:
    """Its transaction was rolled back: what it wrote there counts for nothing."""
    overtaken = world.execute().attempt
    overtaken.recorded = Answer(201, (), b"rolled back")
    world.clock.advance(LEASE_S)
    world.drive(world.guard.finish(world.execute().attempt, Answer(201, (), b"paid"), CALL))

    ended = world.drive(world.guard.conclude(overtaken, Verdict.KEEP, overtaken.recorded, CALL))
    assert isinstance(ended, Replay)
    assert ended.answer.body == b"paid"
    assert overtaken.lost


def test_somebody_is_told_of_what_was_given_up(world: World) -> None:
    heard: list[Event] = []
    world.guard = Guard(clock=world.clock, hooks=Hooks([heard.append]))
    doubtful = world.execute().attempt
    doubtful.doubted = True
    world.drive(world.guard.conclude(doubtful, Verdict.FAILED, None, CALL))

    [told] = [event for event in heard if isinstance(event, OutcomeUnknown)]
    assert (told.operation, told.attempt, told.lapses) == ("POST /orders", 1, 0)
