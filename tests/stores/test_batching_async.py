"""The gatherer for event loops, driven by a store whose answers are written here."""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections.abc import Coroutine, Generator, Sequence
from typing import Any

import pytest

from oncekey._core import lifecycle
from oncekey._core.lifecycle import Held
from oncekey._core.op import Pause
from oncekey._core.record import Answer, Claim
from oncekey._core.verbs import Done, Find, Insert, Verb
from oncekey.errors import Misuse, StoreUnavailable, StoreUnfit
from oncekey.stores.base import AGAIN
from oncekey.stores.batching import QUEUE_ROWS_MAX, AsyncGatherer
from tests.stores.scripted import Scripted, find, ids

A, B, C, D = map(find, "abcd")


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


def start(gatherer: AsyncGatherer, *verbs: Verb) -> list[asyncio.Task[Any]]:
    async def ask(verb: Verb) -> Any:
        return await gatherer.ask(verb)

    return [asyncio.create_task(ask(verb)) for verb in verbs]


async def gather_all(tasks: Sequence[asyncio.Task[Any]]) -> list[Any]:
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)


async def behind_a(store: Scripted, gatherer: AsyncGatherer) -> list[asyncio.Task[Any]]:
    """A is under way; B, C and D wait for its round trip to end."""
    store.aopen.clear()
    tasks = start(gatherer, A)
    await settle()
    tasks += start(gatherer, B, C, D)
    await settle()
    return tasks


# -------------------------------------------------------------------------------- sharing


async def test_an_idle_store_waits_for_nobody() -> None:
    store = Scripted()
    gatherer = AsyncGatherer(store)
    store.aopen.clear()
    [task] = start(gatherer, A)
    await settle()  # no timer: as soon as the loop turns, the verb is on its way
    assert store.asked == [[A]]
    store.aopen.set()
    assert await task == A.id


async def test_arrivals_during_a_round_trip_share_the_next() -> None:
    store = Scripted()
    gatherer = AsyncGatherer(store)
    tasks = await behind_a(store, gatherer)
    assert store.asked == [[A]]
    store.aopen.set()
    assert await gather_all(tasks) == [b"a", b"b", b"c", b"d"]
    assert store.asked == [[A], [B, C, D]]


async def test_a_task_that_has_ended_when_it_is_made_leaves_nobody_waiting() -> None:
    eager: Any = getattr(asyncio, "eager_task_factory", _eager)
    asyncio.get_running_loop().set_task_factory(eager)
    gatherer = AsyncGatherer(Scripted())
    for verb in (A, B, C):
        assert await asyncio.wait_for(gatherer.ask(verb), 20) == verb.id


def _eager(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **of_task: Any
) -> asyncio.Future[Any]:
    """As that of Python 3.12: what need not wait is done at once."""

    @types.coroutine
    def rest(waits_for: Any) -> Generator[Any, Any, Any]:
        yield waits_for
        return (yield from work)

    try:
        waits_for = work.send(None)
    except StopIteration as end:
        ended = loop.create_future()
        ended.set_result(end.value)
        return ended
    return asyncio.Task(rest(waits_for), loop=loop)


async def test_a_connection_is_prepared_once_and_kept() -> None:
    store = Scripted()
    gatherer = AsyncGatherer(store)
    for _ in range(5):
        await gatherer.ask(A)
    assert (len(store.connections), store.prepared) == (1, 1)


async def test_each_group_travels_on_a_connection_of_its_own() -> None:
    """A renewal does not wait for a round trip that is stuck with something else."""
    store = Scripted()
    store.group_of = lambda verb: "quick" if verb == D else "slow"
    gatherer = AsyncGatherer(store)
    tasks = await behind_a(store, gatherer)
    assert store.asked == [[A], [D]]
    assert len(store.connections) == 2
    store.aopen.set()
    assert await gather_all(tasks) == [b"a", b"b", b"c", b"d"]


async def test_a_pause_is_only_time() -> None:
    store = Scripted()
    assert await AsyncGatherer(store).ask(Pause(0.0)) is None
    assert store.connections == []


async def test_a_round_trip_does_not_run_in_the_context_of_whoever_asked_first() -> None:
    """It serves everybody: a request id or a trace of the first must not stick to it."""
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="nobody")
    seen = []

    def answer(verbs: Sequence[Verb]) -> list[Any]:
        seen.append(request.get())
        return ids(verbs)

    gatherer = AsyncGatherer(Scripted(answer))
    request.set("first")
    await gatherer.ask(A)
    assert seen == ["nobody"]


# -------------------------------------------------------------------------------- failing


async def test_an_unavailable_store_is_told_to_every_member_and_dropped() -> None:
    store = Scripted()
    gatherer = AsyncGatherer(store)
    cause = OSError("reset by peer")

    def fail(verbs: Sequence[Verb]) -> list[Any]:
        if A in verbs:
            return ids(verbs)
        raise StoreUnavailable("gone", sent=True) from cause

    store.answer = fail
    tasks = await behind_a(store, gatherer)
    store.aopen.set()
    first, *errors = await gather_all(tasks)
    assert first == b"a"
    assert [(type(e), str(e), e.sent) for e in errors] == [(StoreUnavailable, "gone", True)] * 3
    assert len({id(error) for error in errors}) == 3
    assert [error.__cause__ for error in errors] == [cause] * 3
    assert store.closed == [True]

    store.answer = ids
    assert await gatherer.ask(B) == b"b"
    assert (store.closed, store.prepared) == ([True, False], 2)


async def test_a_connection_that_cannot_even_be_closed_fails_nobody_else() -> None:
    store = Scripted()
    gatherer = AsyncGatherer(store)
    await gatherer.ask(A)

    async def close() -> None:
        raise OSError("already gone")

    def fail(verbs: Sequence[Verb]) -> list[Any]:
        raise StoreUnavailable("gone", sent=True)

    store.connections[0].close = close  # type: ignore[attr-defined]
    store.answer = fail
    with pytest.raises(StoreUnavailable, match="gone"):
        await gatherer.ask(B)
    store.answer = ids
    assert await gatherer.ask(C) == b"c"


async def test_a_store_that_cannot_be_reached_is_tried_again_by_the_next() -> None:
    store = Scripted()

    def refuse() -> None:
        raise StoreUnavailable("nobody listens", sent=False)

    store.refuse = refuse
    gatherer = AsyncGatherer(store)
    outcomes = await gather_all(start(gatherer, A, B))
    assert [outcome.sent for outcome in outcomes] == [False, False]
    store.refuse = lambda: None
    assert await gatherer.ask(A) == b"a"


async def test_an_unfit_store_is_not_used() -> None:
    store = Scripted()

    def unfit() -> None:
        raise StoreUnfit("run `oncekey migrate`")

    store.unfit = unfit
    gatherer = AsyncGatherer(store)
    with pytest.raises(StoreUnfit):
        await gatherer.ask(A)
    assert (store.asked, store.closed) == ([], [True])
    store.unfit = lambda: None
    assert await gatherer.ask(A) == b"a"


async def test_p11_an_unfit_store_is_connected_to_once_for_all_who_wait() -> None:
    store = Scripted()

    def unfit() -> None:
        raise StoreUnfit("run `oncekey migrate`")

    store.unfit = unfit
    errors = await gather_all(start(AsyncGatherer(store), A, B, C))
    assert [(type(error), str(error)) for error in errors] == [
        (StoreUnfit, "run `oncekey migrate`")
    ] * 3
    assert len({id(error) for error in errors}) == 3
    assert store.closed == [True]


async def test_one_bad_member_fails_alone() -> None:
    def fail(verbs: Sequence[Verb]) -> list[Any]:
        if C in verbs:
            raise ValueError("cannot be encoded")
        return ids(verbs)

    store = Scripted(fail)
    gatherer = AsyncGatherer(store)
    tasks = await behind_a(store, gatherer)
    store.aopen.set()
    first, second, bad, fourth = await gather_all(tasks)
    assert (first, second, fourth) == (b"a", b"b", b"d")
    assert isinstance(bad, ValueError)
    assert len(store.connections) == 3  # whoever raised that may have been in the middle of one


async def test_too_few_outcomes_are_an_error_not_a_wait_for_ever() -> None:
    store = Scripted(lambda verbs: ids(verbs)[1:])
    gatherer = AsyncGatherer(store)
    outcomes = await gather_all(start(gatherer, A, B))
    assert all(isinstance(outcome, ValueError) for outcome in outcomes)


async def test_p11_a_full_queue_refuses_at_once() -> None:
    store = Scripted()
    gatherer = AsyncGatherer(store)
    store.aopen.clear()
    tasks = start(gatherer, A)
    await settle()
    tasks += start(gatherer, *[B] * QUEUE_ROWS_MAX)
    await settle()
    with pytest.raises(StoreUnavailable) as caught:
        await gatherer.ask(C)
    assert caught.value.sent is False
    store.aopen.set()
    assert await gather_all(tasks) == [b"a"] + [b"b"] * QUEUE_ROWS_MAX


# --------------------------------------------------------------------------------- alone


async def test_what_is_asked_again_goes_on_a_lane_of_its_own() -> None:
    """Whoever waits for a row that somebody holds must not hold up the others."""

    def again(verbs: Sequence[Verb]) -> list[Any]:
        return [AGAIN if verb == C and len(verbs) > 1 else verb.id for verb in verbs]  # type: ignore[union-attr]

    store = Scripted(again)
    gatherer = AsyncGatherer(store)
    tasks = await behind_a(store, gatherer)
    store.aopen.set()
    await settle()
    assert await gather_all(tasks) == [b"a", b"b", b"c", b"d"]
    assert store.asked == [[A], [B, C, D], [C]]
    assert len(store.connections) == 2


async def test_those_asked_again_go_one_by_one() -> None:
    def again(verbs: Sequence[Verb]) -> list[Any]:
        return [AGAIN if len(verbs) > 1 else verb.id for verb in verbs]  # type: ignore[union-attr]

    store = Scripted(again)
    gatherer = AsyncGatherer(store)
    tasks = await behind_a(store, gatherer)
    store.aopen.set()
    assert await gather_all(tasks) == [b"a", b"b", b"c", b"d"]
    assert store.asked == [[A], [B, C, D], [B], [C], [D]]


# ---------------------------------------------------------------------------- cancellation


async def test_whoever_leaves_does_not_disturb_the_others() -> None:
    store = Scripted()
    gatherer = AsyncGatherer(store)
    tasks = await behind_a(store, gatherer)
    tasks[0].cancel()  # under way
    tasks[2].cancel()  # queued
    await settle()
    store.aopen.set()
    outcomes = await gather_all(tasks)
    assert (outcomes[1], outcomes[3]) == (b"b", b"d")
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert isinstance(outcomes[2], asyncio.CancelledError)
    assert await gatherer.ask(A) == b"a"


async def test_p7_a_claim_that_nobody_waits_for_any_more_is_not_made() -> None:
    """Its client left before it was sent. What became of a handler is written all the same."""
    store = Scripted(lambda verbs: [Done(1) for _ in verbs])
    gatherer = AsyncGatherer(store)
    claims = [
        Insert(Claim(name, b"t", "a", "o", "k", b"f", 1, 30.0, 60.0)) for name in (b"b", b"c")
    ]
    completion = lifecycle.complete(Held(b"d", 1, b"t"), Answer(200), retention_s=60.0)
    store.aopen.clear()
    tasks = start(gatherer, A)
    await settle()
    tasks += start(gatherer, *claims, completion)
    await settle()
    tasks[1].cancel()
    tasks[3].cancel()
    await settle()
    store.aopen.set()
    await gather_all(tasks)
    await gatherer.close()
    assert store.asked == [[A], [claims[1], completion]]


async def test_a_cancelled_round_trip_is_told_to_all_who_waited() -> None:
    """To those under way that it may have happened, to those in the queue that it did not."""
    store = Scripted()
    gatherer = AsyncGatherer(store)
    tasks = await behind_a(store, gatherer)
    await cancel_workers(tasks)
    outcomes = await gather_all(tasks)
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
    assert [outcome.sent for outcome in outcomes] == [True, False, False, False]
    store.aopen.set()
    assert await gatherer.ask(A) == b"a"
    assert len(store.connections) == 2


async def test_a_batch_cancelled_while_it_is_served_one_by_one_strands_nobody() -> None:
    store = Scripted()
    gatherer = AsyncGatherer(store)
    tasks = await behind_a(store, gatherer)

    def fail_together(verbs: Sequence[Verb]) -> list[Any]:
        if len(verbs) > 1:
            store.aopen.clear()
            raise ValueError("somebody is bad")
        return ids(verbs)

    store.answer = fail_together
    store.aopen.set()
    await settle()
    assert store.asked == [[A], [B, C, D], [B]]
    await cancel_workers(tasks)
    outcomes = await gather_all(tasks)
    assert outcomes[0] == b"a"
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes[1:])


async def cancel_workers(asking: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel what the gatherer runs in the background, as an event loop does that shuts down."""
    others = asyncio.all_tasks() - set(asking) - {asyncio.current_task()}
    for task in others:
        if "_work" in repr(task.get_coro()):
            task.cancel()
    await settle()


# ------------------------------------------------------------------------ loops and the end


def test_a_new_event_loop_gets_new_connections() -> None:
    store = Scripted()
    gatherer = AsyncGatherer(store)

    async def once() -> Any:
        return await gatherer.ask(A)

    assert [asyncio.run(once()), asyncio.run(once())] == [b"a", b"a"]
    assert len(store.connections) == 2


async def test_closing_serves_what_is_queued_then_gives_the_connections_back() -> None:
    store = Scripted()
    store.group_of = lambda verb: "other" if verb == D else "all"
    gatherer = AsyncGatherer(store)
    tasks = await behind_a(store, gatherer)
    closing = asyncio.create_task(gatherer.close())
    await settle()
    assert not closing.done()
    store.aopen.set()
    await closing
    assert await gather_all(tasks) == [b"a", b"b", b"c", b"d"]
    assert store.closed == [True, True]


async def test_closing_serves_what_has_to_be_asked_again() -> None:
    def again(verbs: Sequence[Verb]) -> list[Any]:
        return [AGAIN if len(verbs) > 1 else verb.id for verb in verbs]  # type: ignore[union-attr]

    store = Scripted(again)
    gatherer = AsyncGatherer(store)
    tasks = await behind_a(store, gatherer)
    closing = asyncio.create_task(gatherer.close())
    await settle()
    store.aopen.set()
    await closing
    assert await gather_all(tasks) == [b"a", b"b", b"c", b"d"]
    assert store.closed == [True, True]


async def test_a_closed_gatherer_opens_again_when_asked() -> None:
    store = Scripted()
    gatherer = AsyncGatherer(store)
    await gatherer.ask(A)
    await gatherer.close()
    assert await gatherer.ask(B) == b"b"
    assert store.closed == [True, False]


async def test_many_tasks_each_get_their_own_outcome() -> None:
    store = Scripted()
    gatherer = AsyncGatherer(store)

    async def client(number: int) -> None:
        for turn in range(20):
            verb = Find(f"{number}-{turn}".encode())
            assert await gatherer.ask(verb) == verb.id

    clients: list[Coroutine[Any, Any, None]] = [client(number) for number in range(64)]
    await asyncio.gather(*clients)
    assert sum(map(len, store.asked)) == 64 * 20
    assert len(store.asked) < 64 * 20 / 2


def test_who_runs_in_no_event_loop_of_asyncio_is_told_so() -> None:
    with pytest.raises(Misuse, match="works with asyncio, not with trio"):
        AsyncGatherer(Scripted()).ask(A)
