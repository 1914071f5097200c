"""The gatherer for threads, of which one is interrupted: nobody else may wait for ever."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from oncekey._core.verbs import Verb
from oncekey.errors import StoreUnavailable
from oncekey.stores import batching
from oncekey.stores.batching import Gatherer, Queue, _Lane
from tests.stores.scripted import PATIENCE_S, Scripted, ids
from tests.stores.threads import A, B, C, D, behind_a, outcomes, queue_length, wait_until


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


class Interrupted(BaseException):
    """Stands for KeyboardInterrupt, or a time limit that a signal enforces."""


def test_an_interrupted_leader_leaves_an_heir(threads: ThreadPoolExecutor) -> None:
    store = Scripted()
    gatherer = Gatherer(store)

    def interrupt(verbs: Sequence[Verb]) -> list[Any]:
        store.answer = ids
        raise Interrupted

    store.answer = interrupt
    futures = behind_a(threads, store, gatherer)
    store.open.set()
    first, *others = outcomes(futures)
    assert isinstance(first, Interrupted)
    assert others == [b"b", b"c", b"d"]
    assert len(store.connections) == 2  # nobody knows what the first still carries


class TimeIsUp(Exception):
    """Stands for the soft time limit of Celery, which a signal raises anywhere, too."""


def test_p5_what_a_time_limit_interrupted_is_not_asked_again_on_its_connection() -> None:
    store = Scripted()
    gatherer = Gatherer(store)

    def interrupt(verbs: Sequence[Verb]) -> list[Any]:
        store.answer = ids
        raise TimeIsUp

    store.answer = interrupt
    with pytest.raises(TimeIsUp):
        gatherer.ask(A)
    assert gatherer.ask(B) == b"b"
    assert len(store.connections) == 2  # the first may still carry the answer to A


@pytest.mark.parametrize("name", ["_lead", "_hand_over"])
def test_p11_a_leader_that_is_interrupted_between_two_steps_is_followed_by_another(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    gatherer, calls = Gatherer(Scripted()), itertools.count()
    real = getattr(_Lane, name)

    def interrupt(*given: Any) -> Any:
        if next(calls) == 0:
            raise Interrupted
        return real(*given)

    monkeypatch.setattr(_Lane, name, interrupt)
    with pytest.raises(Interrupted):
        gatherer.ask(A)
    following = threads.submit(gatherer.ask, B)
    try:
        assert following.result(PATIENCE_S) == b"b"
    finally:
        for ticket in list(gatherer._lanes.values()):  # or the pool would wait for it
            while (left := ticket._queue.oldest()) is not None:
                ticket._queue.discard(left)
                left.waiter.settle(None, StoreUnavailable("nobody leads", sent=False))


def test_whoever_was_in_the_interrupted_batch_is_told(threads: ThreadPoolExecutor) -> None:
    store = Scripted()
    gatherer = Gatherer(store)

    def interrupt(verbs: Sequence[Verb]) -> list[Any]:
        if B in verbs:
            raise Interrupted
        return ids(verbs)

    store.answer = interrupt
    futures = behind_a(threads, store, gatherer)
    store.open.set()
    first, leader, *others = outcomes(futures)
    assert first == b"a"
    assert isinstance(leader, Interrupted)
    assert all(isinstance(other, StoreUnavailable) and other.sent for other in others)
    assert gatherer.ask(A) == b"a"


@pytest.mark.parametrize(("owner", "name"), [(Queue, "take"), (batching, "_order")])
def test_a_leader_that_is_interrupted_before_its_own_verb_left_leaves_an_heir(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """Before it chooses a batch, and while it does: nobody else is left out."""
    store = Scripted()
    gatherer = Gatherer(store)
    futures = behind_a(threads, store, gatherer)
    real, calls = getattr(owner, name), itertools.count()

    def interrupt(given: Any) -> Any:
        if next(calls) == 0:
            raise Interrupted
        return real(given)

    monkeypatch.setattr(owner, name, interrupt)
    store.open.set()
    first, leader, *others = outcomes(futures)
    assert first == b"a"
    assert isinstance(leader, Interrupted)
    assert others == [b"c", b"d"]


def test_a_follower_that_is_interrupted_before_it_waits_is_not_queued(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Scripted()
    gatherer = Gatherer(store)
    store.open.clear()
    leading = threads.submit(gatherer.ask, A)
    assert store.under_way.acquire(timeout=PATIENCE_S)

    def interrupt() -> None:
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Event", interrupt)
        with pytest.raises(Interrupted):
            gatherer.ask(B)
    following = threads.submit(gatherer.ask, C)
    wait_until(lambda: queue_length(gatherer) > 0)
    store.open.set()
    assert outcomes([leading, following]) == [b"a", b"c"]


@pytest.mark.parametrize("later", [True, False])
def test_an_interrupted_follower_is_not_made_the_leader(
    threads: ThreadPoolExecutor, later: bool
) -> None:
    """It is gone: a lead that is handed to it would be lost, and everybody would wait for ever."""
    store = Scripted()
    gatherer = Gatherer(store)
    store.open.clear()
    leading = threads.submit(gatherer.ask, A)
    assert store.under_way.acquire(timeout=PATIENCE_S)

    def interrupt_main() -> None:
        wait_until(lambda: queue_length(gatherer) == 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, _raise_interrupted)
    try:
        threads.submit(interrupt_main)
        with pytest.raises(Interrupted):
            gatherer.ask(B)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert queue_length(gatherer) == 0
    following = [threads.submit(gatherer.ask, C)] if later else []
    if later:
        wait_until(lambda: queue_length(gatherer) == 1)
    store.open.set()
    assert outcomes([leading, *following]) == [b"a", b"c"][: 1 + later]
    assert gatherer.ask(D) == b"d"
    assert [B] not in store.asked


def test_a_follower_that_is_interrupted_when_it_was_made_the_leader_leaves_an_heir(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            super().wait(timeout)
            raise Interrupted

    store = Scripted()
    gatherer = Gatherer(store)
    store.open.clear()
    leading = threads.submit(gatherer.ask, A)
    assert store.under_way.acquire(timeout=PATIENCE_S)
    with monkeypatch.context() as patch:
        patch.setattr(batching, "threading", SimpleNamespace(Event=Interrupting))
        interrupted = threads.submit(gatherer.ask, B)
        wait_until(lambda: queue_length(gatherer) == 1)
    following = threads.submit(gatherer.ask, C)
    wait_until(lambda: queue_length(gatherer) == 2)
    store.open.set()
    first, second, third = outcomes([leading, interrupted, following])
    assert (first, type(second), third) == (b"a", Interrupted, b"c")


def test_a_follower_that_is_interrupted_while_its_verb_is_under_way_hears_of_just_that(
    threads: ThreadPoolExecutor,
) -> None:
    """It is not in the queue any more: that is nobody's concern but ours."""
    store = Scripted()
    gatherer = Gatherer(store)
    left = threading.Event()

    def interrupt_main(verbs: Sequence[Verb]) -> list[Any]:
        if C in verbs:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            assert left.wait(PATIENCE_S)
        return ids(verbs)

    def open_when_all_wait() -> None:
        wait_until(lambda: queue_length(gatherer) == 2)
        store.open.set()

    store.answer = interrupt_main
    store.open.clear()
    leading = [threads.submit(gatherer.ask, A)]
    assert store.under_way.acquire(timeout=PATIENCE_S)
    leading.append(threads.submit(gatherer.ask, B))
    wait_until(lambda: queue_length(gatherer) == 1)
    before = signal.signal(signal.SIGUSR1, _raise_interrupted)
    try:
        threads.submit(open_when_all_wait)
        with pytest.raises(Interrupted):
            gatherer.ask(C)
    finally:
        left.set()
        signal.signal(signal.SIGUSR1, before)
    assert outcomes(leading) == [b"a", b"b"]
    assert store.asked == [[A], [B, C]]


def _raise_interrupted(signum: int, frame: object) -> None:
    raise Interrupted
