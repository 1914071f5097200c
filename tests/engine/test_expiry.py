"""What happens around expiry, by the engine: keys older than memory, tombstones, the retention that
a client asks for.
"""

from __future__ import annotations

from typing import Any

import pytest

from oncekey._core.endings import End
from oncekey._core.fingerprint import Fingerprint
from oncekey._core.op import Op, run
from oncekey._core.policy import Policy
from oncekey._core.problems import Kind
from oncekey._core.record import Answer, Record, State
from oncekey._core.verbs import Find, Insert, Sweep, Verb
from oncekey._engine.decisions import Call, Execute, Refuse, Replay, Stored
from oncekey._engine.guard import Guard
from oncekey._system.clock import FakeClock
from oncekey.stores.batching import Gatherer
from oncekey.stores.memory import MemoryStore
from tests.core.test_key_age import uuid7_of

ANSWER = Answer(201, ((b"location", b"/orders/7"),), b"created")
RETENTION_S, TOMBSTONE_S = 1000.0, 5000.0


class World:
    """An engine on a memory store, and a clock."""

    def __init__(self, **policy: Any) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.guard = Guard(clock=self.clock)
        self.policy = Policy(**{"retention_s": RETENTION_S, **policy}).settled()
        self.asked: list[Verb] = []

    def drive(self, op: Op[Any]) -> Any:
        def ask(question: Any) -> Any:
            self.asked.append(question)
            return Gatherer(self.store).ask(question)

        return run(op, ask)

    def call(self, key: str = "k1", digest: bytes = bytes(32), **more: Any) -> Call:
        return Call("acme", "POST /orders", key, Fingerprint(1, digest), **more)

    def begin(self, call: Call) -> Any:
        return self.drive(self.guard.begin(call, self.policy))

    def done(self, call: Call) -> Stored:
        """Run it to its end."""
        decision = self.begin(call)
        assert isinstance(decision, Execute), decision
        finished = self.drive(self.guard.ownership.finish(decision.attempt, ANSWER, call))
        assert isinstance(finished, Stored), finished
        return finished

    def refused(self, call: Call) -> Kind:
        decision = self.begin(call)
        assert isinstance(decision, Refuse), decision
        return decision.problem.kind

    def found(self, call: Call) -> Record | None:
        record_id = self.guard.claim(call, self.policy).id
        record: Record | None = Gatherer(self.store).ask(Find(record_id))
        return record

    def key(self, age_s: float = 0.0) -> Call:
        return self.call(uuid7_of(self.clock.wall() - age_s))


# --------------------------------------------------------------------- keys older than memory


def test_e67_a_retry_after_its_record_is_gone_is_told_apart_by_its_key() -> None:
    world = World(key_age_s_max=600, clock_skew_s=300)
    call = world.key()
    world.done(call)
    world.clock.advance(RETENTION_S)
    Gatherer(world.store).ask(Sweep(10))
    assert world.found(call) is None
    assert world.refused(call) is Kind.TOO_OLD
    assert world.found(call) is None


def test_e67_p7_what_is_too_old_spends_nothing_and_writes_nothing() -> None:
    world = World(key_age_s_max=600)
    call = world.key(age_s=601)
    assert world.refused(call) is Kind.TOO_OLD
    assert not any(isinstance(verb, Insert) for verb in world.asked)


def test_an_old_key_that_is_remembered_is_replayed_all_the_same() -> None:
    """It was first used late: its record is younger than the key."""
    world = World(key_age_s_max=600)
    call = world.key(age_s=599)
    world.done(call)
    world.clock.advance(RETENTION_S - 1)
    decision = world.begin(call)
    assert isinstance(decision, Replay)
    assert decision.answer == ANSWER


def test_an_old_key_whose_record_is_expired_but_not_swept_is_refused() -> None:
    world = World(key_age_s_max=600)
    call = world.key()
    world.done(call)
    before = world.found(call)
    world.clock.advance(RETENTION_S)
    assert world.refused(call) is Kind.TOO_OLD
    after = world.found(call)
    assert before is not None
    assert after is not None
    assert (after.state, after.fence) == (before.state, before.fence)


def test_an_old_key_that_is_known_to_have_failed_may_run_again() -> None:
    world = World(key_age_s_max=600)
    call = world.key()
    decision = world.begin(call)
    world.drive(world.guard.ownership.conclude(decision.attempt, End.FAILED, None, call))
    world.clock.advance(RETENTION_S - 1)
    assert isinstance(world.begin(call), Execute)


def test_an_old_key_that_expires_while_it_is_looked_at_does_not_start_over() -> None:
    """Found released, and expired when it was to be taken."""
    world = World(key_age_s_max=600)
    call = world.key()
    decision = world.begin(call)
    world.drive(world.guard.ownership.conclude(decision.attempt, End.FAILED, None, call))
    world.clock.advance(RETENTION_S - 1)
    op = world.guard.begin(call, world.policy)
    found = Gatherer(world.store).ask(next(op))
    take = op.send(found)
    world.clock.advance(1)
    Gatherer(world.store).ask(Sweep(10))
    refused = Gatherer(world.store).ask(take)
    look = op.send(refused)
    assert look == Find(found.id)
    with pytest.raises(StopIteration) as ended:
        op.send(Gatherer(world.store).ask(look))
    assert ended.value.value.problem.kind is Kind.TOO_OLD


def resumed(op: Op[Any], answer: Any) -> Op[Any]:
    question = op.send(answer)
    while True:
        answer = yield question
        try:
            question = op.send(answer)
        except StopIteration as stop:
            return stop.value


def test_e67_a_claim_that_was_on_its_way_for_too_long_does_not_run() -> None:
    """It was young enough when it was sent, and what was done with it is forgotten on arrival."""
    world = World(key_age_s_max=600, clock_skew_s=300)
    call = world.key()
    world.done(call)
    world.clock.advance(599)
    Gatherer(world.store).ask(Sweep(10))
    op = world.guard.begin(call, world.policy)
    insert = next(op)
    world.clock.advance(RETENTION_S)
    Gatherer(world.store).ask(Sweep(10))
    decision = world.drive(resumed(op, Gatherer(world.store).ask(insert)))
    assert isinstance(decision, Refuse)
    assert decision.problem.kind is Kind.TOO_OLD


def test_e67_nor_does_a_retry_of_such_a_claim() -> None:
    """Neither of one that was given back, nor of one whose process died over it."""
    for gives_back in (True, False):
        world = World(key_age_s_max=600, lease_s=10)
        call = world.key(age_s=601)
        claim = world.guard.claim(call, world.policy)
        Gatherer(world.store).ask(Insert(claim))
        if gives_back:
            world.drive(world.guard.ownership.forget(claim))
        world.clock.advance(10)
        for _ in range(3):
            assert world.refused(call) is Kind.TOO_OLD


def test_e67_an_orphan_whose_record_began_too_late_is_given_up() -> None:
    world = World(key_age_s_max=600, lease_s=10, recovery="resume")
    call = world.key(age_s=601)
    Gatherer(world.store).ask(Insert(world.guard.claim(call, world.policy)))
    world.clock.advance(10)
    orphan = world.found(call)
    assert orphan is not None
    looked_at = world.clock.monotonic()
    assert world.drive(world.guard.take_up(orphan, call, world.policy, looked_at)) is None
    after = world.found(call)
    assert after is not None
    assert after.state is State.UNKNOWN


def test_an_orphan_whose_record_began_in_time_is_taken_up_however_late() -> None:
    world = World(key_age_s_max=600, lease_s=10, recovery="resume")
    call = world.key(age_s=590)
    Gatherer(world.store).ask(Insert(world.guard.claim(call, world.policy)))
    world.clock.advance(500)
    orphan = world.found(call)
    assert orphan is not None
    op = world.guard.take_up(orphan, call, world.policy, world.clock.monotonic())
    assert isinstance(world.drive(op), Execute)


# ------------------------------------------------------------------------------- tombstones


@pytest.fixture
def entombed() -> World:
    """A world that remembers for longer than it keeps."""
    return World(tombstone_s=TOMBSTONE_S)


def test_within_retention_a_tombstone_changes_nothing(entombed: World) -> None:
    call = entombed.call()
    assert entombed.done(call).expires_in_s == RETENTION_S
    entombed.clock.advance(RETENTION_S - 1)
    decision = entombed.begin(call)
    assert isinstance(decision, Replay)
    assert (decision.answer, decision.expires_in_s) == (ANSWER, 1.0)


def test_e67_after_retention_a_retry_is_refused_instead_of_run(entombed: World) -> None:
    call = entombed.call()
    entombed.done(call)
    entombed.clock.advance(RETENTION_S)
    assert entombed.refused(call) is Kind.KEY_EXPIRED
    entombed.clock.advance(TOMBSTONE_S - 1)
    assert entombed.refused(call) is Kind.KEY_EXPIRED
    entombed.clock.advance(1)
    assert isinstance(entombed.begin(call), Execute)


def test_e67_no_sweep_removes_a_tombstone(entombed: World) -> None:
    call = entombed.call()
    entombed.done(call)
    entombed.clock.advance(RETENTION_S + TOMBSTONE_S - 1)
    assert Gatherer(entombed.store).ask(Sweep(10)) == 0
    assert entombed.refused(call) is Kind.KEY_EXPIRED


def test_another_request_is_told_the_same(entombed: World) -> None:
    """Nothing is left to compare it with."""
    entombed.done(entombed.call())
    entombed.clock.advance(RETENTION_S)
    assert entombed.refused(entombed.call(digest=b"\x01" * 32)) is Kind.KEY_EXPIRED


def test_what_was_released_has_no_tombstone(entombed: World) -> None:
    call = entombed.call()
    decision = entombed.begin(call)
    entombed.drive(entombed.guard.ownership.conclude(decision.attempt, End.FAILED, None, call))
    entombed.clock.advance(RETENTION_S)
    assert isinstance(entombed.begin(call), Execute)


def test_what_died_is_remembered_for_as_long_as_what_was_done() -> None:
    """A blocked operation whose process died must not run again after a retention either."""
    world = World(tombstone_s=TOMBSTONE_S, recovery="block", lease_s=10)
    call = world.call()
    assert isinstance(world.begin(call), Execute)
    world.clock.advance(RETENTION_S + TOMBSTONE_S)
    assert world.refused(call) is Kind.OUTCOME_UNKNOWN
    world.clock.advance(world.policy.unknown_retention_s + TOMBSTONE_S - 1)
    assert world.refused(call) is Kind.OUTCOME_UNKNOWN


def test_e70_a_change_of_policy_changes_nothing_of_what_is_kept(entombed: World) -> None:
    call = entombed.call()
    entombed.done(call)
    entombed.clock.advance(RETENTION_S - 1)
    entombed.policy = Policy(retention_s=10, tombstone_s=9999).settled()
    assert isinstance(entombed.begin(call), Replay)
    entombed.clock.advance(1)
    entombed.policy = Policy(retention_s=99_999).settled()
    assert entombed.refused(call) is Kind.KEY_EXPIRED


def test_retention_from_first_use_is_followed_by_the_tombstone() -> None:
    world = World(tombstone_s=TOMBSTONE_S, run_s_max=999, lease_s=500)
    world.guard = Guard(clock=world.clock, retention_from="first use")
    call = world.call()
    decision = world.begin(call)
    world.clock.advance(400)
    finished = world.drive(world.guard.ownership.finish(decision.attempt, ANSWER, call))
    assert finished.expires_in_s == RETENTION_S - 400
    world.clock.advance(600)
    assert world.refused(call) is Kind.KEY_EXPIRED


def test_e67_what_is_older_than_the_tombstone_is_told_by_its_key() -> None:
    """Together they close the hole: while something is known a retry is refused by that, and after
    that by its age.
    """
    world = World(tombstone_s=TOMBSTONE_S, key_age_s_max=RETENTION_S + TOMBSTONE_S - 300)
    call = world.key()
    world.done(call)
    for _ in range(200):
        world.clock.advance(100)
        Gatherer(world.store).ask(Sweep(10))
        assert not isinstance(world.begin(call), Execute)
    assert world.refused(call) is Kind.TOO_OLD


# ---------------------------------------------------------------- the retention that is asked for


def test_a_client_is_given_the_retention_that_it_asks_for() -> None:
    world = World(retention_declared_s=(10, 9000))
    call = world.call(retention_s=9000.0)
    assert world.done(call).expires_in_s == 9000
    world.clock.advance(8999)
    assert isinstance(world.begin(call), Replay)
    world.clock.advance(1)
    assert isinstance(world.begin(call), Execute)


def test_so_is_one_that_asks_for_less_also_when_it_failed() -> None:
    world = World(retention_declared_s=(10, 9000))
    call = world.call(retention_s=10.0)
    decision = world.begin(call)
    record = world.found(call)
    assert record is not None
    assert record.retention_s == 10
    world.drive(world.guard.ownership.conclude(decision.attempt, End.FAILED, None, call))
    world.clock.advance(10)
    released = world.found(call)
    assert released is not None
    assert (released.state, released.expired) == (State.RELEASED, True)


def test_a_tombstone_follows_the_retention_that_was_asked_for() -> None:
    world = World(retention_declared_s=(10, 9000), tombstone_s=TOMBSTONE_S)
    call = world.call(retention_s=10.0)
    world.done(call)
    world.clock.advance(10)
    assert world.refused(call) is Kind.KEY_EXPIRED
    world.clock.advance(TOMBSTONE_S)
    assert isinstance(world.begin(call), Execute)
