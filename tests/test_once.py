"""`@once`: a function runs once per key; its callers get its result or are told why not."""

from __future__ import annotations

import asyncio
import enum
import json
import multiprocessing
import os
import pickle
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import oncekey
from oncekey import (
    Answer,
    InFlight,
    Mismatch,
    Misuse,
    NotKept,
    Policy,
    Refusal,
    Runtime,
    StoreUnavailable,
    Unknown,
    once,
)
from oncekey.clock import FakeClock
from oncekey.core.key import record_id
from oncekey.core.op import Op
from oncekey.core.policy import Learned
from oncekey.core.record import Record, State
from oncekey.core.verbs import Find, Insert, Requested, Verb
from oncekey.recoverer import Ending, Recoverer
from oncekey.stores.memory import MemoryStore
from tests.stores.unreliable import Unreachable

END_S_MAX = 20.0


class World:
    """A runtime on a store whose clock is in the test's hands, and the runs that it counts."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.runtime = Runtime(self.store, clock=self.clock)
        self.runs: list[Any] = []

    def once(self, function: Callable[..., Any], key: Any = "{x}", **settings: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.runs.append(args)
            return function(*args, **kwargs)

        counted.__wrapped__ = function  # type: ignore[attr-defined]
        return once(self.runtime, key=key, name="f", **settings)(counted)

    def look(self, key: str, tenant: str = "single") -> Record | None:
        record: Record | None = self.runtime.gatherer.ask(Find(record_id(tenant, "f", key)))
        return record

    @contextmanager
    def death(self) -> Iterator[None]:
        """Whoever is called within dies before the function runs, and its lease runs out."""

        def die() -> None:
            raise Death

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.runtime, "ports", die)
            patch.setattr(self.runtime, "ports_sync", die)
            with pytest.raises(Death):
                yield
        self.clock.advance(31)


class Death(BaseException):
    """Nothing is cleaned up."""


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.runtime.close()


# ------------------------------------------------------------------------------ one run, one result


def test_it_runs_once_and_every_call_gets_the_result(world: World) -> None:
    pay = world.once(lambda x: {"paid": x, "run": len(world.runs)})
    assert [pay("a"), pay("a"), pay("b")] == [
        {"paid": "a", "run": 1},
        {"paid": "a", "run": 1},
        {"paid": "b", "run": 2},
    ]


async def test_async_functions_too(world: World) -> None:
    @once(world.runtime, key="{x}")
    async def pay(x: str) -> int:
        await asyncio.sleep(0)
        world.runs.append(x)
        return len(world.runs)

    assert [await pay("a"), await pay("a"), await pay("b")] == [1, 1, 2]
    assert asyncio.iscoroutinefunction(pay)


def test_the_first_caller_too_gets_it_as_json_gives_it_back(world: World) -> None:
    pay = world.once(lambda x: (1, {2: "two"}))
    assert pay("a") == pay("a") == [1, {"2": "two"}]


@pytest.mark.parametrize("result", [None, 0, "", [], False])
def test_nothing_is_a_result_too(world: World, result: object) -> None:
    nothing = world.once(lambda x: result)
    assert nothing("a") == nothing("a") == result
    assert len(world.runs) == 1


def test_calls_are_told_apart_by_value_not_by_the_way_they_are_written(world: World) -> None:
    pay = world.once(lambda x, amount=1, *rest, **more: len(world.runs))
    assert pay("a") == pay("a", 1) == pay(x="a") == pay(amount=1, x="a") == 1


def test_methods_are_functions(world: World) -> None:
    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

        @once(world.runtime, key="{self.name}/{x}")
        def pay(self, x: str) -> str:
            world.runs.append(x)
            return f"{self.name} {x}"

        @classmethod
        @once(world.runtime, key="{x}")
        def count(cls, x: str) -> str:
            return cls.__name__

    assert [Shop("n").pay("a"), Shop("n").pay("a"), Shop("m").pay("a")] == ["n a", "n a", "m a"]
    assert len(world.runs) == 2
    assert Shop.count("a") == "Shop"


def test_p5_tenants_do_not_meet(world: World) -> None:
    pay = world.once(lambda x, account: account, tenant="{account}")
    assert [pay("a", "acme"), pay("a", "umbrella")] == ["acme", "umbrella"]
    assert world.look("a", "acme")
    assert world.look("a") is None


def test_operations_do_not_meet(world: World) -> None:
    one = once(world.runtime, key="{x}", name="one")(lambda x: "one")
    two = once(world.runtime, key="{x}", name="two")(lambda x: "two")
    assert [one("a"), two("a")] == ["one", "two"]


def test_two_functions_of_one_name_are_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """What the second is called for would never be done: it gets the first one's results."""

    def made(kind: str) -> Any:
        @once(world.runtime, key="{x}")
        def work(x: str) -> str:
            return f"{kind} {x}"

        return work

    made("nobody can call this one any more")
    charge = made("charge")
    assert "another function" not in caplog.text

    refund = made("refund")
    assert [charge("a"), refund("a")] == ["charge a", "charge a"]
    assert f"{__name__}.test_two_functions_of_one_name_are_told.<locals>.made" in caplog.text
    assert "give each a name=…" in caplog.text


def test_the_operation_is_named_as_the_function(world: World) -> None:
    @once(world.runtime, key="{x}")
    def pay(x: str) -> str:
        return oncekey.current().operation

    assert pay("a") == f"{__name__}.test_the_operation_is_named_as_the_function.<locals>.pay"


def test_long_and_strange_names_become_keys(world: World) -> None:
    pay = world.once(lambda x: len(world.runs))
    assert [pay("ü" * 300), pay("ü" * 300), pay("ü" * 301)] == [1, 1, 2]


# ----------------------------------------------------------------------------------- refusals


@dataclass
class Order:
    id: str
    amount: int


def test_p5_a_key_used_with_other_arguments_is_a_mismatch(world: World) -> None:
    pay = world.once(lambda x, amount: amount, policy=Policy(field_digests=True))
    pay("a", 1)
    with pytest.raises(Mismatch, match="differ: amount") as refused:
        pay("a", 2)
    assert refused.value.problem.fields == ("amount",)
    assert not refused.value.retryable
    assert len(world.runs) == 1


def test_p5_objects_are_compared_by_their_content(world: World) -> None:
    pay = world.once(lambda order: order.amount, "{order.id}")
    assert pay(Order("a", 1)) == pay(Order("a", 1)) == 1
    with pytest.raises(Mismatch):
        pay(Order("a", 2))


def test_what_makes_calls_the_same_may_be_said(world: World) -> None:
    pay = world.once(lambda x, amount, now: amount, fingerprint=lambda amount: amount)
    assert pay("a", 1, now=1) == pay("a", 1, now=2) == 1
    with pytest.raises(Mismatch):
        pay("a", 2, now=1)


def test_a_call_while_the_first_runs_is_refused_and_says_when_to_come_back(world: World) -> None:
    refusals: list[InFlight] = []

    def pay(x: str) -> str:
        with pytest.raises(InFlight) as refused:
            guarded(x)
        refusals.append(refused.value)
        return "paid"

    guarded = world.once(pay)
    assert guarded("a") == "paid"
    assert refusals[0].retryable
    assert refusals[0].retry_after_s == 1.0


def test_or_waits_for_it_by_policy() -> None:
    begun, end = threading.Event(), threading.Event()
    results: list[str] = []
    with Runtime("memory://") as runtime:

        @once(runtime, key="{x}", policy=Policy(in_flight="wait", wait_s=END_S_MAX))
        def pay(x: str) -> str:
            begun.set()
            assert end.wait(END_S_MAX)
            return "paid"

        callers = [threading.Thread(target=lambda: results.append(pay("a"))) for _ in range(3)]
        for caller in callers:
            caller.start()
        assert begun.wait(END_S_MAX)
        end.set()
        for caller in callers:
            caller.join(END_S_MAX)
    assert results == ["paid"] * 3


def test_p6_after_a_death_the_next_call_runs_again(world: World) -> None:
    pay = world.once(lambda x: oncekey.current().lapses)
    with world.death():
        pay("a")
    assert pay("a") == 1


def test_or_nobody_knows_how_it_ended(world: World) -> None:
    pay = world.once(lambda x: "paid", policy=Policy(recovery="block"))
    with world.death():
        pay("a")
    with pytest.raises(Unknown, match="nobody knows"):
        pay("a")
    assert world.runs == []


@pytest.mark.parametrize(
    ("learned", "gives"),
    [
        (Answer(200, (), b'"learned"'), "learned"),
        (Learned.NOT_DONE, "ran"),
        (Learned.UNKNOWN, Unknown),
        (ValueError("cannot tell"), Refusal),
    ],
    ids=lambda value: str(getattr(value, "name", type(value).__name__)),
)
def test_or_the_application_is_asked(world: World, learned: Any, gives: Any) -> None:
    def find_out(attempt: oncekey.Attempt) -> Any:
        assert attempt is oncekey.current()
        if isinstance(learned, Exception):
            raise learned
        return learned

    pay = world.once(lambda x: "ran", policy=Policy(recovery="ask", ask=find_out))
    with world.death():
        pay("a")
    if isinstance(gives, str):
        assert pay("a") == pay("a") == gives
        return
    with pytest.raises(gives):
        pay("a")
    assert world.runs == []


def test_p7_without_a_store_nothing_runs(world: World) -> None:
    runtime = Runtime(Unreachable())

    @once(runtime, key="{x}")
    def pay(x: str) -> None:
        world.runs.append(x)

    with pytest.raises(StoreUnavailable, match="was not run") as failed:
        pay("a")
    assert not failed.value.sent
    assert world.runs == []
    runtime.close()


async def test_a_store_that_is_down_for_async_callers(world: World) -> None:
    async with Runtime(Unreachable()) as runtime:

        @once(runtime, key="{x}", policy=Policy(store_down="run"))
        async def unprotected(x: str) -> Any:
            assert oncekey.current_or_none() is None
            return (x,)

        @once(runtime, key="{x}")
        async def pay(x: str) -> None:
            world.runs.append(x)

        with pytest.raises(StoreUnavailable):
            await pay("a")
        assert await unprotected("a") == ["a"]
    assert world.runs == []


def test_refusals_survive_pickling(world: World) -> None:
    pay = world.once(lambda x, amount: amount)
    pay("a", 1)
    with pytest.raises(Mismatch) as refused:
        pay("a", 2)
    again = pickle.loads(pickle.dumps(refused.value))  # noqa: S301
    assert (type(again), str(again)) == (Mismatch, str(refused.value))
    assert again.problem == refused.value.problem


# ------------------------------------------------------------------------------- its last word


def test_what_it_raises_is_raised_and_the_next_call_runs(world: World) -> None:
    def pay(x: str) -> str:
        if len(world.runs) == 1:
            raise ConnectionError("no answer")
        return "paid"

    guarded = world.once(pay)
    with pytest.raises(ConnectionError, match="no answer"):
        guarded("a")
    with pytest.raises(Mismatch):
        once(world.runtime, key="{x}", name="f")(lambda x, y: 1)("a", 2)
    assert guarded("a") == "paid"


def test_no_effect_frees_the_key(world: World) -> None:
    def pay(x: str, amount: int) -> str:
        if amount < 0:
            oncekey.current().no_effect()
            raise ValueError("nothing to pay")
        return "paid"

    guarded = world.once(pay)
    with pytest.raises(ValueError, match="nothing to pay"):
        guarded("a", -1)
    assert guarded("a", 1) == "paid"


def test_what_is_transient_is_given_and_not_kept(world: World) -> None:
    def look(x: str) -> int:
        if len(world.runs) == 1:
            oncekey.current().transient()
        return len(world.runs)

    guarded = world.once(look)
    assert [guarded("a"), guarded("a"), guarded("a")] == [1, 2, 2]


def test_a_function_that_is_interrupted_did_not_say_that_it_failed(world: World) -> None:
    def pay(x: str) -> None:
        raise KeyboardInterrupt

    for recovery, state in (("rerun", State.RELEASED), ("block", State.RUNNING)):
        guarded = world.once(pay, policy=Policy(recovery=recovery))  # type: ignore[arg-type]
        with pytest.raises(KeyboardInterrupt):
            guarded(recovery)
        found = world.look(recovery)
        assert found
        assert found.state is state


def test_p6_a_signal_before_it_began_leaves_nobody_who_renews_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = world.runtime.heartbeat.add

    def interrupted(attempt: oncekey.Attempt) -> None:
        add(attempt)
        raise KeyboardInterrupt

    pay = world.once(lambda x: x)
    with monkeypatch.context() as patch:
        patch.setattr(world.runtime.heartbeat, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pay("a")
    assert pay("a") == "a"


def test_a_result_that_cannot_be_kept_does_not_make_it_run_again(world: World) -> None:
    pay = world.once(lambda x: object())
    with pytest.raises(Misuse, match="f returned what JSON cannot keep"):
        pay("a")
    with pytest.raises(NotKept, match="will not run again"):
        pay("a")
    assert len(world.runs) == 1


def test_p11_a_result_is_bounded(world: World) -> None:
    pay = world.once(lambda x: "x" * 100, policy=Policy(answer_bytes_max=100))
    with pytest.raises(Misuse, match="102 bytes, more than 100"):
        pay("a")
    with pytest.raises(NotKept):
        pay("a")


# ----------------------------------------------------------------------- what it can ask and do


def test_steps_are_kept_over_attempts(world: World) -> None:
    charges: list[str] = []

    def charge(x: str) -> int:
        charges.append(x)
        return len(charges)

    def pay(x: str) -> list[Any]:
        attempt = oncekey.current()
        charged = attempt.step_sync("charge", charge, x)
        if attempt.attempt == 1:
            raise TimeoutError
        return [charged, attempt.child_key("charge")]

    guarded = world.once(pay)
    with pytest.raises(TimeoutError):
        guarded("a")
    result = guarded("a")
    assert result[0] == 1
    assert charges == ["a"]


async def test_steps_of_async_functions(world: World) -> None:
    @once(world.runtime, key="{x}")
    async def pay(x: str) -> Any:
        first = await oncekey.current().step("one", lambda: "made")
        second = await asyncio.to_thread(oncekey.current().step_sync, "two", lambda: "in a thread")
        return [first, second]

    assert await pay("a") == ["made", "in a thread"]


def test_a_step_that_must_not_be_repeated_makes_it_unknown(world: World) -> None:
    def pay(x: str) -> None:
        def charge() -> None:
            raise Death if oncekey.current().attempt == 1 else AssertionError("charged again")

        oncekey.current().step_sync("charge", charge, at_most_once=True)

    guarded = world.once(pay)
    with pytest.raises(Death):
        guarded("a")
    with pytest.raises(Unknown):
        guarded("a")


def test_guarded_functions_call_each_other(world: World) -> None:
    @once(world.runtime, key="{x}")
    def inner(x: str) -> str:
        return oncekey.current().operation

    @once(world.runtime, key="{x}")
    def outer(x: str) -> list[str]:
        return [inner(x), oncekey.current().operation]

    assert [name.rpartition(".")[2] for name in outer("a")] == ["inner", "outer"]
    assert oncekey.current_or_none() is None


@pytest.mark.parametrize("then", ["returns", "raises", "returns what JSON cannot keep"])
def test_its_result_may_be_recorded_with_its_rows(tmp_path: Path, then: str) -> None:
    file = tmp_path / "shop.db"
    place = f"sqlite:///{file}"
    with Runtime(place) as runtime, closing(sqlite3.connect(file)) as rows:
        rows.execute("CREATE TABLE orders (id TEXT)")

        @once(runtime, key="{x}")
        def order(x: str) -> Any:
            with rows:
                rows.execute("INSERT INTO orders VALUES (?)", (x,))
                oncekey.current().complete_in_sync(rows, 201, {"id": x})
            if then == "raises":
                raise ConnectionError("after the commit")
            return "not this" if then == "returns" else rows

        assert order("a") == order("a") == {"id": "a"}
        assert rows.execute("SELECT count(*) FROM orders").fetchone() == (1,)


def test_a_long_run_is_renewed() -> None:
    with Runtime("memory://") as runtime:

        @once(runtime, key="{x}", name="f", policy=Policy(lease_s=0.1))
        def long(x: str) -> int:
            while (beats := _beats(runtime)) < 4:
                threading.Event().wait(0.005)
            return beats

        assert long("a") >= 4


def _beats(runtime: Runtime) -> int:
    found: Record = runtime.gatherer.ask(Find(record_id("single", "f", "a")))
    return found.beat


# ------------------------------------------------------------------- cancelled, in threads, forked


async def test_cancelling_the_caller_does_not_stop_the_work(world: World) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    @once(world.runtime, key="{x}")
    async def pay(x: str) -> str:
        begun.set()
        await end.wait()
        return "paid"

    caller = asyncio.create_task(pay("a"))
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    with pytest.raises(InFlight):
        await asyncio.wait_for(pay("a"), 5)
    end.set()
    assert await world.runtime.background.drain(END_S_MAX) == 0
    assert await pay("a") == "paid"


async def test_what_fails_after_its_caller_left_is_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    @once(world.runtime, key="{x}")
    async def pay(x: str) -> str:
        begun.set()
        await end.wait()
        raise ConnectionError("no answer")

    caller = asyncio.create_task(pay("a"))
    await begun.wait()
    caller.cancel()
    await asyncio.wait([caller])
    end.set()
    await world.runtime.background.drain(END_S_MAX)
    assert "after its caller had left" in caplog.text
    assert "no answer" in caplog.text


class Slow(MemoryStore):
    """Carries an insert out, and is in no hurry to say so."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.inserted = asyncio.Event()
        self.answers = asyncio.Event()

    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        outcomes = yield from super().perform(verbs)
        if any(isinstance(verb, Insert) for verb in verbs):
            yield "say so"
        return outcomes

    async def aconnect(self) -> Any:
        return self

    async def ask(self, question: Any) -> None:
        self.inserted.set()
        await self.answers.wait()

    async def close(self) -> None: ...


async def test_p7_a_call_cancelled_while_it_begins_forgets_its_claim(world: World) -> None:
    store = Slow(world.clock)
    async with Runtime(store, clock=world.clock) as runtime:

        @once(runtime, key="{x}", name="f")
        async def pay(x: str) -> str:
            return "paid"

        caller = asyncio.create_task(pay("a"))
        await store.inserted.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        store.answers.set()
        await runtime.background.drain(END_S_MAX)
        assert await pay("a") == "paid"


def test_p1_many_threads_one_run(world: World) -> None:
    barrier = threading.Barrier(16)
    outcomes: list[str] = []

    def pay(x: str) -> str:
        return "paid"

    guarded = world.once(pay)

    def call() -> None:
        barrier.wait()
        try:
            outcomes.append(guarded("a"))
        except InFlight:
            outcomes.append("in flight")

    callers = [threading.Thread(target=call) for _ in range(16)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(END_S_MAX)
    assert len(outcomes) == 16
    assert set(outcomes) <= {"paid", "in flight"}
    assert len(world.runs) == 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_p1_forked_workers_share_one_run(tmp_path: Path) -> None:
    """The runtime was used before the fork: its threads and connections are the parent's."""
    ledger = tmp_path / "ledger"
    policy = Policy(in_flight="wait", wait_s=END_S_MAX)
    with Runtime(f"sqlite:///{tmp_path / 'keys.db'}") as runtime:

        @once(runtime, key="{x}", policy=policy)
        def pay(x: str) -> int:
            with open(ledger, "a") as file:
                file.write(f"{x}\n")
            return os.getpid()

        def work() -> None:
            pids.put([pay("a"), pay("a"), pay("before")])

        assert pay("before") == os.getpid()
        fork = multiprocessing.get_context("fork")
        pids = fork.SimpleQueue()
        workers = [fork.Process(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(END_S_MAX)
        assert pay("before") == os.getpid()
        seen = [pids.get() for _ in workers]
    assert len({tuple(one) for one in seen}) == 1
    assert seen[0][0] in [worker.pid for worker in workers]
    assert seen[0][2] == os.getpid()
    assert sorted(ledger.read_text().split()) == ["a", "before"]


# --------------------------------------------------------------------------- without a caller


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_p6_a_call_nobody_comes_back_for_is_finished(world: World, kind: str) -> None:
    def ship(x: str, *, express: bool = False) -> Any:
        attempt = oncekey.current()
        return [x, express, attempt.recovering, attempt.attempt]

    async def ship_async(x: str, *, express: bool = False) -> Any:
        return ship(x, express=express)

    function = ship if kind == "sync" else ship_async
    guarded = once(world.runtime, key="{x}", name="f", policy=Policy(recovery="resume"))(function)
    with world.death():
        await _awaited(guarded("a", express=True))
    endings: list[Ending] = []
    recoverer = Recoverer(
        world.store, clock=world.clock, report=lambda one: endings.append(one.ending)
    )
    await recoverer.round()
    await recoverer.settle()

    assert endings == [Ending.FINISHED]
    found = world.look("a")
    assert found
    assert found.answer
    assert json.loads(found.answer.body or b"") == ["a", True, True, 2]


async def test_p6_a_call_whose_key_cannot_be_made_any_more_becomes_unknown(world: World) -> None:
    """A new release reads another field of what was kept: its error must not be the end of it."""
    deployed = ["id"]
    guarded = world.once(
        lambda x: x, lambda x: x[deployed[-1]], policy=Policy(recovery="resume", lapses_max=1)
    )
    with world.death():
        guarded({"id": "a"})
    deployed.append("number")
    recoverer = Recoverer(world.store, clock=world.clock)
    for _ in range(3):
        await recoverer.round()
        await recoverer.settle()
        world.clock.advance(3600)
    found = world.look("a")
    assert found
    assert found.state is State.UNKNOWN


class Size(enum.StrEnum):
    LARGE = "a"


@pytest.mark.parametrize("x", [("a", 1), [Size.LARGE], {0: "a"}])
async def test_what_json_does_not_give_back_is_not_kept(world: World, x: Any) -> None:
    """Nobody may call it again with something else: it is left to its caller."""
    guarded = world.once(lambda x: x[0], "{x[0]}", policy=Policy(recovery="resume"))
    with world.death():
        guarded(x)
    record = world.look("a")
    assert record
    assert world.runtime.gatherer.ask(Requested(record.id)) is None
    assert guarded(x) == "a"


async def _awaited(result: Any) -> Any:
    return await result if asyncio.iscoroutine(result) else result


# ------------------------------------------------------------------------------------- misuse


def function(x: str) -> None: ...


def generator(x: str) -> Iterator[str]:
    yield x


RUNTIME = Runtime("memory://")


@pytest.mark.parametrize(
    ("decorate", "says"),
    [
        (lambda: once(function), "needs to know where"),  # type: ignore[arg-type]
        (lambda: once("sqlite:///keys.db", key="{x}"), "needs to know where"),  # type: ignore[arg-type]
        (lambda: once(RUNTIME), "needs a key"),
        (lambda: once(RUNTIME, key="")(function), "empty"),
        (lambda: once(RUNTIME, key="pay")(function), "same for every call"),
        (lambda: once(RUNTIME, key="{order}")(function), "wants 'order'"),
        (lambda: once(RUNTIME, key="{x}", tenant="{who}")(function), "tenant='{who}' wants"),
        (lambda: once(RUNTIME, key="{x}", fingerprint=lambda y: y)(function), "wants 'y'"),
        (lambda: once(RUNTIME, key="{x}")(lambda x: x), "has no name"),
        (lambda: once(RUNTIME, key="{x}")(generator), "generator"),
        (lambda: once(RUNTIME, key="{x}")(classmethod(function)), "stands below"),  # type: ignore[arg-type]
        (lambda: once(RUNTIME, key="{x}")(World), "guards functions"),
        (lambda: once(RUNTIME, key="{x}", policy=Policy(atomic=True))(function), "complete_in"),
        (lambda: once(RUNTIME, key="{x}", policy=Policy(scope="tenant"))(function), "another's"),
        (lambda: once(RUNTIME, key="{x}", name=7)(function), "name is a text"),  # type: ignore[arg-type]
    ],
    ids=range(15),
)
def test_what_is_written_wrongly_is_told_at_once(decorate: Callable[[], Any], says: str) -> None:
    with pytest.raises(Misuse, match=says):
        decorate()


@pytest.mark.parametrize("x", [None, "", " ", "null", "undefined", "{x}", ["a"], 1.5, True])
def test_a_call_without_a_key_does_not_run(world: World, x: object) -> None:
    with pytest.raises(Misuse):
        world.once(lambda x: x)(x)
    assert world.runs == []


def test_a_call_with_wrong_arguments_fails_as_ever(world: World) -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        world.once(lambda x: x)()


def test_a_coroutine_from_a_plain_function_is_told(world: World) -> None:
    async def pay(x: str) -> str:
        return "paid"

    with pytest.raises(Misuse, match="coroutine, which did not run"):
        world.once(lambda x: pay(x))("a")
    assert world.look("a").state is State.RELEASED  # type: ignore[union-attr]


def test_whoever_can_run_again_after_a_death_is_named_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    risky = world.once(lambda x: x)
    safe = once(world.runtime, key="{x}", name="safe", policy=Policy(recovery="block"))(function)
    for x in "ab":
        risky(x)
        safe(x)
    assert [message.split(",")[0] for message in caplog.messages] == [
        "if a process dies while it runs f"
    ]


# ------------------------------------------------------------------------------------ the example


def test_the_example_does_as_it_says(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    command = [sys.executable, "-W", "error", "examples/once_transfer.py", "--data", str(tmp_path)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=END_S_MAX)
    first, second, third, other, booked = done.stdout.splitlines()

    assert "does not answer" in first
    assert second.partition(":")[2] == third.partition(":")[2].replace("  ", " ")
    assert "used before" in other
    assert booked.endswith("[('anna', -500), ('ben', 500)]")
    # Not __main__: a worker that imports it has the same name for it.
    operation = "once_transfer.build.<locals>.transfer"
    with Runtime(f"sqlite:///{tmp_path / 'keys.db'}") as runtime:
        assert runtime.gatherer.ask(Find(record_id("single", operation, "t-17")))
