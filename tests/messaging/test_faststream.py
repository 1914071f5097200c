"""Subscribers of FastStream run once per message, on four real brokers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faststream.rabbit import RabbitBroker
from faststream.redis import RedisBroker
from nats.errors import ConnectionClosedError
from redis import Redis

import oncekey
from oncekey._core.message import Message
from oncekey._engine.runtime import Runtime
from oncekey.errors import Misuse
from oncekey.messaging._inbox import Inbox
from oncekey.messaging._outbox import Outbox
from oncekey.messaging._outbox_worker import Limits
from oncekey.messaging._publisher import Publisher
from oncekey.messaging.faststream import PAUSE_S_MAX, publish_to
from oncekey.testing.crash import VARIABLE
from tests.messaging.brokers import BROKERS, NACK, message
from tests.messaging.faststream_app import LEASE_S
from tests.messaging.faststream_bench import Bench, bench, rabbit, until
from tests.servers import Server, start_kafka, start_nats, start_rabbitmq, start_redis
from tests.stores import elapse

__all__ = ["bench", "rabbit"]

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


# -------------------------------------------------------------------------- delivered again


async def test_a_message_that_was_published_twice_runs_once(bench: Bench) -> None:
    ran: list[str] = []

    async def work(body: str) -> None:
        ran.append(body)

    async with bench.consuming(work) as publish:
        for _ in range(2):
            for name in ("a", "b"):
                await publish(bench.message(name.encode(), name))
            await bench.records(2)
        deliveries = 1 if bench.line.name == "nats" else 2  # NATS itself drops what it knows
        await until(lambda: bench.settled == dict.fromkeys("ab", deliveries))
    assert sorted(ran) == ["a", "b"]


async def test_a_message_whose_handler_failed_runs_again(bench: Bench) -> None:
    ran: list[str] = []

    async def work(body: str) -> None:
        ran.append(body)
        if len(ran) == 1:
            raise ValueError("not yet")

    async with bench.consuming(work) as publish:
        await publish(bench.message(b"a", "id-a"))
        await bench.records(1)
    assert ran == ["a", "a"]


@pytest.mark.parametrize("bench", ["rabbitmq", "nats"], indirect=True)
async def test_what_the_handler_puts_off_is_not_delivered_again_at_once(bench: Bench) -> None:
    """One that says so for a minute would keep the broker and itself busy with nothing else."""
    ran: list[float] = []

    async def work(body: str) -> None:
        ran.append(time.monotonic())
        if len(ran) == 1:
            oncekey.current().transient()

    async with bench.consuming(work) as publish:
        await publish(bench.message(b"a", "id-a"))
        await bench.records(1)
    first, second = ran
    assert second - first > PAUSE_S_MAX / 2


async def test_a_second_delivery_waits_for_the_first(bench: Bench) -> None:
    """Two consumers, the same message to each: one runs it, the other gives it back until then."""
    go, ran = asyncio.Event(), list[str]()

    async def slow(body: str) -> None:
        ran.append(body)
        await go.wait()

    once = f"sqlite:///{bench.file}"
    name = "the same"
    inbox = Inbox(Runtime(once), name=name)
    first = asyncio.create_task(inbox.handle("id-a", slow, "a", payload=b"a"))
    await until(lambda: bool(ran))

    async def work(body: str) -> None:
        ran.append(body)

    async with bench.consuming(work, name=lambda subscriber: name) as publish:
        await publish(bench.message(b"a", "id-a"))
        await until(lambda: bench.put_off["id-a"] == 1)
        go.set()
        await first
        await until(lambda: bench.settled["id-a"] == 1)
    assert ran == ["a"]


# --------------------------------------------------------------------------------- workers die


@contextlib.contextmanager
def child(bench: Bench, ledger: Path, at: str = "") -> Iterator[subprocess.Popen[bytes]]:
    words = [bench.line.name, bench.url, bench.topic, str(bench.file), str(ledger)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.messaging.faststream_app", *words],
        cwd=ROOT,
        env={**os.environ, VARIABLE: at},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def effects(file: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(file)) as db:
        return sorted(body for (body,) in db.execute("SELECT body FROM effects"))


def noted(ledger: Path, event: str) -> list[str]:
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    told = [json.loads(line) for line in lines]
    return [line["id"] for line in told if line["event"] == event]


async def test_workers_that_are_killed_leave_each_effect_once(bench: Bench, tmp_path: Path) -> None:
    """One dies before its handler, the next between its commit and the acknowledgement."""
    ledger, file = tmp_path / "ledger", bench.file
    Outbox(f"sqlite:///{file}").migrate_sync()
    with contextlib.closing(sqlite3.connect(file)) as db, db:
        db.execute("CREATE TABLE effects (body)")
    broker = bench.line.broker(bench.url)
    for subscriber in bench.line.subscribe(broker, bench.topic, NACK):
        subscriber(_nothing)
    await broker.start()  # the queue, stream or group exists from here on
    publish = publish_to(broker, **bench.line.options(bench.topic))
    for subscriber in broker.subscribers:
        await subscriber.stop()
    for name in ("a", "b", "c"):
        await publish(bench.message(name.encode(), f"id-{name}"))

    with child(bench, ledger, "after_insert=kill") as first:
        await until(lambda: first.poll() is not None)
    assert first.returncode == -9
    assert effects(file) == []
    elapse.sqlite(file, LEASE_S)
    with child(bench, ledger, "after_handler=kill") as second:
        await until(lambda: second.poll() is not None)
    assert second.returncode == -9
    assert len(effects(file)) >= 1  # what it had begun beside is begun again after its lease
    elapse.sqlite(file, LEASE_S)
    with child(bench, ledger):
        await until(lambda: set(noted(ledger, "done")) == {"id-a", "id-b", "id-c"})
    await broker.stop()
    assert effects(file) == ["a", "b", "c"]
    assert len(noted(ledger, "delivered")) > 3  # what was not acknowledged came again


async def _nothing(body: str) -> None:
    raise AssertionError("it was stopped before anything was published")


async def test_a_broker_that_is_killed_and_started_again(tmp_path: Path) -> None:
    ran: list[str] = []

    async def work(body: str) -> None:
        ran.append(body)
        await asyncio.sleep(0.005)

    with start_nats(durable=True) as server:
        bench = Bench(BROKERS["nats"], server.url, tmp_path / "keys.db")
        async with bench.consuming(work) as publish:
            for i in range(30):
                await publish(bench.message(b"%d" % i, f"id-{i}"))
            await until(lambda: len(ran) > 5)
            server.kill()
            server.restart()
            await bench.records(30)
            await publish(bench.message(b"last", "id-last"))
            await bench.records(31)
    assert sorted(ran) == sorted([*map(str, range(30)), "last"])


# ------------------------------------------------------------------------------- from an outbox


async def test_from_the_outbox_to_the_inbox_each_effect_once(bench: Bench) -> None:
    """Whoever publishes dies between publishing and noting it: the message comes twice, under one
    id.
    """
    ran: list[str] = []

    async def work(body: str) -> None:
        ran.append(body)

    outbox = Outbox(f"sqlite:///{bench.file}")
    await outbox.migrate()
    with contextlib.closing(sqlite3.connect(bench.file)) as db, db:
        for i in range(5):
            outbox.put_sync(db, bench.topic, b"%d" % i, headers={"content-type": "text/plain"})
    async with bench.consuming(work) as publish:

        async def twice(message: Message) -> None:
            await publish(message)
            await publish(message)

        assert (await Publisher(outbox, twice).drain()).published == 5
        await bench.records(5)
    assert sorted(ran) == ["0", "1", "2", "3", "4"]


AWAY: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "rabbitmq": (start_rabbitmq, {}),
    "nats": (start_nats, {"allow_reconnect": False}),
    "kafka": (start_kafka, {"request_timeout_ms": 300}),
    "redis": (start_redis, {}),
}
"""How each is started, and what makes its client tell early that it is away."""


@pytest.mark.parametrize("name", AWAY)
async def test_while_the_broker_is_away_nothing_is_parked(name: str, tmp_path: Path) -> None:
    """Each client has errors of its own for that, and few are `ConnectionError`s."""
    start, settings = AWAY[name]
    outbox = one_message(tmp_path / "shop.db")
    with contextlib.closing(start()) as server:
        broker = BROKERS[name].broker(server.url, **settings)
        await broker.connect()
        if isinstance(server, Server):
            server.kill()
    publish = publish_to(broker, **BROKERS[name].options("orders"))
    worker = Publisher(outbox, publish, limits=Limits(attempts_max=1))
    for _ in range(3):
        done = await worker.drain()
        assert done.outage is not None
    assert await outbox.parked() == []
    with contextlib.suppress(ConnectionClosedError):
        await broker.stop()


async def test_a_broker_that_is_full_parks_nothing(tmp_path: Path) -> None:
    outbox = one_message(tmp_path / "shop.db")
    limits = Limits(attempts_max=1)
    with start_redis() as server, Redis.from_url(server.url) as operator:
        async with RedisBroker(server.url) as broker:
            worker = Publisher(outbox, publish_to(broker), limits=limits)
            operator.config_set("maxmemory", 1)
            full = await worker.drain()
            operator.config_set("maxmemory", 0)
            assert (await worker.drain()).published == 1
    assert full.outage is not None
    assert full.parked == 0


def one_message(file: Path) -> Outbox:
    outbox = Outbox(f"sqlite:///{file}")
    outbox.migrate_sync()
    with contextlib.closing(sqlite3.connect(file)) as db, db:
        outbox.put_sync(db, "orders", b"1")
    return outbox


async def test_what_no_queue_takes_is_not_taken_for_published(rabbit: Bench) -> None:
    async with RabbitBroker(rabbit.url) as broker:
        publish = publish_to(broker)
        with pytest.raises(LookupError, match="no queue takes"):
            await publish(message("nobody-listens", b"", "id"))


def test_nats_without_a_stream_would_lose_messages(nats_url: str) -> None:
    with pytest.raises(Misuse, match="stream="):
        publish_to(BROKERS["nats"].broker(nats_url))


def test_the_example_runs(nats_url: str, tmp_path: Path) -> None:
    example = (str(ROOT / "examples/faststream_orders.py"), nats_url, "--data", str(tmp_path))
    ran = subprocess.run([sys.executable, *example], capture_output=True, text=True, timeout=50)
    assert ran.returncode == 0, ran.stderr
    assert "['parcel for o17']" in ran.stdout
