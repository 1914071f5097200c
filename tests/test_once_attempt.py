"""What a function under `@once` can say about its result, ask about its attempt, and do in it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import oncekey
from oncekey import Mismatch, Misuse, NotKept, Policy, Runtime, Unknown, once
from oncekey._core.key import record_id
from oncekey._core.record import Record, State
from oncekey._core.verbs import Find
from oncekey._system import probes
from tests.once_world import Death, World, world

__all__ = ["world"]


# --------------------------------------------------------------------------------- its last word


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


def test_of_a_function_that_is_interrupted_nobody_knows_what_it_did(world: World) -> None:
    def pay(x: str) -> None:
        raise KeyboardInterrupt

    for recovery, state in (("rerun", State.RELEASED), ("block", State.UNKNOWN)):
        guarded = world.once(pay, policy=Policy(recovery=recovery))  # type: ignore[arg-type]
        with pytest.raises(KeyboardInterrupt):
            guarded(recovery)
        found = world.look(recovery)
        assert found
        assert found.state is state


async def test_nor_of_one_that_is_cancelled_within(world: World) -> None:
    @once(world.runtime, key="{x}", name="f", policy=Policy(recovery="block"))
    async def pay(x: str) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await pay("a")
    found = world.look("a")
    assert found
    assert found.state is State.UNKNOWN


def test_p6_a_signal_before_it_began_leaves_nobody_who_renews_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = world.runtime.heartbeat.add

    def interrupted(attempt: oncekey.Attempt) -> None:
        add(attempt)
        raise KeyboardInterrupt

    pay = world.once(lambda x: x, policy=Policy(in_flight="wait", wait_s=30))
    with monkeypatch.context() as patch:
        patch.setattr(world.runtime.heartbeat, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pay("a")
    assert pay("a") == "a"


def test_a_result_that_cannot_be_kept_does_not_make_it_run_again(world: World) -> None:
    pay = world.once(lambda x: object())
    with pytest.raises(Misuse, match=r"f key=[0-9a-f]{12} returned what JSON cannot keep"):
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


# ------------------------------------------------------------------------ what it can ask and do


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


@pytest.mark.anyio
async def test_a_long_run_in_an_event_loop_is_renewed() -> None:
    renewed = threading.Event()
    async with Runtime("memory://") as runtime:

        @once(runtime, key="{x}", policy=Policy(lease_s=1))
        async def long(x: str) -> bool:
            return await asyncio.to_thread(renewed.wait, 20)

        probes.arm("before_renew", renewed.set)
        try:
            assert await long("a")
        finally:
            probes.disarm()


def _beats(runtime: Runtime) -> int:
    found: Record = runtime.gatherer.ask(Find(record_id("single", "f", "a")))
    return found.beat


class Declined(Exception):
    """The bank said no: nothing happened."""


@pytest.mark.parametrize("raised", [TimeoutError, ValueError])
def test_p6_under_block_a_function_that_raised_is_never_run_again(
    world: World, raised: type[Exception]
) -> None:
    def pay(x: str) -> None:
        raise raised

    guarded = world.once(pay, policy=Policy(recovery="block"))
    with pytest.raises(raised) as told:
        guarded("a")
    assert "nobody knows what f key=" in told.value.__notes__[0]
    assert "'a'" not in told.value.__notes__[0], "P12: keys are not shown"
    for _ in range(2):
        with pytest.raises(Unknown, match=r"^f key=[0-9a-f]{12}: "):
            guarded("a")
    assert world.runs == [("a",)]


async def test_p6_nor_is_one_of_an_event_loop(world: World) -> None:
    runs = []

    @once(world.runtime, key="{x}", name="f", policy=Policy(recovery="block"))
    async def pay(x: str) -> None:
        runs.append(x)
        raise TimeoutError

    with pytest.raises(TimeoutError) as told:
        await pay("a")
    assert told.value.__notes__
    with pytest.raises(Unknown):
        await pay("a")
    assert runs == ["a"]


def test_an_exception_that_proves_that_nothing_happened_releases(world: World) -> None:
    def pay(x: str) -> str:
        if len(world.runs) == 1:
            raise Declined
        return "paid"

    guarded = world.once(pay, policy=Policy(recovery="block", no_effect_on=(Declined,)))
    with pytest.raises(Declined):
        guarded("a")
    assert [guarded("a"), guarded("a"), len(world.runs)] == ["paid", "paid", 2]


def test_a_function_can_say_that_nobody_knows(world: World) -> None:
    def pay(x: str) -> str:
        oncekey.current().unknown()
        return "perhaps"

    guarded = world.once(pay)
    assert guarded("a") == "perhaps"
    with pytest.raises(Unknown):
        guarded("a")


def test_p6_under_ask_the_next_call_asks_at_once(world: World) -> None:
    def find_out(attempt: oncekey.Attempt) -> oncekey.Answer:
        return oncekey.Answer(200, (), b'"found"')

    def pay(x: str) -> str:
        raise TimeoutError

    guarded = world.once(pay, policy=Policy(recovery="ask", ask=find_out, lease_s=1000))
    with pytest.raises(TimeoutError) as told:
        guarded("a")
    assert not hasattr(told.value, "__notes__")
    assert [guarded("a"), guarded("a"), len(world.runs)] == ["found", "found", 1]


def test_an_at_most_once_step_that_raised_is_unknown(world: World) -> None:
    def pay(x: str) -> str:
        step = oncekey.current().step_sync
        return step("charge", charge, at_most_once=True)

    def charge() -> str:
        raise TimeoutError

    guarded = world.once(pay)
    with pytest.raises(TimeoutError):
        guarded("a")
    with pytest.raises(Unknown):
        guarded("a")
    assert len(world.runs) == 1
