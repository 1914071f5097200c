"""`@once`: a function runs once per key; its callers get its result or are told why not."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
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
    Policy,
    Refusal,
    Runtime,
    StoreUnavailable,
    Unknown,
    once,
)
from oncekey._core.key import record_id
from oncekey._core.policy import Learned
from oncekey._core.record import State
from oncekey._core.verbs import Find
from tests.once_world import END_S_MAX, World, world
from tests.stores.unreliable import Unreachable

__all__ = ["world"]


# --------------------------------------------------------------------------- one run, one result


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
    assert inspect.iscoroutinefunction(pay)


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


# -------------------------------------------------------------------------------------- refusals


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


@pytest.mark.parametrize(
    ("learned", "gives"),
    [(Answer(200, (), b'"learned"'), "learned"), (Learned.NOT_DONE, "ran")],
    ids=["an answer", "not done"],
)
async def test_or_the_application_is_asked_and_awaited(
    world: World, learned: Any, gives: str
) -> None:
    async def find_out(attempt: oncekey.Attempt) -> Any:
        return learned

    @once(world.runtime, key="{x}", policy=Policy(recovery="ask", ask=find_out))
    async def pay(x: str) -> str:
        world.runs.append(x)
        return "ran"

    with world.death():
        await pay("a")
    assert await pay("a") == await pay("a") == gives
    assert world.runs == (["a"] if gives == "ran" else [])


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


# ---------------------------------------------------------------------------------------- misuse


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
        (lambda: once(RUNTIME, key="{x}", name="a\0b")(function), "name is a text"),
    ],
    ids=range(16),
)
def test_what_is_written_wrongly_is_told_at_once(decorate: Callable[[], Any], says: str) -> None:
    with pytest.raises(Misuse, match=says):
        decorate()


@pytest.mark.parametrize("tenant", ["a\0b", "\ud800", "x" * 1001])
def test_a_tenant_that_no_store_keeps_is_refused(tenant: str) -> None:
    """Each store refused it in its own words, or with an error of its driver."""
    guarded = once(RUNTIME, key="{x}", tenant=lambda x: tenant, name="f")(function)
    with pytest.raises(Misuse, match="its tenant is longer than 1000 characters, or holds some"):
        guarded("order-17")


@pytest.mark.parametrize("x", [None, "", " ", "null", "undefined", "{x}", ["a"], 1.5, True])
def test_a_call_without_a_key_does_not_run(world: World, x: object) -> None:
    with pytest.raises(Misuse, match=r"^f: "):
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
    told = [text.split(",")[0] for text in caplog.messages if "dies" in text]
    assert told == ["if a process dies while it runs f"]


# ----------------------------------------------------------------------------------- the example


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
