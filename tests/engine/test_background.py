"""What goes on when its caller is gone, and within which bounds."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from oncekey import Runtime
from oncekey._engine import background
from oncekey.errors import StoreUnfit


def test_p11_threads_that_forget_lost_claims_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "FORGETS_MAX", 2)
    runtime, go_on = Runtime("memory://"), threading.Event()
    began = threading.Semaphore(0)

    def forget(claim: Any) -> Iterator[Any]:
        began.release()
        go_on.wait(10)
        yield from ()
        raise StoreUnfit("it is a replica now")

    monkeypatch.setattr(runtime.guard.ownership, "forget", forget)
    lost: Any = object()
    for _ in range(5):
        runtime.background.forget_sync(lost)
    assert began.acquire(timeout=10)
    assert began.acquire(timeout=10)
    forgetting = [each for each in threading.enumerate() if each.name == "oncekey-forget"]
    assert len(forgetting) == 2
    go_on.set()
    for thread in forgetting:
        thread.join(10)
    assert caplog.text.count("it lapses by itself") == 2
    runtime.background.forget_sync(lost)
    assert began.acquire(timeout=10)  # there is room again
    runtime.close()


async def test_p11_tasks_that_forget_lost_claims_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "FORGETS_ASYNC_MAX", 2)
    runtime, forgotten = Runtime("memory://"), []

    def forget(claim: Any) -> Iterator[Any]:
        yield from ()
        forgotten.append(claim)

    monkeypatch.setattr(runtime.guard.ownership, "forget", forget)
    for claim in range(5):
        runtime.background.forget(claim)  # type: ignore[arg-type]
    await runtime.background.drain(10)
    assert forgotten == [0, 1]
    runtime.background.forget(5)  # type: ignore[arg-type]
    await runtime.background.drain(10)
    assert forgotten == [0, 1, 5]  # there is room again


async def test_a_claim_that_cannot_be_forgotten_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = Runtime("memory://")

    def forget(claim: Any) -> Iterator[Any]:
        yield from ()
        raise StoreUnfit("it is a replica now")

    monkeypatch.setattr(runtime.guard.ownership, "forget", forget)
    lost: Any = object()
    runtime.background.forget(lost)
    assert await runtime.background.drain(10) == 0
    assert "it lapses by itself: it is a replica now" in caplog.text


async def test_p11_draining_is_bounded() -> None:
    runtime, end = Runtime("memory://"), asyncio.Event()
    ended = runtime.background.apart(end.wait())
    assert await runtime.background.drain(0.001) == 1
    end.set()
    assert await ended
    assert await runtime.background.drain(10) == 0


async def test_p11_nothing_is_kept_of_work_that_has_ended() -> None:
    """Every request is such work."""
    runtime = Runtime("memory://")
    work = asyncio.sleep(0, "done")
    kept = weakref.ref(work)
    assert await runtime.background.apart(work) == "done"
    del work
    gc.collect()
    assert kept() is None


async def test_work_that_is_cancelled_is_cancelled_for_its_caller() -> None:
    runtime = Runtime("memory://")

    async def cut_off() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await runtime.background.apart(cut_off())


async def test_work_that_exits_ends_its_caller_and_not_the_event_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its own task would stop the loop, with every other request on it."""
    runtime = Runtime("memory://")

    async def exits() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await runtime.background.apart(exits())
    runtime.background.apart(exits()).cancel()  # its caller has left
    assert await runtime.background.drain(10) == 0
    assert "a handler failed after its caller had left" in caplog.text
