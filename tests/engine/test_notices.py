"""The amnesia guard: after a store lost records, what may have run before does not run again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oncekey import Policy, Runtime, once, open_store, single_tenant
from oncekey._core.fingerprint import Fingerprint
from oncekey._core.notice import (
    AMNESIA,
    KEYRING,
    NOTICE_ID,
    Amnesia,
    encode_amnesia,
    notice_claim,
    read_notice,
)
from oncekey._core.op import run
from oncekey._core.problems import Kind
from oncekey._core.record import Answer, Record, State
from oncekey._core.reserved_records import reserved_swap
from oncekey._core.verbs import Find, Insert, Scan
from oncekey._engine.decisions import Call, Execute, Refuse, Replay
from oncekey._engine.guard import Guard
from oncekey._engine.notices import LOOK_EVERY_S, Notices
from oncekey._system.clock import FakeClock, SystemClock
from oncekey.client.keys import ulid, uuid4, uuid7
from oncekey.errors import StoreUnavailable, Unknown
from oncekey.stores.base import Store
from oncekey.stores.batching import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.stores.sealed.store import SealedStore
from oncekey.testing.contract.subject import new_token
from oncekey.web.asgi import IdempotencyMiddleware
from tests.stores.sealed.kit import SECOND, SECRET, ask
from tests.web.client import ask as request

HOUR_S = 3600.0


def guard_of(store: Store, guard: Amnesia | None, for_s: float = 24 * HOUR_S) -> None:
    """Raise the guard, or lower it."""
    [found] = ask(store, Find(NOTICE_ID))
    if found is None:
        ask(store, Insert(notice_claim(AMNESIA, new_token(), for_s)))
        [found] = ask(store, Find(NOTICE_ID))
    ask(store, reserved_swap(found, encode_amnesia(guard), new_token(), for_s))


class World:
    """An engine on a store that forgets when it is told to."""

    def __init__(self, **policy: Any) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.gatherer = Gatherer(self.store)
        self.policy = Policy(**policy).settled()
        self.guard = self.process()

    def process(self) -> Guard:
        return Guard(clock=self.clock, notices=Notices(self.clock))

    def begin(self, key: str, **changes: Any) -> Any:
        call = Call("acme", "POST /orders", key, Fingerprint(1, bytes(32)), **changes)
        return run(self.guard.begin(call, self.policy), self.gatherer.ask)

    def finish(self, decision: Any, key: str) -> None:
        call = Call("acme", "POST /orders", key, Fingerprint(1, bytes(32)))
        run(self.guard.ownership.finish(decision.attempt, Answer(201), call), self.gatherer.ask)

    def done(self, key: str) -> None:
        self.finish(self.begin(key), key)

    def lose(self) -> None:
        """All records, as a store that was restored from before they came."""
        self.store._rows.clear()

    def raise_guard(self, *, skew_s: float = 60.0, for_s: float = 24 * HOUR_S) -> None:
        guard_of(self.store, Amnesia(self.clock.wall(), skew_s), for_s)
        self.clock.advance(LOOK_EVERY_S)

    def states(self) -> list[State]:
        found: list[Record] = self.gatherer.ask(Scan(100))
        return [record.state for record in found if record.id != NOTICE_ID]


@pytest.fixture
def world() -> World:
    return World()


def key_at(world: World, make: Callable[[float, bytes], str]) -> str:
    return make(world.clock.wall(), new_token())


@pytest.mark.parametrize("make", [uuid7, ulid, uuid4])
def test_e45_what_may_have_run_before_the_loss_does_not_run_again(
    world: World, make: Callable[[float, bytes], str]
) -> None:
    key = key_at(world, make)
    world.done(key)
    world.lose()
    world.raise_guard()
    for _ in range(2):
        decision = world.begin(key)
        assert isinstance(decision, Refuse)
        assert decision.problem.kind is Kind.OUTCOME_UNKNOWN
        assert world.states() == [State.UNKNOWN]  # for the operator to see and to resolve


def test_without_the_guard_it_would(world: World) -> None:
    world.done("k1")
    world.lose()
    assert isinstance(world.begin("k1"), Execute)


@pytest.mark.parametrize("make", [uuid7, ulid])
def test_a_key_that_was_made_after_the_loss_runs(
    world: World, make: Callable[[float, bytes], str]
) -> None:
    world.raise_guard(skew_s=60.0)
    world.clock.advance(30.0)
    assert isinstance(world.begin(key_at(world, make)), Refuse)  # clocks may differ by so much
    world.clock.advance(31.0)
    assert isinstance(world.begin(key_at(world, make)), Execute)
    assert isinstance(world.begin(key_at(world, uuid4)), Refuse)  # it does not tell


def test_a_key_from_the_future_tells_nothing(world: World) -> None:
    """It only looks like a time."""
    world.raise_guard()
    assert isinstance(world.begin(ulid(world.clock.wall() + 1e6, new_token())), Refuse)


def test_a_client_may_say_when_it_first_sent(world: World) -> None:
    world.raise_guard(skew_s=60.0)
    world.clock.advance(100.0)
    now = world.clock.wall()
    assert isinstance(world.begin("k1", first_sent=now - 90.0), Refuse)
    assert isinstance(world.begin("k2", first_sent=now), Execute)


def test_what_the_store_still_knows_is_answered_as_ever(world: World) -> None:
    world.done("k1")
    world.raise_guard()
    assert isinstance(world.begin("k1"), Replay)


@pytest.mark.parametrize("left", ["released", "lapsed"])
def test_what_was_restored_unfinished_is_not_run_again(world: World, left: str) -> None:
    """It may have been finished after the backup was made."""
    attempt = world.begin("k1").attempt
    if left == "released":
        run(world.guard.ownership.abandon(attempt, no_effect=False), world.gatherer.ask)
    else:
        world.clock.advance(world.policy.lease_s + 1)
    world.raise_guard()
    assert isinstance(world.begin("k1"), Refuse)
    assert world.states() == [State.UNKNOWN]


def test_an_orphan_is_not_taken_up(world: World) -> None:
    world = World(recovery="resume")
    key = "k1"
    call = Call("acme", "POST /orders", key, Fingerprint(1, bytes(32)), request=b"it")
    run(world.guard.begin(call, world.policy), world.gatherer.ask)
    world.clock.advance(world.policy.lease_s + 1)
    world.raise_guard()
    orphan = world.gatherer.ask(Find(world.guard.claim(call, world.policy).id))
    recoverer = world.process()  # another process, which has looked at nothing yet
    op = recoverer.take_up(orphan, call, world.policy, world.clock.monotonic())
    assert run(op, world.gatherer.ask) is None
    assert world.states() == [State.UNKNOWN]


def test_the_guard_is_heeded_in_time_and_ends_by_itself(world: World) -> None:
    assert isinstance(world.begin("k1"), Execute)
    guard_of(world.store, Amnesia(world.clock.wall(), 0.0), for_s=HOUR_S)
    assert isinstance(world.begin("k2"), Execute)  # who runs already looks again after a while
    world.clock.advance(LOOK_EVERY_S)
    assert isinstance(world.begin("k3"), Refuse)
    world.guard = world.process()
    assert isinstance(world.begin("k4"), Refuse)  # who starts looks at once
    world.clock.advance(HOUR_S)
    assert isinstance(world.begin("k5"), Execute)


def test_it_can_be_lowered_and_raised_again(world: World) -> None:
    for _ in range(2):
        world.raise_guard()
        assert isinstance(world.begin(str(new_token())), Refuse)
        guard_of(world.store, None)
        world.clock.advance(LOOK_EVERY_S)
        assert isinstance(world.begin(str(new_token())), Execute)


def test_while_somebody_raises_it_nothing_unknown_runs(world: World) -> None:
    ask(world.store, Insert(notice_claim(AMNESIA, new_token(), HOUR_S)))
    assert isinstance(world.begin(key_at(world, uuid7)), Refuse)


def test_until_the_notice_was_seen_nothing_runs(world: World) -> None:
    """Not even where the store goes down between the look and the claim."""
    down = StoreUnavailable("down", sent=True)

    def no_looks(question: Any) -> Any:
        if question == Find(NOTICE_ID):
            raise down
        return world.gatherer.ask(question) if not hasattr(question, "seconds") else None

    call = Call("acme", "POST /orders", "k1", Fingerprint(1, bytes(32)))
    decision = run(world.guard.begin(call, world.policy), no_looks)
    assert isinstance(decision, Refuse)
    assert world.states() == []


def test_what_stops_one_request_stops_all(world: World) -> None:
    """Not only the one in ten seconds that looks."""
    world.done("k0")
    ask(world.store, Insert(notice_claim(KEYRING, new_token(), HOUR_S)))
    world.clock.advance(LOOK_EVERY_S)
    assert [type(world.begin(f"k{number}")) for number in range(1, 4)] == [Refuse] * 3
    assert world.states() == [State.COMPLETED]
    del world.store._rows[NOTICE_ID]
    assert isinstance(world.begin("k4"), Execute)


def test_after_an_outage_nothing_runs_before_the_notice_was_seen(world: World) -> None:
    """A failover is an outage, and may be a loss."""
    world.done("k0")
    guard_of(world.store, Amnesia(world.clock.wall(), 0.0))
    world.clock.advance(LOOK_EVERY_S)
    call = Call("acme", "POST /orders", "k1", Fingerprint(1, bytes(32)))

    def down(question: Any) -> Any:
        if not hasattr(question, "seconds"):
            raise StoreUnavailable("down", sent=False)

    assert isinstance(run(world.guard.begin(call, world.policy), down), Refuse)
    assert isinstance(world.begin("k2"), Refuse)
    assert world.states().count(State.UNKNOWN) == 1


def test_while_the_notice_is_missed_what_is_known_is_replayed_and_nothing_runs(
    world: World,
) -> None:
    """A tiered store has answers for as long as its database is down."""
    asked: list[Any] = []

    def begin_unseeing(key: str) -> Any:
        def ask(question: Any) -> Any:
            asked.append(question)
            if question == Find(NOTICE_ID):
                raise StoreUnavailable("down", sent=False)
            return world.gatherer.ask(question) if not hasattr(question, "seconds") else None

        call = Call("acme", "POST /orders", key, Fingerprint(1, bytes(32)))
        return run(world.guard.begin(call, world.policy), ask)

    world.done("k0")
    world.clock.advance(LOOK_EVERY_S)
    assert isinstance(begin_unseeing("k0"), Replay)
    asked.clear()
    assert isinstance(begin_unseeing("k0"), Replay)
    assert [type(verb) for verb in asked] == [Insert], "who does not run need not look"
    refused = begin_unseeing("k1")
    assert isinstance(refused, Refuse)
    assert refused.lost_claim is not None
    run(world.guard.ownership.forget(refused.lost_claim), world.gatherer.ask)
    assert sorted(world.states()) == [State.COMPLETED, State.RELEASED]
    guard_of(world.store, Amnesia(world.clock.wall(), 0.0))
    assert isinstance(world.begin("k2"), Refuse), "it was raised meanwhile"
    assert isinstance(world.begin("k0"), Replay)


def test_looking_costs_one_question_now_and_then(world: World) -> None:
    asked: list[Any] = []

    def counting(question: Any) -> Any:
        asked.append(question)
        return world.gatherer.ask(question)

    for number in range(10):
        call = Call("acme", "POST /orders", f"k{number}", Fingerprint(1, bytes(32)))
        run(world.guard.begin(call, world.policy), counting)
    assert len(asked) == 11
    assert asked[0] == Find(NOTICE_ID)


# ---------------------------------------------------------------------------- a whole application


def test_p12_a_process_without_secrets_writes_nothing_beside_sealed_records(tmp_path: Path) -> None:
    """Neither would find what the other wrote: everything would run twice."""
    url, ran = f"sqlite:///{tmp_path / 'keys.db'}", [0]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        ran[0] += 1
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async def requests() -> list[int]:
        statuses = []
        for store in (open_store(url, secrets=SECRET), open_store(url)):
            guarded = IdempotencyMiddleware(app, store=store, tenant=single_tenant)
            statuses.append((await request(guarded, "k1")).status)
            await guarded.close()
        return statuses

    assert asyncio.run(requests()) == [201, 503]
    assert ran == [1]


def test_the_guard_of_a_sealed_store_is_its_own(world: World) -> None:
    store = SealedStore(MemoryStore(), [SECRET])
    with Runtime(store) as runtime:
        pay = once(runtime, key="{order}", name="pay")(_pay)
        assert pay(1) == {"paid": 1}
        guard_of(store, Amnesia(runtime.clock.wall(), 0.0))
    with Runtime(store) as runtime:
        pay = once(runtime, key="{order}", name="pay")(_pay)
        assert pay(1) == {"paid": 1}
        with pytest.raises(Unknown):
            pay(2)


@pytest.mark.parametrize("raised", [True, False])
def test_a_guard_is_understood_although_the_secret_of_its_time_is_gone(raised: bool) -> None:
    """Raised, or lowered a while ago: it outlasts a rotation, and everybody has to read it."""
    kept = MemoryStore()
    before, after = SealedStore(kept, [SECRET]), SealedStore(kept, [SECOND])
    guard_of(before, Amnesia(SystemClock.wall(), 0.0))
    if not raised:
        guard_of(before, None)
    ask(SealedStore(kept, [SECOND, SECRET]), Find(NOTICE_ID))
    with Runtime(after) as runtime:
        pay = once(runtime, key="{order}", name="pay")(_pay)
        with pytest.raises(Unknown) if raised else nullcontext():
            pay(1)
    guard_of(after, None)
    assert read_notice(*ask(before, Find(NOTICE_ID))) is None


def test_p1_processes_of_a_store_that_was_emptied_do_not_work_past_each_other(world: World) -> None:
    """One that goes on by its open connections, and one that starts: neither would find what the
    other runs, for ever.
    """
    old, new = (SealedStore(world.store, [SECRET]) for _ in range(2))
    call = Call("acme", "POST /orders", "k1", Fingerprint(1, bytes(32)))
    guard, gatherer = world.process(), Gatherer(old)
    assert isinstance(run(guard.begin(call, world.policy), gatherer.ask), Execute)
    world.lose()
    world.clock.advance(LOOK_EVERY_S)
    assert isinstance(run(guard.begin(call, world.policy), gatherer.ask), Execute)
    decision = run(world.process().begin(call, world.policy), Gatherer(new).ask)
    assert isinstance(decision, Refuse)
    assert decision.problem.kind is Kind.IN_FLIGHT

    world.lose()
    other = Call("acme", "POST /orders", "k2", Fingerprint(1, bytes(32)))
    starts = SealedStore(world.store, [SECRET])
    assert isinstance(
        run(world.process().begin(other, world.policy), Gatherer(starts).ask), Execute
    )
    world.clock.advance(LOOK_EVERY_S)
    for _ in range(2):
        decision = run(guard.begin(other, world.policy), gatherer.ask)
        assert isinstance(decision, Refuse)
        assert decision.problem.kind is Kind.STORE_UNAVAILABLE


def _pay(order: int) -> dict[str, int]:
    return {"paid": order}


def test_a_notice_of_a_newer_release_stops_this_one(world: World) -> None:
    claim = replace(notice_claim(AMNESIA, new_token(), HOUR_S), operation="oncekey/tomorrow")
    ask(world.store, Insert(claim))
    decision = world.begin("k1")
    assert isinstance(decision, Refuse)
    assert decision.problem.kind is Kind.STORE_UNAVAILABLE
