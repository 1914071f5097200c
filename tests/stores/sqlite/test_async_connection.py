"""A SQLite file and event loops: what is answered at once, and what by the thread."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncekey._core import lifecycle
from oncekey._core.op import arun
from oncekey._core.record import Answer, Claim, Record
from oncekey._core.verbs import Done, Find, Found, Insert, Inserted, Peek, Swap, Verb
from oncekey.errors import StoreUnavailable, StoreUnfit
from oncekey.stores.batching import AsyncGatherer
from oncekey.stores.sqlite import async_connection
from oncekey.stores.sqlite import connection as sqlite_connection
from oncekey.stores.sqlite.async_connection import (
    QUICK_IN_A_ROW,
    QUICK_S,
    AsyncSqliteConnection,
    Brief,
    Pace,
)
from oncekey.stores.sqlite.connection import File
from oncekey.stores.sqlite.store import SqliteStore
from oncekey.stores.sqlite.verbs import BRIEF_BYTES_MAX
from tests.stores.sqlite.worker import HOUR_S, claim
from tests.stores.threads import wait_until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


# ------------------------------------------------------------------------------ the thread


_before: list[threading.Thread] = []


@pytest.fixture(autouse=True)
def threads_of_others() -> None:
    """Other tests in this process may have left applications open: their threads do not count."""
    _before[:] = threading.enumerate()


def threads() -> list[threading.Thread]:
    """Those of this test."""
    found = [thread for thread in threading.enumerate() if thread.name == "oncekey-sqlite"]
    return [thread for thread in found if thread not in _before]


def test_closing_ends_the_thread(path: Path) -> None:
    async def main() -> None:
        gatherer = AsyncGatherer(SqliteStore(path))
        assert await gatherer.ask(Insert(claim("order-1"))) == Inserted(1)
        assert len(threads()) == 1
        await gatherer.close()
        assert threads() == []

    asyncio.run(main())


def test_a_connection_that_is_forgotten_with_its_loop_ends_its_thread(path: Path) -> None:
    async def main() -> AsyncGatherer:
        gatherer = AsyncGatherer(SqliteStore(path))
        await gatherer.ask(Insert(claim("order-1")))
        return gatherer

    gatherer = asyncio.run(main())
    [thread] = threads()
    del gatherer
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()


def test_an_answer_for_a_loop_that_is_gone_harms_nobody(path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def question(file: File) -> None:
        begun.set()
        assert go_on.wait(20)

    async def main() -> AsyncSqliteConnection:
        connection = await SqliteStore(path).aconnect()
        task = asyncio.ensure_future(connection.ask(question))
        await asyncio.to_thread(begun.wait, 20)
        task.cancel()
        return connection

    connection = asyncio.run(main())
    [thread] = threads()
    go_on.set()

    async def later() -> None:
        assert await connection.ask(lambda file: "answered") == "answered"
        await connection.close()

    asyncio.run(later())
    assert not thread.is_alive()


def test_p11_a_disk_that_does_not_answer_is_not_waited_for(path: Path) -> None:
    go_on = threading.Event()

    async def main() -> None:
        connection = await SqliteStore(path).aconnect()
        connection._limit_s = 0.02
        with pytest.raises(StoreUnavailable, match="did not answer") as caught:
            await connection.ask(lambda file: go_on.wait(20))
        assert caught.value.sent is True
        await connection.close()

    asyncio.run(main())
    [thread] = threads()
    go_on.set()
    thread.join(20)
    assert not thread.is_alive()


def test_what_is_wrong_with_the_file_is_said_to_async_callers_too(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(StoreUnfit, match="it must be a file"):
            await SqliteStore(tmp_path).aconnect()

    asyncio.run(main())
    assert threads() == []


# --------------------------------------------------------------------------------- at once


def test_pace_is_quick_after_many_quick_commits_until_something_is_slow() -> None:
    pace = Pace()
    for _ in range(QUICK_IN_A_ROW):
        assert not pace.quick
        pace.note(QUICK_S, wrote=True)
    assert pace.quick
    pace.note(QUICK_S * 1.01, wrote=False)
    assert not pace.quick


def test_pace_is_not_quick_because_of_reads() -> None:
    """They never wait for the disk to sync."""
    pace = Pace()
    for _ in range(2 * QUICK_IN_A_ROW):
        pace.note(0.0, wrote=False)
    assert not pace.quick


@pytest.fixture
def asked_in(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads in which the file was asked, on a disk that is always quick."""
    monkeypatch.setattr(async_connection, "QUICK_S", float("inf"))
    return threads_that_call(Brief, "__call__", monkeypatch)


def threads_that_call(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads in which something is called from now on."""
    names: list[str] = []
    real = getattr(owner, name)

    def call(*told: Any) -> Any:
        names.append(threading.current_thread().name)
        return real(*told)

    monkeypatch.setattr(owner, name, call)
    return names


LOOP, THREAD = "MainThread", "oncekey-sqlite"


def play(path: Path, scene: Callable[[AsyncGatherer], Awaitable[None]]) -> None:
    """Play a scene with a store that has answered quickly so far."""

    async def main() -> None:
        gatherer = AsyncGatherer(SqliteStore(path))
        for number in range(QUICK_IN_A_ROW):
            assert await gatherer.ask(Insert(claim(f"before-{number}"))) == Inserted(1)
        try:
            await scene(gatherer)
        finally:
            await gatherer.close()

    asyncio.run(main())


def complete(attempt: Claim, body: bytes = b"paid") -> Swap:
    held = lifecycle.Held(attempt.id, 1, attempt.token)
    return lifecycle.complete(held, Answer(200, (), body), retention_s=HOUR_S)


def test_what_comes_alone_is_answered_in_the_loop_while_answers_are_quick(
    path: Path, asked_in: list[str]
) -> None:
    async def scene(gatherer: AsyncGatherer) -> None:
        assert asked_in == [THREAD] * QUICK_IN_A_ROW
        asked_in.clear()
        attempt = claim("order-1")
        assert await gatherer.ask(Insert(attempt)) == Inserted(1)
        assert await gatherer.ask(complete(attempt)) == Done(1)
        assert isinstance(await gatherer.ask(Insert(claim("order-1"))), Found)
        assert await gatherer.ask(Peek(attempt.id)) is not None
        assert asked_in == [LOOP] * 4

    play(path, scene)


def test_after_a_slow_answer_the_loop_waits_for_the_disk_no_more(
    path: Path, asked_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(gatherer: AsyncGatherer) -> None:
        monkeypatch.setattr(async_connection, "QUICK_S", -1.0)
        asked_in.clear()
        for number in range(3):
            await gatherer.ask(Insert(claim(f"slow-{number}")))
        assert asked_in == [LOOP, THREAD, THREAD]

    play(path, scene)


def test_p11_the_loop_does_not_wait_for_another_writer(
    path: Path, asked_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the other one can only go on when the loop does."""
    waited_in = threads_that_call(time, "sleep", monkeypatch)

    async def scene(gatherer: AsyncGatherer) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            asked_in.clear()
            waiting = asyncio.ensure_future(gatherer.ask(Insert(claim("order-1"))))
            await asyncio.to_thread(wait_until, lambda: THREAD in asked_in)
            other.execute("COMMIT")
            assert await waiting == Inserted(1)
            assert asked_in == [LOOP, THREAD]
            assert LOOP not in waited_in

    play(path, scene)


def test_a_replay_waits_for_no_writer_at_all(path: Path, asked_in: list[str]) -> None:
    async def scene(gatherer: AsyncGatherer) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            asked_in.clear()
            assert isinstance(await gatherer.ask(Insert(claim("before-1"))), Found)
            assert asked_in == [LOOP]

    play(path, scene)


def test_p11_the_loop_makes_no_checkpoint(
    path: Path, asked_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made_in = threads_that_call(File, "_checkpoint", monkeypatch)

    async def scene(gatherer: AsyncGatherer) -> None:
        monkeypatch.setattr(sqlite_connection, "WAL_BYTES", 50_000)
        for number in range(100):
            assert await gatherer.ask(Insert(claim(f"order-{number}"))) == Inserted(1)
        assert LOOP in asked_in
        assert set(made_in) == {THREAD}

    play(path, scene)


def test_a_crowd_shares_its_commits_in_the_thread(path: Path, asked_in: list[str]) -> None:
    async def scene(gatherer: AsyncGatherer) -> None:
        asked_in.clear()
        verbs: list[Verb] = [Insert(claim(f"order-{number}")) for number in range(20)]
        assert await asyncio.gather(*map(gatherer.ask, verbs)) == [Inserted(1)] * 20
        assert asked_in == []

    play(path, scene)


def test_p11_others_have_their_turn_between_retries_of_one_key(
    path: Path, asked_in: list[str]
) -> None:
    """Verbs about one record cannot share a commit: each is alone."""

    async def scene(gatherer: AsyncGatherer) -> None:
        asked_in.clear()
        retries = [gatherer.ask(Insert(claim("before-1"))) for _ in range(20)]
        turns = 0
        while len(asked_in) < len(retries):
            await asyncio.sleep(0)
            turns += 1
        assert asked_in == [LOOP] * len(retries)
        assert turns >= len(retries)
        assert all(isinstance(found, Found) for found in await asyncio.gather(*retries))

    play(path, scene)


@pytest.mark.parametrize(("more", "where"), [(0, [LOOP]), (1, [])], ids=["short", "long"])
def test_a_long_answer_is_written_by_the_thread(
    path: Path, asked_in: list[str], more: int, where: list[str]
) -> None:
    async def scene(gatherer: AsyncGatherer) -> None:
        attempt, body = claim("order-1"), bytes(BRIEF_BYTES_MAX + more)
        await gatherer.ask(Insert(attempt))
        asked_in.clear()
        assert await gatherer.ask(complete(attempt, body)) == Done(1)
        assert asked_in == where
        found = await gatherer.ask(Find(attempt.id))
        assert isinstance(found, Record)
        assert found.answer is not None
        assert found.answer.body == body

    play(path, scene)


def test_that_the_file_was_taken_away_is_noticed_in_the_loop_too(
    path: Path, asked_in: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed_in = threads_that_call(File, "close", monkeypatch)

    async def scene(gatherer: AsyncGatherer) -> None:
        os.rename(path, f"{path}.away")
        asked_in.clear()
        with pytest.raises(StoreUnavailable, match="removed or replaced") as caught:
            await gatherer.ask(Insert(claim("order-1")))
        assert caught.value.sent is False
        assert asked_in == [LOOP]
        assert set(closed_in) == {THREAD}  # which brings back the log, and syncs it
        with pytest.raises(StoreUnfit, match="was removed while it was in use"):
            await gatherer.ask(Insert(claim("order-1")))

    play(path, scene)


def test_a_connection_that_is_in_use_is_not_waited_for_by_the_loop(
    path: Path, asked_in: list[str]
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def long_one(file: File) -> None:
        begun.set()
        assert go_on.wait(20)

    async def main() -> None:
        store = SqliteStore(path)
        connection = await store.aconnect()
        await arun(store.prepare(), connection.ask)
        for number in range(QUICK_IN_A_ROW):
            await arun(store.perform([Insert(claim(f"before-{number}"))]), connection.ask)
        assert await connection.ask(Brief(lambda file: "answered")) == "answered"
        assert asked_in[-1] == LOOP
        asked_in.clear()
        slow = asyncio.ensure_future(connection.ask(long_one))
        await asyncio.to_thread(begun.wait, 20)
        brief = asyncio.ensure_future(connection.ask(Brief(lambda file: "answered")))
        await asyncio.sleep(0)
        go_on.set()
        assert await brief == "answered"
        await slow
        assert asked_in == [THREAD]
        await connection.close()

    asyncio.run(main())
