"""Looking at what other threads do, from within a process that goes on."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from oncekey._engine import leftover_threads

CURRENT: ContextVar[Any] = ContextVar("current", default=None)
DEPTH = 300


@pytest.fixture
def deep() -> Iterator[None]:
    """A thread that stands deep in calls."""
    there, leave = threading.Event(), threading.Event()

    def go(depth: int) -> None:
        if depth:
            go(depth - 1)
        else:
            there.set()
            leave.wait()

    thread = threading.Thread(target=go, args=(DEPTH,))
    thread.start()
    there.wait()
    yield
    leave.set()
    thread.join()


@pytest.fixture
def collections() -> Iterator[list[str]]:
    """In which functions garbage is collected, which is whenever it can be."""
    seen: list[str] = []

    def note(phase: str, info: object) -> None:
        frame = sys._getframe(1)
        seen.append(frame.f_code.co_name)

    before = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(1)
    yield seen
    gc.set_threshold(*before)
    gc.callbacks.remove(note)


def look() -> bool:
    return leftover_threads.still_running(object(), leftover_threads.Guests(), CURRENT)  # type: ignore[arg-type]


def test_p11_no_garbage_is_collected_while_other_threads_are_looked_at(
    deep: None, collections: list[str]
) -> None:
    """Python 3.11 may collect it within `f_back`. If that lets the other thread go on, the frame is
    gone that was looked at, and with it the process.
    """
    look()
    assert "_stack" not in collections
    assert "_contexts_of" not in collections
    assert gc.isenabled()


def test_who_does_not_collect_garbage_is_left_alone(deep: None) -> None:
    gc.disable()
    try:
        look()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_process_that_is_forked_off_meanwhile_looks_and_collects(deep: None) -> None:
    looking, stop = threading.Event(), threading.Event()

    def keep_looking() -> None:
        while not stop.is_set():
            look()
            looking.set()

    thread = threading.Thread(target=keep_looking)
    thread.start()
    looking.wait()
    ended = []
    for _ in range(20):
        child = os.fork()
        if not child:
            look()
            os._exit(0 if gc.isenabled() else 1)
        ended.append(os.waitpid(child, 0)[1])
    stop.set()
    thread.join()
    assert ended == [0] * 20
