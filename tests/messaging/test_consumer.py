"""A plain consumer, killed at every moment of a message: each order has one row."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from examples import inbox_stream
from oncekey.testing.crash import VARIABLE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
END_S_MAX = 30.0
PROBES = ("before_insert", "after_insert", "after_handler", "before_complete", "after_complete")


class Shop:
    """A stream of its own, a file of its own, and consumers as child processes."""

    def __init__(self, broker: Any, url: str, data: Path) -> None:
        self.broker = broker
        self.stream = f"orders-{uuid.uuid4().hex}"
        self.data = data
        self._url = url

    def order(self, name: str, item: str = "tea") -> None:
        inbox_stream.send(self.broker, self.stream, {"id": name, "item": item})

    def consumer(self, at: str = "") -> subprocess.Popen[bytes]:
        arguments = [self._url, "--stream", self.stream, "--data", str(self.data)]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.messaging.consumer", *arguments],
            cwd=ROOT,
            env={**os.environ, VARIABLE: at},
            stdout=subprocess.DEVNULL,
        )

    def shipped(self) -> list[str]:
        with closing(sqlite3.connect(self.data / "shop.db")) as database:
            return [name for [name] in database.execute("SELECT id FROM shipped ORDER BY id")]

    def pending(self) -> int:
        count: int = self.broker.xpending(self.stream, inbox_stream.GROUP)["pending"]
        return count


@pytest.fixture
def shop(redis_url: str, tmp_path: Path) -> Iterator[Shop]:
    with Redis.from_url(redis_url) as broker:
        shop = Shop(broker, redis_url, tmp_path)
        yield shop
        broker.delete(shop.stream, f"{shop.stream}-dead")


def test_p6_killed_in_the_middle_each_message_has_its_effect_once(shop: Shop) -> None:
    names = [f"o{number}" for number in range(8)]
    for name in (*names, "o1"):  # and one of them was sent twice
        shop.order(name)
    for count, probe in enumerate(PROBES, start=1):
        assert shop.consumer(at=f"{probe}=kill").wait(END_S_MAX) == -signal.SIGKILL
        assert shop.pending() == count  # nobody acknowledged, and nobody else looked yet
        assert shop.shipped() == []
    assert shop.consumer().wait(END_S_MAX) == 0

    assert shop.shipped() == names
    assert shop.pending() == 0


def test_p1_several_consumers_share_the_work(shop: Shop) -> None:
    names = sorted(f"o{number}" for number in range(12))
    for name in names * 2:
        shop.order(name)
    consumers = [shop.consumer() for _ in range(2)]

    assert [consumer.wait(END_S_MAX) for consumer in consumers] == [0, 0]
    assert shop.shipped() == names
    assert shop.pending() == 0


def test_p5_another_order_under_the_same_id_goes_where_somebody_looks(shop: Shop) -> None:
    shop.order("o1", "tea")
    shop.order("o1", "gold")
    assert shop.consumer().wait(END_S_MAX) == 0

    assert shop.shipped() == ["o1"]
    [(_, dead)] = shop.broker.xrange(f"{shop.stream}-dead")
    assert b"gold" in dead[b"body"]
