"""Threads that go on after their handler ended: nobody may run beside them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import anyio.to_thread
import pytest
from asgiref.sync import sync_to_async

import oncekey
from oncekey import InFlight, LeaseLost, Policy, Runtime, once
from oncekey._core.key import record_id
from oncekey._core.record import Record, State
from oncekey._core.verbs import Find
from oncekey._engine.attempt import Attempt
from oncekey.errors import StoreUnavailable
from oncekey.messaging import Busy, Handled, Inbox
from oncekey.stores.memory import MemoryStore

END_S_MAX = 20.0


class Work:
    """What a thread does until it is let go, and what it saw of its attempt meanwhile."""

    def __init__(self) -> None:
        self.began, self.go_on, self.ended = (threading.Event() for _ in range(3))
        self.runs = 0
        self.attempt: Attempt | None = None
        self.owned_at_the_end: bool | None = None

    def __call__(self, attempt: Attempt | None = None) -> str:
        self.runs += 1
        if self.runs > 1:
            return "again"
        self.attempt = attempt or oncekey.current_or_none()
        if attempt is not None:
            attempt.ensure_owned()
        self.began.set()
        assert self.go_on.wait(END_S_MAX)
        if self.attempt is not None:
            self.owned_at_the_end = not self.attempt.lost
        self.ended.set()
        return "done"


class World:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.runtime = Runtime(self.store)
        self.work = Work()

    def record(self, operation: str, key: str) -> Record:
        found: Record = self.runtime.gatherer.ask(Find(record_id("single", operation, key)))
        return found


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.work.go_on.set()
    world.runtime.close()


async def in_asyncio(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)


async def in_executor(work: Callable[[], Any]) -> Any:
    run = functools.partial(contextvars.copy_context().run, work)
    return await asyncio.get_running_loop().run_in_executor(None, run)


async def in_anyio(work: Callable[[], Any]) -> Any:
    return await anyio.to_thread.run_sync(work)


async def in_asgiref(work: Callable[[], Any]) -> Any:
    return await asyncio.shield(asyncio.ensure_future(sync_to_async(work)()))


async def in_a_nested_call(work: Callable[[], Any]) -> Any:
    """The thread runs in the context of another guarded function, called by the first."""
    inner = once(_nested.runtime, key="{x}", name="inner")(lambda x: work())
    return await asyncio.to_thread(inner, "x")


class _nested:
    runtime: Any = None


POOLS = [in_asyncio, in_executor, in_anyio, in_asgiref, in_a_nested_call]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(END_S_MAX):
        while not condition():  # noqa: ASYNC110  (nobody sets an event)
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("recovery", ["rerun", "resume"])
async def test_p1_nobody_runs_beside_a_thread_that_was_left_behind(
    world: World, pool: Any, recovery: Any
) -> None:
    work, _nested.runtime = world.work, world.runtime

    outer: list[Attempt] = []

    @once(world.runtime, key="{x}", name="f", policy=Policy(recovery=recovery, lease_s=0.3))
    async def limited(x: str) -> Any:
        if work.runs:
            return "again"
        outer.append(oncekey.current())
        task = asyncio.ensure_future(pool(work))
        await until(work.began.is_set)
        task.cancel()
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await limited("a")
    await until(lambda: world.record("f", "a").beat >= 4)  # renewed for longer than a lease
    with pytest.raises(InFlight):
        await limited("a")
    assert not outer[0].lost, "it owns its record as long as it runs"
    work.go_on.set()
    await until(lambda: world.record("f", "a").state is State.RELEASED)
    assert work.owned_at_the_end
    await until(lambda: outer[0].lost)
    with pytest.raises(LeaseLost):
        outer[0].ensure_owned()
    assert await limited("a") == "again"


async def test_under_ask_nobody_asks_while_a_thread_still_runs(world: World) -> None:
    work, asked = world.work, []

    def find_out(attempt: Attempt) -> oncekey.Answer:
        asked.append(work.ended.is_set())
        return oncekey.Answer(200, (), b'"found"')

    policy = Policy(recovery="ask", ask=find_out, lease_s=1000)

    @once(world.runtime, key="{x}", name="f", policy=policy)
    async def limited(x: str) -> Any:
        task = asyncio.ensure_future(asyncio.to_thread(work))
        await until(work.began.is_set)
        task.cancel()
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await limited("a")
    with pytest.raises(InFlight):
        await limited("a")
    work.go_on.set()
    await until(lambda: world.record("f", "a").lapsed)
    assert await limited("a") == "found"
    assert asked == [True]


async def test_p11_a_thread_that_hangs_is_not_waited_for_longer_than_run_s_max(
    world: World,
) -> None:
    work = world.work

    @once(world.runtime, key="{x}", name="f", policy=Policy(lease_s=0.3, run_s_max=0.6))
    async def limited(x: str) -> Any:
        if work.runs:
            return "again"
        task = asyncio.ensure_future(asyncio.to_thread(work))
        await until(work.began.is_set)
        task.cancel()
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await limited("a")
    assert work.attempt is not None
    await until(lambda: bool(work.attempt and work.attempt.lost))
    await until(lambda: world.record("f", "a").lapsed)
    assert await limited("a") == "again"
    work.go_on.set()


@pytest.mark.parametrize("how", ["thread", "thread in a copied context", "pool", "another pool"])
def test_a_thread_that_used_the_attempt_is_known(world: World, how: str) -> None:
    work, pool, other = world.work, ThreadPoolExecutor(1), ThreadPool(1)
    pool.submit(int).result()

    @once(world.runtime, key="{x}", name="f")
    def leaves_one_behind(x: str) -> str:
        if work.runs:
            return "again"
        attempt = oncekey.current()
        if how == "thread":
            threading.Thread(target=work, args=(attempt,)).start()
        elif how == "pool":
            pool.submit(work, attempt)
        elif how == "another pool":
            other.apply_async(work, (attempt,))
        else:
            threading.Thread(target=contextvars.copy_context().run, args=(work,)).start()
        assert work.began.wait(END_S_MAX)
        raise TimeoutError

    with pytest.raises(TimeoutError):
        leaves_one_behind("a")
    with pytest.raises(InFlight):
        leaves_one_behind("a")
    work.go_on.set()
    pool.shutdown()
    asyncio.run(until(lambda: world.record("f", "a").state is State.RELEASED))
    assert leaves_one_behind("a") == "again"
    other.terminate()


USES: dict[str, Callable[[Attempt], object]] = {
    "key": lambda attempt: attempt.key,
    "fence": lambda attempt: attempt.fence,
    "child_key": lambda attempt: attempt.child_key("bank"),
    "resource_id": lambda attempt: setattr(attempt, "resource_id", "1"),
    "transient": lambda attempt: attempt.transient(),
    "step_sync": lambda attempt: attempt.step_sync("charge", int),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_any_use_of_the_attempt_makes_a_thread_known(
    world: World, use: Callable[[Attempt], object]
) -> None:
    work = world.work

    def use_and_stay(attempt: Attempt) -> None:
        use(attempt)
        work()

    @once(world.runtime, key="{x}", name="f")
    def leaves_one_behind(x: str) -> None:
        stays = threading.Thread(target=use_and_stay, args=(oncekey.current(),), daemon=True)
        stays.start()
        assert work.began.wait(END_S_MAX)
        raise TimeoutError

    with pytest.raises(TimeoutError):
        leaves_one_behind("a")
    with pytest.raises(InFlight):
        leaves_one_behind("a")
    work.go_on.set()
    asyncio.run(until(lambda: world.record("f", "a").state is State.RELEASED))


def test_a_loop_that_never_ends_counts_by_its_task(world: World) -> None:
    """As one that a blocking program has in a thread, for what it must await."""
    loop, began, go_on = asyncio.new_event_loop(), threading.Event(), threading.Event()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def use_and_stay(attempt: Attempt) -> None:
        attempt.ensure_owned()
        began.set()
        await until(go_on.is_set)

    @once(world.runtime, key="{x}", name="f")
    def waits_too_short(x: str) -> None:
        asyncio.run_coroutine_threadsafe(use_and_stay(oncekey.current()), loop)
        assert began.wait(END_S_MAX)
        raise TimeoutError

    with pytest.raises(TimeoutError):
        waits_too_short("a")
    with pytest.raises(InFlight):
        waits_too_short("a")
    go_on.set()
    asyncio.run(until(lambda: world.record("f", "a").state is State.RELEASED))
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def test_the_inbox_hands_no_message_to_a_second_handler_meanwhile(world: World) -> None:
    inbox, work = Inbox(world.runtime, name="orders"), world.work

    async def ship() -> Any:
        if work.runs:
            return "again"
        task = asyncio.ensure_future(asyncio.to_thread(work))
        await until(work.began.is_set)
        task.cancel()
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await inbox.handle("m1", ship)
    assert isinstance(await inbox.handle("m1", ship), Busy)
    work.go_on.set()
    await until(lambda: world.record("orders", "m1").state is State.RELEASED)
    assert await inbox.handle("m1", ship) == Handled("again")


@pytest.mark.parametrize("pool", POOLS)
async def test_a_thread_that_has_returned_holds_nothing_up(world: World, pool: Any) -> None:
    """Its pool may hold on to its context for a moment longer."""
    _nested.runtime = world.runtime

    @once(world.runtime, key="{x}", name="f")
    async def fails(x: str) -> Any:
        await pool(int)
        raise ValueError

    for n in range(100):
        with pytest.raises(ValueError, match=r"^$"):
            await fails(str(n))
        assert world.record("f", str(n)).state is State.RELEASED


async def test_an_attempt_that_was_released_is_lost_and_nobody_is_alarmed(world: World) -> None:
    attempts, told = list[Attempt](), list[str]()

    @once(world.runtime, key="{x}", name="f")
    async def fails(x: str) -> None:
        attempts.append(oncekey.current())
        attempts[-1].on_lost(lambda: told.append("lost"))
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        await fails("a")
    assert (attempts[0].lost, told) == (True, [])
    with pytest.raises(LeaseLost):
        attempts[0].ensure_owned()


@pytest.mark.parametrize("recovery", ["rerun", "block"])
async def test_an_attempt_whose_answer_was_not_recorded_is_lost(
    world: World, recovery: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left to lapse, and another may run: what its handler left behind must know."""
    attempts = list[Attempt]()

    def down(verbs: Any) -> Any:
        raise StoreUnavailable("down", sent=False)

    @once(world.runtime, key="{x}", name="f", policy=Policy(recovery=recovery, lease_s=0.3))
    async def leaves(x: str) -> str:
        attempts.append(oncekey.current())
        monkeypatch.setattr(world.store, "perform", down)
        return "done"

    with contextlib.suppress(StoreUnavailable):  # what `rerun` tells its caller
        await leaves("a")
    assert len(attempts) == 1
    assert attempts[0].lost
    with pytest.raises(LeaseLost):
        attempts[0].ensure_owned()
