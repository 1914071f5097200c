"""A recoverer at work: its bounds, its setbacks, how it stops, and where it is embedded."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from oncekey._core.record import State
from oncekey._core.verbs import Due, Find, Requested
from oncekey._engine.recovery import (
    BACKOFF_S_MAX,
    MISSES_MAX,
    SETBACKS_MAX,
    Ending,
    Recoverer,
    Setbacks,
)
from oncekey._system.clock import FakeClock
from oncekey.errors import Misuse, StoreUnavailable, StoreUnfit
from oncekey.stores import connection
from oncekey.stores.connection import QUIET_S
from oncekey.stores.memory import MemoryStore
from tests.orphans import LEASE_S, Shop, service
from tests.stores.unreliable import Failing

# -------------------------------------------------------------------------------- bounds, ends


async def test_p11_so_many_run_at_once() -> None:
    running, most = 0, 0

    class Slow(Shop):
        async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            for _ in range(5):
                await asyncio.sleep(0)
            await super().asgi(scope, receive, send)
            running -= 1

    shop = Slow()
    shopping = service(shop)
    for n in range(12):
        shopping.abandon(f"k{n}")
    await shopping.recover(concurrency=3)

    assert most == 3
    assert len(shop.runs) == 12


def test_p11_setbacks_grow_and_are_bounded() -> None:
    setbacks = Setbacks()
    waits = []
    for _ in range(12):
        setbacks.add(b"id", 0.0, chance=1.0)
        waits.append(next(wait for wait in range(1000) if not setbacks.waits(b"id", float(wait))))
    assert waits[:4] == [2, 4, 8, 16]
    assert waits[-1] == BACKOFF_S_MAX
    for n in range(SETBACKS_MAX):
        setbacks.add(n.to_bytes(4), 0.0, chance=1.0)
    assert len(setbacks) == SETBACKS_MAX
    assert b"id" not in setbacks


async def test_setbacks_do_not_starve_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncekey._engine.recovery.ROWS_MAX", 3)
    shop = Shop(failure=RuntimeError())
    shopping = service(shop)
    recoverer = Recoverer(shopping.store, chance=lambda: 1.0)
    for n in range(3):
        shopping.abandon(f"bad{n}")
    await recoverer.round()
    await recoverer.settle()
    shopping.clock.advance(LEASE_S)
    shop.failure = None
    good = shopping.abandon("good")
    await recoverer.round()
    await recoverer.settle()

    assert shopping.look(good).state is State.COMPLETED


async def test_a_handler_that_runs_is_waited_for_when_it_is_time_to_stop() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Shop):
        async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
            begun.set()
            await go_on.wait()
            await super().asgi(scope, receive, send)

    shopping = service(Slow())
    orphan = shopping.abandon("k1")
    shopping.abandon("k2")
    recoverer = shopping.recoverer(concurrency=1)
    running = asyncio.create_task(recoverer.run())
    await begun.wait()
    recoverer.stop()
    await asyncio.sleep(0)
    go_on.set()

    assert await running == 0
    assert [recovered.ending for recovered in shopping.endings] == [Ending.FINISHED]
    assert shopping.look(orphan).state is State.COMPLETED


async def test_p11_one_that_does_not_end_is_not_waited_for_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun = asyncio.Event()

    class Hung(Shop):
        async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

    shopping = service(Hung())
    orphan = shopping.abandon()
    recoverer = shopping.recoverer(drain_s_max=0.01)
    running = asyncio.create_task(recoverer.run())
    await begun.wait()
    recoverer.stop()

    assert await running == 1
    assert "did not end within 0.01 s" in caplog.text
    assert shopping.look(orphan).state is State.RUNNING


async def test_a_store_that_is_down_is_told_once_and_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Failing()
    store.down = True
    shopping = service(Shop(), store=store)
    recoverer = shopping.recoverer(clock=shopping.clock)
    await recoverer.round()
    await recoverer.round()
    assert caplog.text.count("abandoned operations cannot be looked for: no answer") == 1

    store.down = False
    shopping.clock.advance(QUIET_S)
    await recoverer.round()
    assert caplog.text.count("abandoned operations can be looked for again") == 1
    store.down = True
    await recoverer.round()
    assert caplog.text.count("abandoned operations cannot be looked for: no answer") == 2


async def test_p11_while_its_store_is_down_it_looks_less_and_less_often(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says so once, also where no two errors have the same text."""
    pauses: list[float] = []
    shopping = service(Shop())
    recoverer = shopping.recoverer(every_s=1.0)

    async def ask(_: Any) -> Any:
        raise StoreUnavailable(f"no answer to question {len(pauses)}", sent=False)

    async def wait_for(waiting: Any, timeout_s: float) -> None:
        waiting.close()
        pauses.append(timeout_s)
        if len(pauses) == 6:
            recoverer.stop()
        raise TimeoutError

    monkeypatch.setattr(recoverer._gatherer, "ask", ask)
    monkeypatch.setattr("oncekey._engine.recovery.asyncio.wait_for", wait_for)
    assert await recoverer.run() == 0
    assert pauses == [2.0, 4.0, 5.0, 5.0, 5.0, 5.0]
    assert caplog.text.count("cannot be looked for") == 1


async def test_p6_an_error_that_nobody_foresaw_does_not_end_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a driver's own, while tables are changed under it: the next round must come."""

    looked, again = list[Any](), asyncio.Event()

    class Broken(MemoryStore):
        def perform(self, verbs: Any) -> Any:
            if isinstance(verbs[0], Due):
                looked.append(verbs)
                if len(looked) == 1:
                    raise ValueError("cached plan must not change result type")
                again.set()
            return (yield from super().perform(verbs))

    async with service(Shop(), store=Broken()).recoverer(every_s=0.001), asyncio.timeout(20):
        await again.wait()
    assert "cannot be looked for: cached plan" in caplog.text


async def test_an_outage_is_told_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    class Down(MemoryStore):
        def perform(self, verbs: Any) -> Any:
            if any(isinstance(verb, Requested) for verb in verbs):
                raise StoreUnavailable("it is down", sent=False)
            return (yield from super().perform(verbs))

    shopping = service(Shop(), store=Down(clock := FakeClock()))
    shopping.clock = clock
    shopping.abandon("order-1")
    assert await shopping.recover() == []
    assert "cannot be taken up: it is down" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
async def test_p11_a_store_that_can_only_be_read_is_told_once_and_asked_for_one_at_a_time(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, or without a right: what is abandoned is found and cannot be claimed."""
    monkeypatch.setattr(connection, "QUIET_S", 0.0)
    tried = list[Any]()

    class ReadOnly(MemoryStore):
        is_full = False

        def perform(self, verbs: Any) -> Any:
            if self.is_full and not isinstance(verbs[0], Due | Find | Requested):
                tried.append(verbs[0])
                raise StoreUnfit(f"no room, for the {len(tried)}th time")
            return (yield from super().perform(verbs))

    shop, store = Shop(), ReadOnly(clock := FakeClock())
    shopping = service(shop, kind, store=store)
    shopping.clock = clock
    orphans = [shopping.begin(f"order-{number}", {}) for number in range(20)]
    clock.advance(LEASE_S)
    store.is_full = True
    recoverer = shopping.recoverer(concurrency=1, clock=clock)
    for _ in range(5):
        clock.advance(61.0)  # none of them waits any longer
        await recoverer.round()
        await recoverer.settle()
    assert len(tried) == MISSES_MAX + 5
    [told] = [line for line in caplog.messages if "abandoned" in line]
    assert told == "abandoned operations cannot be taken up: no room, for the 1th time"

    store.is_full = False
    for _ in orphans:
        clock.advance(61.0)
        await recoverer.round()
        await recoverer.settle()
    assert len(shop.runs) == len(orphans)
    assert [line for line in caplog.messages if "taken up again" in line] == [
        "abandoned operations are taken up again"
    ]


async def test_p6_one_that_cannot_be_taken_up_does_not_keep_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(MemoryStore):
        bad: bytes | None = None

        def perform(self, verbs: Any) -> Any:
            if any(isinstance(verb, Requested) and verb.id == self.bad for verb in verbs):
                raise ValueError("nobody foresaw it")
            return (yield from super().perform(verbs))

    shop, clock = Shop(), FakeClock()
    store = Broken(clock)
    shopping = service(shop, store=store)
    shopping.clock = clock
    store.bad = shopping.abandon("bad")
    shopping.abandon("good")
    assert await shopping.recover() == [(Ending.FINISHED, "status 201")]
    assert "was not taken up: nobody foresaw it\nTraceback" in caplog.text
    store.bad = None
    assert await shopping.recover() == [(Ending.FINISHED, "status 201")]
    assert [run["key"] for run in shop.runs] == ["good", "bad"]


async def test_a_store_that_nobody_works_on_is_told(caplog: pytest.LogCaptureFixture) -> None:
    await Recoverer(MemoryStore()).round()

    assert "name it as the middleware does" in caplog.text


def test_misuse_is_told() -> None:
    with pytest.raises(Misuse, match="hand over the store itself"):
        Recoverer("memory://")
    with pytest.raises(Misuse, match="more than 0"):
        Recoverer(MemoryStore(), every_s=0)
    with pytest.raises(Misuse, match="more than 0"):
        Recoverer(MemoryStore(), concurrency=0)
    for name in ("patience_s", "drain_s_max"):
        with pytest.raises(Misuse, match=f"{name}='30': must be a number of seconds"):
            Recoverer(MemoryStore(), **{name: "30"})  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------- embedded


async def test_embedded_in_an_event_loop(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "oncekey")
    finished = asyncio.Event()

    class Known(Shop):
        async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
            await super().asgi(scope, receive, send)
            finished.set()

    shopping = service(Known())
    async with Recoverer(shopping.store, every_s=0.01):
        orphan = shopping.abandon()
        await asyncio.wait_for(finished.wait(), 5)
    assert shopping.look(orphan).state is State.COMPLETED
    assert "was abandoned and is finished now: status 201" in caplog.text


def test_embedded_in_a_thread() -> None:
    finished = threading.Event()

    class Known(Shop):
        def wsgi(self, environ: Any, start_response: Any) -> list[bytes]:
            finished.set()
            return super().wsgi(environ, start_response)

    shopping = service(Known(), "wsgi")
    with Recoverer(shopping.store, every_s=0.01):
        orphan = shopping.abandon()
        assert finished.wait(20)
    assert "oncekey-recoverer" not in {thread.name for thread in threading.enumerate()}
    assert shopping.look(orphan).state is State.COMPLETED


async def test_an_application_of_another_event_loop_is_not_run_in_this_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = Shop()
    shopping = service(shop)
    shopping.edge.runtime.ports()  # it is served here
    orphan = shopping.abandon()

    def elsewhere() -> list[tuple[Ending, str]]:
        return asyncio.run(shopping.recover())

    [(ending, reason)] = await asyncio.to_thread(elsewhere)

    assert ending is Ending.FAILED
    assert "another event loop" in reason
    assert shopping.look(orphan).lapses == 0
    assert shop.runs == []
