"""What FastStream gets for a message: its id, its result, and whether to acknowledge it."""

from __future__ import annotations

import contextlib
import logging
import uuid
from pathlib import Path
from typing import Any

import nats
import pytest
from faststream import AckPolicy, Response
from faststream.exceptions import AckMessage, NackMessage, RejectMessage
from faststream.message import StreamMessage
from faststream.nats import NatsBroker
from faststream.rabbit import RabbitBroker, RabbitQueue, TestRabbitBroker
from pydantic import BaseModel

from oncekey import current
from oncekey._core.key import short_hash
from oncekey._core.policy import Policy
from oncekey._engine.runtime import Runtime
from oncekey.errors import Misuse
from oncekey.messaging._inbox import Inbox
from oncekey.messaging.faststream import OnceMiddleware, own_id, publish_to
from tests.messaging.brokers import BROKERS, NACK
from tests.messaging.faststream_bench import WAIT_S_MAX, Bench, rabbit, until
from tests.stores import elapse

__all__ = ["rabbit"]

pytestmark = pytest.mark.slow


# --------------------------------------------------------------------------- what is said and when


@pytest.mark.parametrize("twice", [False, True])
async def test_a_middleware_that_is_a_class_or_nested_is_refused(twice: bool) -> None:
    runtime, ran = Runtime("memory://"), list[str]()
    made = OnceMiddleware(runtime)
    given: list[Any] = [made, OnceMiddleware(runtime)] if twice else [OnceMiddleware]
    broker = RabbitBroker(middlewares=given)

    @broker.subscriber("orders")
    async def work(body: str) -> None:
        ran.append(body)

    said = (
        "guarded twice"
        if twice
        else r"the class: make an instance, middlewares=\[OnceMiddleware\(run"
    )
    async with TestRabbitBroker(broker) as tested:
        with pytest.raises(Misuse, match=said):
            await tested.publish("a", "orders", message_id="id-a")
    await runtime.aclose()
    assert not ran


@pytest.mark.parametrize(("raised", "then"), [(NackMessage, NackMessage), (OSError, RejectMessage)])
async def test_p6_under_block_only_a_message_that_its_handler_gives_back_runs_again(
    raised: type[Exception], then: type[Exception]
) -> None:
    runtime, ran = Runtime("memory://"), list[str]()
    broker = RabbitBroker(middlewares=[OnceMiddleware(runtime, policy=Policy(recovery="block"))])

    @broker.subscriber("orders")
    async def work(body: str) -> None:
        ran.append(body)
        if len(ran) == 1:
            raise raised

    async with TestRabbitBroker(broker) as tested:
        for _ in range(2):
            with contextlib.suppress(raised, then):
                await tested.publish("a", "orders", message_id="id-a")
    await runtime.aclose()
    assert len(ran) == (2 if raised is NackMessage else 1)


async def test_p6_a_message_that_is_given_back_when_nobody_knows_what_was_done_does_not_run() -> (
    None
):
    runtime, ran = Runtime("memory://"), list[str]()
    broker = RabbitBroker(middlewares=[OnceMiddleware(runtime)])

    @broker.subscriber("orders")
    async def work(body: str) -> None:
        ran.append(body)
        current().unknown()
        raise NackMessage

    async with TestRabbitBroker(broker) as tested:
        for _ in range(2):
            with contextlib.suppress(NackMessage, RejectMessage):
                await tested.publish("a", "orders", message_id="id-a")
    await runtime.aclose()
    assert len(ran) == 1


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
    assert "has no usable id" in "".join(capsys.readouterr())


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
    bench = Bench(BROKERS["kafka"], kafka_url, tmp_path / "keys.db")
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
    bench = Bench(BROKERS["nats"], nats_url, tmp_path / "keys.db")
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
    bench = Bench(BROKERS["kafka"], kafka_url, tmp_path / "keys.db")

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
