"""E49: one client, very many keys. What a tenant may have kept is limited, and counted for all."""

from __future__ import annotations

import math
from typing import Any

import pytest

from oncekey import Policy, Quota, Runtime, once
from oncekey._core.endings import End
from oncekey._core.fingerprint import Fingerprint
from oncekey._core.op import run
from oncekey._core.problems import Kind
from oncekey._core.quota import OPERATION
from oncekey._core.record import Answer, Record, State
from oncekey._core.verbs import Count, Find, Insert, Scan, Sweep
from oncekey._engine.decisions import Call, Execute, Refuse, Replay
from oncekey._engine.guard import Guard
from oncekey._engine.quotas import READ_S_MAX, READ_S_MIN, TOGETHER
from oncekey._engine.sweeper import Sweeper
from oncekey._system.clock import FakeClock
from oncekey.errors import Refusal
from oncekey.stores.batching import Gatherer
from oncekey.stores.connection import StoreConnection
from oncekey.stores.memory import MemoryStore
from oncekey.stores.sealed.store import SealedStore
from tests.stores.sealed.kit import SECOND, SECRET
from tests.stores.unreliable import Failing

RETENTION_S = 8192.0


def go_on() -> bool:
    return False


class World:
    """A store, and processes on it that do their chores when they are told to."""

    def __init__(self, store: Any = MemoryStore, **quota: int) -> None:
        self.clock = FakeClock(8192.0 * 1000)
        self.store = store(self.clock)
        self.quota = Quota(**quota)
        self.policy = Policy(retention_s=RETENTION_S).settled()

    def process(self) -> Process:
        return Process(self)

    def records(self, tenant: str) -> list[Record]:
        found: list[Record] = Gatherer(self.store).ask(Scan(1000, tenant=tenant))
        return found


class Process:
    def __init__(self, world: World) -> None:
        self.world = world
        self.guard = Guard(clock=world.clock, quota=world.quota)
        self.asked: list[Any] = []

    def drive(self, op: Any) -> Any:
        def ask(question: Any) -> Any:
            self.asked.append(question)
            return Gatherer(self.world.store).ask(question)

        return run(op, ask)

    def begin(self, key: str, tenant: str = "acme") -> Any:
        return self.drive(self.guard.begin(_call(key, tenant), self.world.policy))

    def done(self, key: str, tenant: str = "acme", body: bytes = b"") -> bool:
        """Whether it was let in, and then done."""
        decision = self.begin(key, tenant)
        if isinstance(decision, Refuse):
            assert decision.problem.kind is Kind.OVER_QUOTA
            return False
        answer = Answer(201, (), body)
        self.drive(self.guard.ownership.finish(decision.attempt, answer, _call(key, tenant)))
        return True

    def chore(self) -> None:
        assert self.guard.quotas is not None
        self.guard.quotas.work(StoreConnection(self.world.store), go_on)


def _call(key: str, tenant: str = "acme") -> Call:
    return Call(tenant, "POST /orders", key, Fingerprint(1, bytes(32)))


def admitted(process: Process, count: int, name: str = "k") -> int:
    return sum(process.done(f"{name}{number}") for number in range(count))


# -------------------------------------------------------------------------------- one process


def test_e49_no_more_records_than_the_quota_allows() -> None:
    process = World(records_max=10).process()
    assert admitted(process, 25) == 10


def test_e49_no_more_bytes_than_the_quota_allows() -> None:
    process = World(bytes_max=1000).process()
    assert [process.done(f"k{n}", body=b"x" * 400) for n in range(5)] == [True] * 3 + [False] * 2


def test_e49_headers_are_bytes_too() -> None:
    process = World(bytes_max=10).process()
    decision = process.begin("k1")
    answer = Answer(201, ((b"etag", b"123456"),), b"")
    process.drive(process.guard.ownership.finish(decision.attempt, answer, _call("k1")))
    assert not process.done("k2")


def test_e49_p7_a_refusal_spends_nothing_and_writes_nothing() -> None:
    world = World(records_max=1)
    process = world.process()
    assert process.done("k1")
    process.asked.clear()
    assert not process.done("k2")
    assert not any(isinstance(verb, Insert) for verb in process.asked)
    assert len(world.records("acme")) == 1


def test_e49_retries_of_what_was_begun_are_not_affected() -> None:
    """A client that has too much kept must still be able to learn what became of it."""
    process = World(records_max=2).process()
    process.done("k1")
    failed = process.begin("k2")
    process.drive(process.guard.ownership.conclude(failed.attempt, End.FAILED, None, _call("k2")))
    assert not process.done("k3")
    assert isinstance(process.begin("k1"), Replay)
    assert isinstance(process.begin("k2"), Execute)


def test_what_runs_again_counts_once() -> None:
    """A key that is refused inside the application, and tried again and again, is one record."""
    process = World(records_max=2).process()
    for _ in range(10):
        attempt = process.begin("k1").attempt
        process.drive(process.guard.ownership.conclude(attempt, End.NO_EFFECT, None, _call("k1")))
    assert process.done("k2")
    assert not process.done("k3")


def test_every_tenant_has_its_own() -> None:
    process = World(records_max=1).process()
    assert [process.done("k", tenant) for tenant in ("a", "b", "c")] == [True, True, True]
    assert not process.done("k2", "a")


def test_e49_what_expires_makes_room() -> None:
    world = World(records_max=5)
    process = world.process()
    assert admitted(process, 5) == 5
    process.chore()
    for _ in range(12):  # an eighth of a retention each, and the store is asked again
        world.clock.advance(RETENTION_S / 8)
        process.chore()
    assert admitted(process, 10, "later") == 5


def test_what_starts_over_counts_anew() -> None:
    world = World(records_max=2)
    process = world.process()
    process.done("k1")
    process.chore()
    for _ in range(12):
        world.clock.advance(RETENTION_S / 8)
        process.chore()
    assert [process.done("k1"), process.done("k2"), process.done("k3")] == [True, True, False]


def test_a_record_that_is_expired_and_not_swept_does_not_get_past_a_quota() -> None:
    world = World(records_max=1)
    process = world.process()
    process.done("old")
    world.clock.advance(RETENTION_S)
    process.guard = Guard(clock=world.clock, quota=world.quota)
    assert process.done("new")
    assert not process.done("old")


# ---------------------------------------------------------------------------- several processes


def test_e49_processes_count_for_each_other() -> None:
    world = World(records_max=10)
    first, second = world.process(), world.process()
    assert admitted(first, 8, "first") == 8
    first.chore()
    assert second.done("unheard of: let in, and asked about")
    second.chore()
    assert admitted(second, 5, "second") == 1


def test_what_is_let_in_between_two_looks_is_all_that_passes_the_quota() -> None:
    """Each sees its own at once, and the others' a look later."""
    world = World(records_max=100)
    processes = [world.process() for _ in range(4)]
    let_in = 0
    for turn in range(60):
        for number, process in enumerate(processes):
            let_in += process.done(f"{turn}-{number}")
            process.chore()
    assert 100 <= let_in <= 100 + len(processes)


def test_a_process_that_starts_knows_what_was_kept_before() -> None:
    world = World(records_max=10)
    first = world.process()
    admitted(first, 10)
    first.guard.quotas.finish(StoreConnection(world.store))  # type: ignore[union-attr]
    second = world.process()
    assert second.done("first of all")
    second.chore()
    assert not second.done("second of all")


@pytest.mark.parametrize(("kept_s", "asked_s"), [(RETENTION_S, 60), (60, RETENTION_S)])
def test_retentions_of_other_operations_count_too(kept_s: float, asked_s: float) -> None:
    world = World(records_max=3)
    world.policy = Policy(retention_s=kept_s).settled()
    first, second = world.process(), world.process()
    for guard in (first.guard, second.guard):
        guard.quotas.expect(  # type: ignore[union-attr]
            Policy(retention_s=60, retention_declared_s=(60, RETENTION_S)).settled()
        )
    admitted(first, 3)
    first.chore()
    world.policy = Policy(retention_s=asked_s).settled()
    assert second.done("one")
    second.chore()
    assert not second.done("another")


def test_counts_are_records_that_expire_by_themselves_and_are_not_the_tenants() -> None:
    world = World(records_max=10)
    process = world.process()
    admitted(process, 3)
    process.chore()
    [account] = world.records("oncekey")
    assert (account.operation, account.state) == (OPERATION, State.COMPLETED)
    assert account.replays == 3
    assert {record.tenant for record in world.records("acme")} == {"acme"}
    world.clock.advance(account.expires_in_s)
    Gatherer(world.store).ask(Sweep(100))
    assert sum(Gatherer(world.store).ask(Count()).values()) == 0


def reads(process: Process) -> int:
    """What the chore asks its store for."""
    before = StoreConnection.perform_all
    seen: list[Find] = []

    def noting(line: StoreConnection, verbs: Any) -> list[Any]:
        seen.extend(verb for verb in verbs if isinstance(verb, Find))
        return before(line, verbs)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StoreConnection, "perform_all", noting)
        process.chore()
    return len(seen)


def test_the_store_is_asked_only_with_reason() -> None:
    world = World(records_max=1000)
    process = world.process()
    process.done("k1")
    assert reads(process) > 0
    process.done("k2")
    assert reads(process) == 0
    admitted(process, 130, "many")
    assert reads(process) > 0
    world.clock.advance(READ_S_MAX)
    assert reads(process) > 0


def test_who_is_refused_is_looked_at_again_soon() -> None:
    world = World(records_max=10)
    process = world.process()
    admitted(process, 11)
    assert reads(process) > 0
    world.clock.advance(READ_S_MIN - 1)
    assert reads(process) == 0
    world.clock.advance(1)
    assert reads(process) > 0


def test_all_tenants_are_looked_at_however_many_there_are() -> None:
    process = World(records_max=10).process()
    process.done("k", "one")
    for_one = reads(process)
    for number in range(TOGETHER + 1):
        process.done("k", f"other{number}")
    assert reads(process) == for_one * (TOGETHER + 1)


# ---------------------------------------------------------------------------------- unkindness


@pytest.mark.parametrize("batches", range(5))
def test_a_store_that_fails_meanwhile_loses_no_count(batches: int) -> None:
    world = World(Failing, records_max=10)
    first, second = world.process(), world.process()
    admitted(first, 9)
    world.store.left = batches
    Sweeper(world.store).do(first.guard.quotas, StoreConnection(world.store))  # type: ignore[arg-type]
    world.store.left = math.inf
    first.chore()
    second.done("one")
    second.chore()
    assert not second.done("two")


def test_counts_that_a_store_has_lost_are_made_again() -> None:
    world = World(records_max=10)
    process = world.process()
    process.done("k1")
    process.chore()
    world.store._rows.clear()
    world.clock.advance(READ_S_MAX)
    process.chore()
    process.done("k2")
    process.chore()
    assert [record.replays for record in world.records("oncekey")] == [1]


def test_counts_that_a_lost_secret_sealed_are_nothing_and_hinder_no_others() -> None:
    world = World(records_max=3)
    kept = world.store
    world.store = SealedStore(kept, SECRET)
    first = world.process()
    admitted(first, 2)
    first.chore()
    world.store = SealedStore(kept, [SECOND, SECRET])
    second = world.process()
    assert all(second.done(key, "other") for key in "abc")
    second.chore()
    world.store = SealedStore(kept, SECOND)
    third = world.process()
    assert third.done("d", "other")  # of whom it has not heard
    assert third.done("k2")
    third.chore()
    assert not third.done("e", "other")
    assert third.done("k3")


def test_p11_tenants_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncekey._engine.quotas.TENANTS_MAX", 2)
    process = World(records_max=1).process()
    for tenant in ("a", "b", "c"):
        assert process.done("k1", tenant)
    assert not process.done("k2", "c")
    assert process.done("k2", "a")  # forgotten, so let in and asked about
    process.chore()
    assert not process.done("k3", "a")


# --------------------------------------------------------------------------------- by the name


def test_a_runtime_takes_a_quota_and_keeps_counts_when_it_closes() -> None:
    store = MemoryStore()
    runtime = Runtime(store, quota=Quota(records_max=2))

    @once(runtime, key="{order}", tenant="{account}")
    def pay(order: str, account: str) -> str:
        return order

    assert [pay("1", "acme"), pay("2", "acme"), pay("1", "acme")] == ["1", "2", "1"]
    with pytest.raises(Refusal, match="2 records") as refused:
        pay("3", "acme")
    assert refused.value.retryable
    assert pay("3", "other") == "3"
    runtime.close()
    accounts = Gatherer(store).ask(Scan(10, tenant="oncekey"))
    assert sorted(account.replays for account in accounts) == [1, 2]
