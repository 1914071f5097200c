"""The heartbeat: who is due, what renewing does, and what a handler learns when it fails."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncekey import Policy
from oncekey._core.fingerprint import Fingerprint
from oncekey._core.key import short_hash
from oncekey._core.op import run
from oncekey._core.record import Answer, Record, State
from oncekey._core.verbs import Find
from oncekey._engine.attempt import Attempt
from oncekey._engine.decisions import Call, Execute, Stored
from oncekey._engine.guard import Guard
from oncekey._engine.heartbeat import LINGER_S, Heartbeat, RenewalSchedule
from oncekey._engine.lease import Leftover, Phase
from oncekey._system import probes
from oncekey._system.clock import FakeClock, SystemClock
from oncekey.errors import LeaseLost
from oncekey.events import Event, Hooks, LeaseWasLost
from oncekey.stores import connection
from oncekey.stores.batching import Gatherer
from oncekey.stores.connection import StoreConnection
from oncekey.stores.memory import MemoryStore
from tests.stores.unreliable import Failing

CALL = Call("acme", "POST /orders", "k1", Fingerprint(1, bytes(32)))


class World:
    """One attempt on a clock that is driven; the heartbeat beats when told to."""

    def __init__(self, **policy: Any) -> None:
        self.clock = FakeClock()
        self.store = Failing(self.clock)
        self.events: list[Event] = []
        self.guard = Guard(clock=self.clock, hooks=Hooks([self.events.append]))
        self.heartbeat = Heartbeat(self.store, self.guard.ownership, self.clock)
        self.gatherer = Gatherer(self.store)
        self.policy = Policy(**{"lease_s": 30.0, **policy}).settled()
        self.attempt = self.begin()

    def begin(self) -> Attempt:
        decision = run(self.guard.begin(CALL, self.policy), self.gatherer.ask)
        assert isinstance(decision, Execute)
        return decision.attempt

    def beat(self) -> None:
        self.heartbeat._beat(StoreConnection(self.store), [self.attempt])

    def lost(self) -> bool:
        return self.attempt.lost

    def record(self) -> Record:
        found: Record = self.gatherer.ask(Find(self.attempt.held.id))
        return found


def test_who_has_ended_is_not_kept_until_its_next_renewal() -> None:
    world = World()
    world.heartbeat.add(world.attempt)
    world.heartbeat.drop(world.attempt)
    assert world.heartbeat._schedule.next_at() is None
    world.heartbeat.stop()


def test_no_batch_renews_one_record_twice() -> None:
    """A zombie and its successor in one process: each is renewed in a batch of its own."""
    world, batches = World(), list[int]()
    zombie = world.attempt
    world.clock.advance(31)
    successor = world.begin()

    class Counting(StoreConnection):
        def perform(self, verbs: Any) -> list[Any]:
            batches.append(len(verbs))
            return super().perform(verbs)

    world.heartbeat._beat(Counting(world.store), [zombie, successor])
    world.heartbeat._beat(Counting(world.store), world.heartbeat._schedule.take(1e9))

    assert batches == [1, 1]
    assert zombie.lost
    assert not successor.lost


def test_a_renewal_gives_a_whole_lease() -> None:
    world = World()
    world.clock.advance(20)
    assert world.record().lease_left_s == 10
    world.beat()
    assert world.record().lease_left_s == 30
    assert world.attempt.lease.until == world.clock.monotonic() + 30
    assert not world.lost()


def test_p2_an_attempt_that_was_taken_over_learns_it_and_renews_nothing() -> None:
    world = World()
    world.clock.advance(31)
    heir = world.begin()
    told: list[str] = []
    world.attempt.on_lost(lambda: told.append("lost"))
    world.clock.advance(5)
    world.beat()
    assert world.lost()
    assert told == ["lost"]
    assert world.record().lease_left_s == 25
    assert world.record().token == heir.held.token
    with pytest.raises(LeaseLost, match=rf"/orders key={short_hash(world.attempt.claim.key)} lost"):
        world.attempt.ensure_owned()
    assert [e.reason for e in world.events if isinstance(e, LeaseWasLost)] == ["taken over"]


def test_a_late_renewal_does_not_revive_a_completed_record() -> None:
    world = World()
    finished = run(
        world.guard.ownership.finish(world.attempt, Answer(201), CALL), world.gatherer.ask
    )
    assert isinstance(finished, Stored)
    world.attempt.lease.phase = Phase.RUNNING  # as if the renewal had been sent just before
    world.beat()
    assert world.record().state is State.COMPLETED
    assert world.record().beat == 1


def test_loss_is_signalled_before_the_deadline_when_the_store_does_not_answer() -> None:
    world = World()
    world.store.down = True
    world.clock.advance(20)
    world.beat()
    assert not world.lost()
    world.clock.advance(8)
    world.beat()
    assert world.lost()
    assert world.clock.monotonic() < world.attempt.lease.until


def test_an_outage_is_told_once_and_asked_about_ever_less_often(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once that it is over."""
    monkeypatch.setattr(connection, "QUIET_S", 0.0)
    world, asked_at = World(), list[float]()
    heartbeat, line = world.heartbeat, StoreConnection(world.store)

    def beats(until_s: float) -> None:
        while (at := heartbeat._schedule.next_at()) is not None and at <= until_s:
            world.clock.advance(at - world.clock.monotonic())
            asked_at.append(at)
            heartbeat._beat(line, heartbeat._schedule.take(at))

    started_at = world.clock.monotonic()
    heartbeat._schedule.add(world.attempt, started_at, 10.0)
    world.store.down = True
    beats(started_at + 27.5)
    assert world.lost(), "told in time, although the heartbeat waits longer each time"
    assert len(asked_at) <= 16
    beats(started_at + 127.5)
    assert len(asked_at) <= 16 + 100 / connection.PAUSE_S_MAX
    assert caplog.messages == ["leases cannot be renewed: no answer"]

    world.store.down = False
    beats(started_at + 150)
    assert caplog.messages[1:] == ["leases are renewed again"]
    assert len(heartbeat._schedule._lanes) <= 16, "one for each pause that there is"


def test_what_cannot_be_given_back_is_told_once_and_tried_less_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    attempt, line = world.attempt, StoreConnection(world.store)
    attempt.lease.leftover = Leftover(world.guard.ownership.renewal(attempt), no_effect=False)
    attempt.lease.move(Phase.LINGERING)
    world.heartbeat._lingering.add(attempt)
    world.store.down, tries = True, world.store.tries
    for _ in range(1000):
        world.clock.advance(LINGER_S)
        world.heartbeat._end_lingering(line)
    assert world.store.tries - tries <= 20
    assert caplog.messages == ["leases cannot be renewed: no answer"]


def test_p11_a_handler_that_hangs_is_not_renewed_for_ever() -> None:
    world = World(run_s_max=60)
    for _ in range(5):
        world.clock.advance(10)
        world.beat()
    assert not world.lost()
    world.clock.advance(10)
    world.beat()
    assert world.lost()
    assert world.record().lease_left_s == 20


def test_an_attempt_that_has_ended_is_neither_renewed_nor_told() -> None:
    world = World()
    world.attempt.lease.move(Phase.ENDED)
    world.clock.advance(20)
    world.beat()
    assert world.record().beat == 0
    assert not world.lost()


def test_p1_what_is_left_running_while_others_are_looked_at_does_not_end_the_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    others = [World().attempt for _ in range(10)]

    def still_running(attempt: Attempt) -> bool:
        for other in others:
            world.heartbeat.linger(other)
        return True

    monkeypatch.setattr(Attempt, "still_running", still_running)
    world.heartbeat.linger(world.attempt)
    world.heartbeat._end_lingering(StoreConnection(world.store))
    assert len(world.heartbeat._lingering) == 11
    world.heartbeat._lingering.clear()
    world.heartbeat._schedule = RenewalSchedule()
    world.heartbeat.stop()


class TestSchedule:
    def test_who_is_due_first_comes_first(self) -> None:
        schedule, [a, b, c] = RenewalSchedule(), [World().attempt for _ in range(3)]
        schedule.add(a, 0.0, 10.0)
        schedule.add(b, 1.0, 2.0)
        schedule.add(c, 2.0, 10.0)
        assert schedule.next_at() == 3.0
        assert schedule.take(2.9) == []
        assert schedule.take(11.0) == [a, b]
        assert schedule.next_at() == 12.0

    def test_who_has_ended_is_forgotten(self) -> None:
        schedule, attempt = RenewalSchedule(), World().attempt
        schedule.add(attempt, 0.0, 10.0)
        schedule.drop(attempt)
        schedule.drop(attempt)
        assert schedule.next_at() is None

    def test_a_batch_is_bounded(self) -> None:
        schedule, attempts = RenewalSchedule(), [World().attempt for _ in range(5)]
        for attempt in attempts:
            schedule.add(attempt, 0.0, 1.0)
        assert schedule.take(2.0, limit=3) == attempts[:3]
        assert schedule.take(2.0, limit=3) == attempts[3:]


@pytest.fixture
def renewals() -> Iterator[threading.Semaphore]:
    done = threading.Semaphore(0)
    probes.arm("after_renew", done.release)
    yield done
    probes.disarm()


def test_the_thread_renews_by_itself_and_stops_when_told(renewals: threading.Semaphore) -> None:
    store, guard = MemoryStore(), Guard()
    heartbeat, gatherer = Heartbeat(store, guard.ownership), Gatherer(store)
    policy = Policy(lease_s=0.3).settled()
    decision = run(guard.begin(CALL, policy), gatherer.ask)
    assert isinstance(decision, Execute)
    heartbeat.add(decision.attempt)
    started = SystemClock().monotonic()
    for _ in range(5):
        assert renewals.acquire(timeout=5)
    assert SystemClock().monotonic() - started > 0.3
    found: Record = gatherer.ask(Find(decision.attempt.held.id))
    assert found.beat >= 5
    assert not decision.attempt.lost
    thread = heartbeat._thread
    heartbeat.drop(decision.attempt)
    heartbeat.stop()
    assert thread is not None
    assert not thread.is_alive()


def running(store: MemoryStore, guard: Guard, key: str, **policy: Any) -> Attempt:
    call = dataclasses.replace(CALL, key=key)
    settled = Policy(**policy).settled()
    decision = run(guard.begin(call, settled), Gatherer(store).ask)
    assert isinstance(decision, Execute)
    return decision.attempt


class Unreadable(MemoryStore):
    """Fails for every batch that holds one certain record."""

    bad = b""

    def perform(self, verbs: Any) -> Any:
        if any(verb.id == self.bad for verb in verbs):
            raise ValueError("a record that this release cannot read")
        return (yield from super().perform(verbs))


def test_one_record_that_cannot_be_renewed_costs_no_other_its_lease() -> None:
    clock = FakeClock()
    store, guard = Unreadable(clock), Guard(clock=clock)
    heartbeat = Heartbeat(store, guard.ownership, clock)
    bad, healthy = (running(store, guard, key) for key in ("bad", "healthy"))
    store.bad = bad.held.id
    clock.advance(10)
    heartbeat._beat(StoreConnection(store), [bad, healthy])
    assert healthy.lease.until == clock.monotonic() + healthy.lease_s
    assert bad.lease.until < healthy.lease.until
    assert set(heartbeat._schedule.take(clock.monotonic() + 100)) == {bad, healthy}


@pytest.mark.parametrize("error", [RuntimeError("the event loop is closed"), SystemExit(1)])
def test_a_listener_that_fails_costs_nobody_else_the_signal(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    world, told = World(run_s_max=60), []

    def broken() -> None:
        raise error

    world.attempt.on_lost(broken)
    world.attempt.on_lost(lambda: told.append(True))
    world.clock.advance(60)
    world.beat()
    assert told == [True]
    assert "a listener failed" in caplog.text


def test_who_listens_after_the_loss_is_told_at_once() -> None:
    world, told = World(run_s_max=60), []
    world.clock.advance(60)
    world.beat()
    world.attempt.on_lost(lambda: told.append(True))
    assert told == [True]


def test_a_loss_is_told_once_and_not_after_the_end() -> None:
    world, told = World(run_s_max=60), []
    world.attempt.on_lost(lambda: told.append(True))
    world.clock.advance(60)
    world.beat()
    world.beat()
    assert told == [True]
    assert [type(event) for event in world.events].count(LeaseWasLost) == 1
    ended = World(run_s_max=60)
    ended.attempt.lease.move(Phase.ENDED)
    assert not ended.attempt.mark_lost()
    assert not ended.lost()


def test_who_listens_while_the_loss_is_signalled_is_told_once() -> None:
    attempt, told = World().attempt, []

    class Meanwhile(list[Callable[[], None]]):
        def append(self, listener: Callable[[], None]) -> None:
            super().append(listener)
            assert attempt.mark_lost()  # by the heartbeat, in its own thread

    attempt._listeners = Meanwhile()
    attempt.on_lost(lambda: told.append(True))
    assert told == [True]


def test_a_hook_that_would_end_the_process_does_not_end_the_heartbeat(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(run_s_max=60)

    def leave(event: Event) -> None:
        raise SystemExit(1)

    world.guard.reports.hooks = Hooks([leave, world.events.append])
    world.clock.advance(60)
    world.beat()
    assert isinstance(world.events[-1], LeaseWasLost)
    assert "failed" in caplog.text


def test_stopping_ends_although_another_attempt_begins_meanwhile() -> None:
    store, guard = MemoryStore(), Guard()
    heartbeat = Heartbeat(store, guard.ownership)
    beating, go_on = threading.Event(), threading.Event()

    def pause() -> None:
        beating.set()
        go_on.wait(10)

    probes.arm("before_renew", pause)
    try:
        heartbeat.add(running(store, guard, "first", lease_s=0.03))
        assert beating.wait(10)
        first = heartbeat._thread
        assert first is not None
        stopping = threading.Thread(target=heartbeat.stop, daemon=True)
        stopping.start()
        while heartbeat._thread is not None:
            stopping.join(0.001)
        heartbeat.add(running(store, guard, "second"))
    finally:
        probes.disarm()
        go_on.set()
    stopping.join(10)
    assert not stopping.is_alive()
    first.join(10)
    assert not first.is_alive(), "another renews now"
    heartbeat.stop()


def test_p6_stopping_leaves_nobody_without_renewals_who_still_runs() -> None:
    """A process that ends waits for its threads: nobody may take over meanwhile what they do."""
    store, guard = MemoryStore(), Guard()
    heartbeat = Heartbeat(store, guard.ownership)
    renewals = threading.Semaphore(0)
    probes.arm("after_renew", renewals.release)
    try:
        attempt = running(store, guard, "slow", lease_s=0.3)
        heartbeat.add(attempt)
        thread = heartbeat._thread
        heartbeat.stop()
        for _ in range(3):
            assert renewals.acquire(timeout=10)
        assert not attempt.lost
        heartbeat.drop(attempt)
        with heartbeat._condition:
            heartbeat._condition.notify_all()
        assert thread is not None
        thread.join(10)
        assert not thread.is_alive()
    finally:
        probes.disarm()


def test_p6_an_attempt_that_is_let_go_while_it_is_renewed_lapses() -> None:
    """One that was cut off is left to lapse: the renewal that was under way then is its last."""
    world = World(recovery="block")

    class Crossing(StoreConnection):
        def perform(self, verbs: Any) -> Any:
            outcomes = super().perform(verbs)
            world.heartbeat.drop(world.attempt)
            return outcomes

    world.heartbeat._beat(Crossing(world.store), [world.attempt])
    assert world.heartbeat._schedule.next_at() is None
    world.beat()
    assert world.record().beat == 1
