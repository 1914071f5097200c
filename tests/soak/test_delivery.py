"""What is said of messages that went from an outbox through a broker to an inbox."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from soak import delivery, report
from soak.delivery import Leftover, judge
from soak.ledger import Entry, Id
from soak.messenger import NO_KEY, TOPIC
from soak.settings import read

PUT = {"a1": ("key-1", 1), "a2": ("key-1", 2), "b1": (NO_KEY, 2), "b2": (NO_KEY, 1)}


def published(*ids: str) -> list[Entry]:
    ids_ = [Id(TOPIC, *PUT.get(id, ("?", 0))[:1], id) for id in ids]
    return [Entry("published", float(at), id_, "", 0, 0, 0, 1) for at, id_ in enumerate(ids_)]


def found(handled: list[str], sent: list[str], left: list[Leftover] | None = None) -> list[str]:
    return [one.what for one in judge(PUT, handled, published(*sent), left or [])]


def test_each_once_and_in_order_is_right_whatever_is_repeated() -> None:
    assert found(["b1", "a2", "a1", "b2"], ["a1", "a1", "b1", "a2", "b2", "a1"]) == []


def test_what_is_wrong_is_told() -> None:
    every = list(PUT)
    assert found(every[1:], every) == ["was never handled"]
    assert found([*every, "a1"], every) == ["was handled 2 times"]
    assert found([*every, "ghost"], every) == ["was never committed, and left"]
    assert found(every, [*every, "ghost"]) == ["was never committed, and left"]
    assert found(every, every, [Leftover("a1", "refused")]) == ["is still in the outbox: refused"]
    assert found(every, ["a2", "a1", "b1", "b2"]) == ["left as [2, 1]"]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_each_message_is_handled_once_while_processes_and_brokers_die(tmp_path: Path) -> None:
    settings = read(["--broker", "nats", "--seconds", "12", "--seed", "1"], None)
    outcome = asyncio.run(delivery.soak(settings, tmp_path))
    assert not outcome.violations, report.complaints(outcome)
    assert outcome.entries
    assert outcome.faults
