"""A consumer of FastStream at a real broker, with a topic and a store of its own."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from faststream import AckPolicy, BaseMiddleware
from faststream.exceptions import NackMessage

from oncekey._core.message import Message
from oncekey._engine.runtime import Runtime
from oncekey.messaging._outbox import Outbox
from oncekey.messaging.faststream import OnceMiddleware, own_id, publish_to
from tests.messaging.brokers import BROKERS, NACK, BrokerKind, message

WAIT_S_MAX = 20.0


@dataclass
class Bench:
    """A broker, a topic of its own on it, and a store."""

    line: BrokerKind
    url: str
    file: Path
    topic: str = field(default_factory=lambda: f"t{uuid.uuid4().hex}")
    settled: Counter[str] = field(default_factory=Counter)
    """How many deliveries of a message ended well, and so are acknowledged."""
    put_off: Counter[str] = field(default_factory=Counter)

    @contextlib.asynccontextmanager
    async def consuming(
        self, work: Callable[..., Any], ack_policy: AckPolicy = NACK, **settings: Any
    ) -> AsyncIterator[Callable[[Message], Any]]:
        """A consumer; gives the function that publishes to it."""
        await Outbox(f"sqlite:///{self.file}").migrate()
        runtime = Runtime(f"sqlite:///{self.file}")
        once = OnceMiddleware(runtime, **settings)
        broker = self.line.broker(self.url, middlewares=[self._watch(), once])
        for subscriber in self.line.subscribe(broker, self.topic, ack_policy):
            subscriber(work)
        await broker.start()
        try:
            yield publish_to(broker, **self.line.options(self.topic))
        finally:
            await broker.stop()
            await runtime.aclose()

    def _watch(self) -> type[BaseMiddleware]:
        settled, put_off = self.settled, self.put_off

        class Watch(BaseMiddleware):
            async def consume_scope(self, call_next: Callable[[Any], Any], msg: Any) -> Any:
                try:
                    result = await call_next(msg)
                except NackMessage:
                    put_off[own_id(msg) or ""] += 1
                    raise
                settled[own_id(msg) or ""] += 1
                return result

        return Watch

    def message(self, payload: bytes, id: str) -> Message:
        return message(self.topic, payload, id)

    async def records(self, count: int) -> None:
        """Until so many messages are recorded as done."""
        await until(lambda: self._completed() == count)

    def _completed(self) -> int:
        with contextlib.closing(sqlite3.connect(f"file:{self.file}?mode=ro", uri=True)) as db:
            ended = "SELECT count(*) FROM oncekey_claims WHERE state = 'completed'"
            return int(db.execute(ended).fetchone()[0])


async def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.01)


@pytest.fixture(params=list(BROKERS))
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    url = request.getfixturevalue(f"{request.param}_url")
    return Bench(BROKERS[request.param], url, tmp_path / "keys.db")


@pytest.fixture
def rabbit(rabbitmq_url: str, tmp_path: Path) -> Bench:
    return Bench(BROKERS["rabbitmq"], rabbitmq_url, tmp_path / "keys.db")
