"""Threads that ask a gatherer at once, and what comes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from oncekey.stores.batching import Gatherer
from tests.stores.scripted import PATIENCE_S, Scripted, find

A, B, C, D = map(find, "abcd")
Futures = list[Future[Any]]


def outcomes(futures: Futures) -> list[Any]:
    return [future.exception(PATIENCE_S) or future.result() for future in futures]


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(int(PATIENCE_S * 1000)):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("waited in vain")


def queue_length(gatherer: Gatherer) -> int:
    return sum(len(lane._queue) for lane in gatherer._lanes.values())


def behind_a(threads: ThreadPoolExecutor, store: Scripted, gatherer: Gatherer) -> Futures:
    """A is under way; B, C and D wait for its round trip to end."""
    store.open.clear()
    futures = [threads.submit(gatherer.ask, A)]
    assert store.under_way.acquire(timeout=PATIENCE_S)
    for waiting, verb in enumerate((B, C, D), start=1):
        futures.append(threads.submit(gatherer.ask, verb))
        wait_until(lambda waiting=waiting: queue_length(gatherer) == waiting)  # type: ignore[misc]
    return futures
