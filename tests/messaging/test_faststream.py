"""Subscribers of FastStream run once per message, on four real brokers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sqlite3
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import pytest
from faststream import AckPolicy, BaseMiddleware, Response
from faststream.exceptions import AckMessage, NackMessage
from faststream.message import StreamMessage
from faststream.nats import NatsBroker
from faststream.rabbit import RabbitBroker, RabbitQueue
from pydantic import BaseModel

import oncekey
from oncekey.core.key import short_hash
from oncekey.core.policy import Policy
from oncekey.errors import Misuse
from oncekey.messaging.faststream import PAUSE_S_MAX, OnceMiddleware, own_id, publish_to
from oncekey.messaging.inbox import Inbox
from oncekey.messaging.message import Message
from oncekey.messaging.outbox import Outbox
from oncekey.messaging.publisher import Publisher
from oncekey.runtime import Runtime
from oncekey.testing.crash import VARIABLE
from tests.messaging.faststream_app import LEASE_S
from tests.messaging.lines import LINES, NACK, Line, message
from tests.servers import start_nats
from tests.stores import elapse

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WAIT_S_MAX = 20.0


@dataclass
class Bench:
    """A broker, a topic of its own on it, and a store."""

    line: Line
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


@pytest.fixture(params=list(LINES))
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    url = request.getfixturevalue(f"{request.param}_url")
    return Bench(LINES[request.param], url, tmp_path / "keys.db")


@pytest.fixture
def rabbit(rabbitmq_url: str, tmp_path: Path) -> Bench:
    return Bench(LINES["rabbitmq"], rabbitmq_url, tmp_path / "keys.db")


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
        bench = Bench(LINES["nats"], server.url, tmp_path / "keys.db")
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


async def test_what_no_queue_takes_is_not_taken_for_published(rabbit: Bench) -> None:
    async with RabbitBroker(rabbit.url) as broker:
        publish = publish_to(broker)
        with pytest.raises(LookupError, match="no queue takes"):
            await publish(message("nobody-listens", b"", "id"))


def test_nats_without_a_stream_would_lose_messages(nats_url: str) -> None:
    with pytest.raises(Misuse, match="stream="):
        publish_to(LINES["nats"].broker(nats_url))


def test_the_example_runs(nats_url: str, tmp_path: Path) -> None:
    example = (str(ROOT / "examples/faststream_orders.py"), nats_url, "--data", str(tmp_path))
    ran = subprocess.run([sys.executable, *example], capture_output=True, text=True, timeout=50)
    assert ran.returncode == 0, ran.stderr
    assert "['parcel for o17']" in ran.stdout


# --------------------------------------------------------------------------- what is said and when


async def test_an_unknown_outcome_goes_to_the_dead_letters(
    rabbit: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    policy, name = Policy(recovery="block").settled(), "blocked"
    runtime = Runtime(f"sqlite:///{rabbit.file}")
    call = Inbox(runtime, name=name, policy=policy)._call("id-a", "single", b"a")
    await runtime.drive(runtime.guard.begin(call, policy))  # and then it died
    elapse.sqlite(rabbit.file, policy.lease_s)
    ran: list[str] = []
    once = OnceMiddleware(runtime, policy=policy, name=lambda subscriber: name)
    broker = RabbitBroker(rabbit.url, middlewares=[once])
    letters = RabbitQueue(f"{rabbit.topic}-dead")
    arguments: Any = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters.name}

    @broker.subscriber(RabbitQueue(rabbit.topic, arguments=arguments), ack_policy=NACK)
    async def work(body: str) -> None:
        ran.append(body)

    await broker.start()
    declared = await broker.declare_queue(letters)
    await publish_to(broker)(rabbit.message(b"a", "id-a"))
    dead: Any = None
    while dead is None:
        dead = await declared.get(fail=False, no_ack=True)
    await broker.stop()
    await runtime.aclose()
    assert dead.message_id == "id-a"
    assert ran == []
    said = [line for line in caplog.text.splitlines() if "is rejected" in line]
    assert f"blocked: message key={short_hash('id-a')} is rejected" in said[0]
    assert "id-a" not in said[0], "P12"


async def test_a_message_without_an_id_is_an_error(
    nats_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FastStream gives such a message a new id with every delivery: that must not be believed."""
    ran: list[str] = []
    runtime = Runtime(f"sqlite:///{tmp_path}/keys.db")
    broker = NatsBroker(nats_url, middlewares=[OnceMiddleware(runtime)])
    subject = uuid.uuid4().hex

    @broker.subscriber(subject)
    async def work(body: str) -> None:
        ran.append(body)

    await broker.start()
    async with await nats.connect(nats_url) as client:
        await client.publish(subject, b"nameless")
        await client.publish(subject, b"named", headers={"Nats-Msg-Id": "id"})
        await until(lambda: bool(ran))
    await broker.stop()
    await runtime.aclose()
    assert ran == ["named"]
    assert "has no id to know it by" in "".join(capsys.readouterr())


async def test_an_id_can_be_made_of_what_a_message_is_about(rabbit: Bench) -> None:
    ran: list[str] = []

    async def work(body: str) -> None:
        ran.append(body)

    def order_id(delivered: StreamMessage[Any]) -> str:
        return delivered.body.decode()

    async with rabbit.consuming(work, message_id=order_id) as publish:
        for i, name in enumerate(("a", "a", "b")):
            await publish(rabbit.message(name.encode(), str(i)))
        await until(lambda: rabbit.settled.total() == 3)
    assert sorted(ran) == ["a", "b"]


async def test_kafka_knows_a_message_by_its_place(kafka_url: str, tmp_path: Path) -> None:
    bench = Bench(LINES["kafka"], kafka_url, tmp_path / "keys.db")
    ids: list[str | None] = []

    def noticed(delivered: StreamMessage[Any]) -> str | None:
        ids.append(own_id(delivered))
        return ids[-1]

    async def work(body: str) -> None: ...

    async with bench.consuming(work, message_id=noticed):
        async with bench.line.broker(kafka_url) as other:
            for _ in range(2):
                await other.publish("the same", bench.topic, partition=0)
        await bench.records(2)
    assert [str(id).rpartition("/")[0] for id in ids] == [f"{bench.topic}/0/{n}" for n in (0, 1)]


async def test_a_stream_that_is_made_anew_has_new_messages(nats_url: str, tmp_path: Path) -> None:
    """It counts from 1 again: by their places alone they would be those of the old one, or other
    messages under their ids, and none of them would run.
    """
    bench = Bench(LINES["nats"], nats_url, tmp_path / "keys.db")
    ran: list[str] = []
    ids: list[str | None] = []

    def noticed(delivered: StreamMessage[Any]) -> str | None:
        ids.append(own_id(delivered))
        return ids[-1]

    async def work(body: str) -> None:
        ran.append(body)
        if len(ran) == 1:
            raise ValueError("not yet")

    connection = await nats.connect(nats_url)
    try:
        for number, name in enumerate("abb", start=1):
            async with bench.consuming(work, message_id=noticed):
                await connection.jetstream().publish(bench.topic, name.encode())
                await bench.records(number)
            await connection.jetstream().delete_stream(bench.topic)
    finally:
        await connection.close()
    assert "".join(ran) == "aabb"
    assert ids[0] == ids[1], "delivered again, it is the same"
    assert len(set(ids)) == 3


async def test_to_acknowledge_first_is_warned_of(
    kafka_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(LINES["kafka"], kafka_url, tmp_path / "keys.db")

    async def work(body: str) -> None: ...

    with caplog.at_level(logging.ERROR, "oncekey"):
        async with bench.consuming(work, AckPolicy.ACK_FIRST) as publish:
            for name in ("a", "b"):
                await publish(bench.message(name.encode(), name))
            await bench.records(2)
    assert caplog.text.count("acknowledges a message before it runs") == 1


# ----------------------------------------------------------------------------------- results


class Receipt(BaseModel):
    order: str


@pytest.mark.parametrize("kind", ["plain", "model", "response"])
async def test_a_lost_reply_is_sent_again(rabbit: Bench, kind: str) -> None:
    ran: list[str] = []

    async def work(body: str) -> Any:
        ran.append(body)
        given = {"order": body}
        return {"plain": given, "model": Receipt(**given), "response": Response(given)}[kind]

    async with rabbit.consuming(work), RabbitBroker(rabbit.url) as client:
        for _ in range(2):
            reply = await client.request(
                "7", rabbit.topic, message_id="id", content_type="text/plain", timeout=WAIT_S_MAX
            )
            assert await reply.decode() == {"order": "7"}
    assert ran == ["7"]


async def test_a_handler_that_says_acknowledge_is_done(rabbit: Bench) -> None:
    ran: list[str] = []

    async def work(body: str) -> None:
        ran.append(body)
        raise AckMessage

    async with rabbit.consuming(work) as publish:
        for _ in range(2):
            await publish(rabbit.message(b"a", "id-a"))
            await rabbit.records(1)
        await until(lambda: rabbit.settled["id-a"] == 1)  # the first ended by an exception
    assert ran == ["a"]


async def test_a_duplicate_is_acknowledged_where_the_handler_would_have_to(rabbit: Bench) -> None:
    async def manual(body: str) -> None: ...

    async with rabbit.consuming(manual, AckPolicy.MANUAL) as publish:
        await publish(rabbit.message(b"a", "id-a"))
        await rabbit.records(1)
        await publish(rabbit.message(b"a", "id-a"))
        await until(lambda: rabbit.settled["id-a"] == 2)
    async with RabbitBroker(rabbit.url) as broker:
        queue = await broker.declare_queue(RabbitQueue(rabbit.topic, durable=True))
        left = queue.declaration_result.message_count
    assert left == 1  # the first, which this handler has forgotten to acknowledge
