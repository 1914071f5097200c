"""The gate of a connection."""

from __future__ import annotations

import threading

import pytest

from oncekey.atomic._gate import Gate
from oncekey.errors import Misuse


def test_who_is_inside_may_enter_again_also_once_it_is_shut() -> None:
    gate = Gate()
    with gate:
        assert not gate.shut()
        with gate:
            pass
    assert gate.wait(0.0)


def test_who_comes_after_it_was_shut_is_refused_and_does_not_wait() -> None:
    gate, inside, leaves = Gate(), threading.Event(), threading.Event()

    def stay() -> None:
        with gate:
            inside.set()
            leaves.wait(20)

    staying = threading.Thread(target=stay)
    staying.start()
    assert inside.wait(20)
    assert not gate.shut()
    with pytest.raises(Misuse, match="must open its own"), gate:
        pass
    assert not gate.wait(0.01)
    leaves.set()
    staying.join()
    assert gate.wait(20.0)


def test_what_is_left_to_do_is_done_by_who_leaves_last_and_once() -> None:
    gate, done = Gate(), list[int]()

    def note() -> None:
        done.append(threading.get_ident())

    with gate, gate:
        gate.shut()
        gate.when_free(note)
        assert done == []
    assert done == [threading.get_ident()]
    gate.when_free(note)  # nobody is inside
    assert len(done) == 2
    with pytest.raises(Misuse), gate:
        pass
    assert len(done) == 2
