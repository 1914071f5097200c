"""Threads that a test leaves behind: they go on working beside the tests that follow, and take from
them what they wait for.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from oncekey._engine.sweeper import Sweeper
from oncekey.messaging._publisher import Publisher
from payments.background import PeriodicTask
from payments.webhooks.worker import DeliveryWorker

ENDS_S = 20.0
"""How long threads that were told to end may take, on a machine that is busy."""
WAITING = (
    *("AnyIO worker thread", "asyncio_", "ThreadPoolExecutor-", "oncekey-dynamodb"),
    *("oncekey-atomic", "oncekey-computes", "oncekey-heartbeat", "oncekey-sqlite"),
    *("oncekey-writes", "webhook_", "wire"),
)
"""By their names, those that only do what somebody hands them."""
LOOPS = {
    each.__code__
    for each in (Publisher.run_sync, DeliveryWorker.run, DeliveryWorker.drain, PeriodicTask._run)
}
"""What must not have been handed to one of them and go on."""
LOOK_S = 0.02
OWN = ("memory", "sqlite")
"""The stores that no two tests share."""


@contextmanager
def none_left() -> Iterator[None]:
    """Fails if a thread that begins work by itself, and began meanwhile, does not end."""
    before, at_work = set(threading.enumerate()), _at_work()
    yield
    left = [each for each in threading.enumerate() if each not in before and _works(each)]
    until_s = time.monotonic() + ENDS_S
    for thread in left:
        thread.join(max(until_s - time.monotonic(), 0.0))
    while (handed := _at_work() - at_work) and time.monotonic() < until_s:
        time.sleep(LOOK_S)
    stay = sorted({thread.name for thread in left if thread.is_alive()} | handed)
    assert not stay, f"threads that this test has left behind: {', '.join(stay)}"


def _at_work() -> set[str]:
    """The threads, whoever made them, in which a worker goes round and round."""
    found = set()
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        while frame is not None:
            if frame.f_code in LOOPS:
                found.add(thread.name)
                break
            frame = frame.f_back
    return found


def _works(thread: threading.Thread) -> bool:
    """A middleware that is used without a server's start has a sweeper that nobody ends: it matters
    where others share the store.
    """
    if thread.name.startswith(WAITING):
        return False
    owner = getattr(getattr(thread, "_target", None), "__self__", None)
    return not (isinstance(owner, Sweeper) and owner._store.name in OWN)
