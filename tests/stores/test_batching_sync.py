"""The gatherer for threads, driven by a store whose answers are written here."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from oncekey._core.op import Pause
from oncekey._core.verbs import Find, Verb
from oncekey.errors import StoreUnavailable, StoreUnfit
from oncekey.stores.base import AGAIN
from oncekey.stores.batching import Gatherer
from tests.stores.scripted import PATIENCE_S, Scripted, ids
from tests.stores.threads import A, B, C, D, behind_a, outcomes, wait_until


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(80) as pool:
        yield pool


# -------------------------------------------------------------------------------- sharing


def test_a_lone_verb_leaves_at_once_in_the_thread_that_asks() -> None:
    served_by = []

    def answer(verbs: Sequence[Verb]) -> list[Any]:
        served_by.append(threading.current_thread())
        return ids(verbs)

    assert Gatherer(Scripted(answer)).ask(A) == b"a"
    assert served_by == [threading.current_thread()]


def test_arrivals_during_a_round_trip_share_the_next(threads: ThreadPoolExecutor) -> None:
    store = Scripted()
    futures = behind_a(threads, store, Gatherer(store))
    assert store.asked == [[A]]
    store.open.set()
    assert outcomes(futures) == [b"a", b"b", b"c", b"d"]
    assert store.asked == [[A], [B, C, D]]
    assert (len(store.connections), store.prepared) == (1, 1)


def test_a_leader_leaves_when_it_is_served_and_another_leads(threads: ThreadPoolExecutor) -> None:
    """Nobody serves others for longer than it waits itself."""
    store = Scripted()
    gatherer = Gatherer(store)
    futures = behind_a(threads, store, gatherer)
    store.answer = _then_hold(store)
    store.open.set()
    assert futures[0].result(PATIENCE_S) == b"a"  # although B, C and D are still on their way
    wait_until(lambda: len(store.asked) == 2)
    assert not any(future.done() for future in futures[1:])
    store.open.set()
    assert outcomes(futures) == [b"a", b"b", b"c", b"d"]


def _then_hold(store: Scripted) -> Callable[[Sequence[Verb]], list[Any]]:
    """Answer A, and let no later round trip end by itself."""

    def answer(verbs: Sequence[Verb]) -> list[Any]:
        if A in verbs:
            store.open.clear()
        return ids(verbs)

    return answer


def test_each_group_travels_on_a_connection_of_its_own(threads: ThreadPoolExecutor) -> None:
    store = Scripted()
    store.group_of = lambda verb: "quick" if verb == D else "slow"
    gatherer = Gatherer(store)
    store.open.clear()
    futures = [threads.submit(gatherer.ask, verb) for verb in (A, D)]
    for _ in futures:
        assert store.under_way.acquire(timeout=PATIENCE_S)  # both at once
    store.open.set()
    assert outcomes(futures) == [b"a", b"d"]
    assert len(store.connections) == 2


def test_a_pause_is_only_time() -> None:
    store = Scripted()
    assert Gatherer(store).ask(Pause(0.0)) is None
    assert store.connections == []


def test_64_threads_lose_no_wake_up(threads: ThreadPoolExecutor) -> None:
    store = Scripted()
    gatherer = Gatherer(store)
    start = threading.Barrier(64)

    def client(number: int) -> None:
        start.wait(PATIENCE_S)
        for turn in range(50):
            verb = Find(f"{number}-{turn}".encode())
            assert gatherer.ask(verb) == verb.id

    assert outcomes([threads.submit(client, number) for number in range(64)]) == [None] * 64
    assert sum(map(len, store.asked)) == 64 * 50
    assert len(store.connections) == 1  # which itself asserts that it is never asked twice at once


def test_64_threads_through_failures_lose_no_wake_up(threads: ThreadPoolExecutor) -> None:
    """Every tenth round trip breaks, some verbs are bad, some have to be asked again."""
    turns = iter(range(1_000_000))

    def answer(verbs: Sequence[Verb]) -> list[Any]:
        if next(turns) % 10 == 9:
            raise StoreUnavailable("broken", sent=True)
        if any(verb.id.endswith(b"-bad") for verb in verbs):  # type: ignore[union-attr]
            raise ValueError("bad")
        if len(verbs) > 1:
            return [AGAIN if verb.id.endswith(b"0") else verb.id for verb in verbs]  # type: ignore[union-attr]
        return ids(verbs)

    store = Scripted(answer)
    gatherer = Gatherer(store)

    def client(number: int) -> int:
        served = 0
        for turn in range(30):
            verb = Find(f"{number}-{turn}{'-bad' if turn % 7 == 6 else ''}".encode())
            try:
                assert gatherer.ask(verb) == verb.id
            except StoreUnavailable:
                continue
            except ValueError:
                assert verb.id.endswith(b"-bad")
            served += 1
        return served

    served = outcomes([threads.submit(client, number) for number in range(64)])
    assert all(isinstance(count, int) and count > 0 for count in served), served


# -------------------------------------------------------------------------------- failing


def test_an_unavailable_store_is_told_to_every_member_and_dropped(
    threads: ThreadPoolExecutor,
) -> None:
    store = Scripted()
    gatherer = Gatherer(store)
    cause = OSError("reset by peer")

    def fail(verbs: Sequence[Verb]) -> list[Any]:
        if A in verbs:
            return ids(verbs)
        raise StoreUnavailable("gone", sent=True) from cause

    store.answer = fail
    futures = behind_a(threads, store, gatherer)
    store.open.set()
    first, *errors = outcomes(futures)
    assert first == b"a"
    assert [(type(e), str(e), e.sent) for e in errors] == [(StoreUnavailable, "gone", True)] * 3
    assert len({id(error) for error in errors}) == 3
    assert [error.__cause__ for error in errors] == [cause] * 3
    assert store.closed == [True]

    store.answer = ids
    assert gatherer.ask(B) == b"b"
    assert (store.closed, store.prepared) == ([True, False], 2)


def test_a_connection_that_cannot_even_be_closed_fails_nobody_else() -> None:
    store = Scripted()
    gatherer = Gatherer(store)
    gatherer.ask(A)

    def close() -> None:
        raise OSError("already gone")

    def fail(verbs: Sequence[Verb]) -> list[Any]:
        raise StoreUnavailable("gone", sent=True)

    store.connections[0].close = close  # type: ignore[attr-defined]
    store.answer = fail
    with pytest.raises(StoreUnavailable, match="gone"):
        gatherer.ask(B)
    store.answer = ids
    assert gatherer.ask(C) == b"c"


def test_a_store_that_cannot_be_reached_is_tried_again_by_the_next() -> None:
    store = Scripted()

    def refuse() -> None:
        raise StoreUnavailable("nobody listens", sent=False)

    store.refuse = refuse
    gatherer = Gatherer(store)
    with pytest.raises(StoreUnavailable) as caught:
        gatherer.ask(A)
    assert caught.value.sent is False
    store.refuse = lambda: None
    assert gatherer.ask(A) == b"a"


def test_an_unfit_store_is_not_used() -> None:
    store = Scripted()

    def unfit() -> None:
        raise StoreUnfit("run `oncekey migrate`")

    store.unfit = unfit
    gatherer = Gatherer(store)
    with pytest.raises(StoreUnfit):
        gatherer.ask(A)
    assert (store.asked, store.closed) == ([], [True])
    store.unfit = lambda: None
    assert gatherer.ask(A) == b"a"


def test_p11_an_unfit_store_is_connected_to_once_for_all_who_wait(
    threads: ThreadPoolExecutor,
) -> None:
    store = Scripted()

    def then_unfit(verbs: Sequence[Verb]) -> list[Any]:
        store.unfit = unfit
        raise StoreUnavailable("restarted", sent=True)

    def unfit() -> None:
        raise StoreUnfit("run `oncekey migrate`")

    store.answer = then_unfit
    futures = behind_a(threads, store, Gatherer(store))
    store.open.set()
    _, *errors = outcomes(futures)
    assert [(type(error), str(error)) for error in errors] == [
        (StoreUnfit, "run `oncekey migrate`")
    ] * 3
    assert len({id(error) for error in errors}) == 3
    assert store.closed == [True, True]


def test_one_bad_member_fails_alone(threads: ThreadPoolExecutor) -> None:
    def fail(verbs: Sequence[Verb]) -> list[Any]:
        if C in verbs:
            raise ValueError("cannot be encoded")
        return ids(verbs)

    store = Scripted(fail)
    futures = behind_a(threads, store, Gatherer(store))
    store.open.set()
    first, second, bad, fourth = outcomes(futures)
    assert (first, second, fourth) == (b"a", b"b", b"d")
    assert isinstance(bad, ValueError)
    assert len(store.connections) == 3  # whoever raised that may have been in the middle of one


def test_too_few_outcomes_are_an_error_not_a_wait_for_ever() -> None:
    store = Scripted(lambda verbs: [])
    with pytest.raises(ValueError, match="zip"):
        Gatherer(store).ask(A)


def test_those_asked_again_go_one_by_one_on_a_lane_of_their_own(
    threads: ThreadPoolExecutor,
) -> None:
    def again(verbs: Sequence[Verb]) -> list[Any]:
        return [AGAIN if len(verbs) > 1 else verb.id for verb in verbs]  # type: ignore[union-attr]

    store = Scripted(again)
    futures = behind_a(threads, store, Gatherer(store))
    store.open.set()
    assert outcomes(futures) == [b"a", b"b", b"c", b"d"]
    assert store.asked[:2] == [[A], [B, C, D]]
    assert sorted(store.asked[2:], key=str) == [[B], [C], [D]]
    assert len(store.connections) == 2


# -------------------------------------------------------------------------- fork and the end


def in_a_forked_child(check: Callable[[], bool]) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads: not ours to worry
        pid = os.fork()
    if pid == 0:
        passed = False
        try:
            passed = check()
        finally:
            os._exit(0 if passed else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_child_speaks_on_connections_of_its_own() -> None:
    store = Scripted()
    gatherer = Gatherer(store)
    gatherer.ask(A)
    assert in_a_forked_child(lambda: gatherer.ask(B) == b"b" and len(store.connections) == 2)
    assert gatherer.ask(C) == b"c"
    assert len(store.connections) == 1


def test_a_forked_child_does_not_wait_for_a_thread_that_it_does_not_have(
    threads: ThreadPoolExecutor,
) -> None:
    store = Scripted()
    gatherer = Gatherer(store)
    futures = behind_a(threads, store, gatherer)

    def child() -> bool:
        store.open = threading.Event()
        store.open.set()
        return bool(gatherer.ask(A) == b"a")

    assert in_a_forked_child(child)
    store.open.set()
    assert outcomes(futures) == [b"a", b"b", b"c", b"d"]


def test_a_forked_child_does_not_close_its_parents_connections() -> None:
    """Closing says goodbye on a socket that both share."""
    store = Scripted()
    gatherer = Gatherer(store)
    gatherer.ask(A)

    def child() -> bool:
        gatherer.close()
        return store.closed == [False]

    assert in_a_forked_child(child)


def test_closing_gives_the_connections_back() -> None:
    store = Scripted()
    store.group_of = lambda verb: verb
    gatherer = Gatherer(store)
    gatherer.ask(A)
    gatherer.ask(B)
    gatherer.close()
    assert store.closed == [True, True]
    assert gatherer.ask(A) == b"a"


def test_closing_waits_for_what_is_under_way_and_queued(threads: ThreadPoolExecutor) -> None:
    store = Scripted()
    gatherer = Gatherer(store)
    futures = behind_a(threads, store, gatherer)
    closing = threads.submit(gatherer.close)
    with pytest.raises(TimeoutError):
        closing.result(0.05)
    assert store.closed == [False]
    store.open.set()
    closing.result(PATIENCE_S)
    assert outcomes(futures) == [b"a", b"b", b"c", b"d"]
    assert store.closed == [True]
