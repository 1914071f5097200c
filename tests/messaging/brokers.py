"""FastStream's four brokers, each with a queue that redelivers unacknowledged messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from faststream import AckPolicy
from faststream.kafka import KafkaBroker, TopicPartition
from faststream.nats import JStream, NatsBroker, PullSub
from faststream.rabbit import RabbitBroker, RabbitQueue
from faststream.redis import RedisBroker, StreamSub
from nats.js.api import ConsumerConfig

from oncekey._core.message import Message

AGAIN_S = 0.3
"""After this a broker that goes by time delivers again what nobody has acknowledged."""


@dataclass(frozen=True)
class BrokerKind:
    """One kind of broker. A topic is a queue, a subject with its stream, a topic, or a stream."""

    name: str
    broker: Callable[..., Any]
    subscribe: Callable[..., Sequence[Any]]
    """Subscribers for a topic; several where one reads what is new and one what was left."""
    options: Callable[[str], dict[str, Any]]
    """What `publish_to` needs for a topic."""


def _rabbit(broker: Any, topic: str, ack_policy: Any) -> Sequence[Any]:
    return [broker.subscriber(RabbitQueue(topic, durable=True), ack_policy=ack_policy)]


def _nats(broker: Any, topic: str, ack_policy: Any) -> Sequence[Any]:
    subscriber = broker.subscriber(
        topic,
        stream=JStream(topic),
        durable="worker",
        pull_sub=PullSub(batch_size=1, timeout=0.2),
        config=ConsumerConfig(ack_wait=AGAIN_S),
        ack_policy=ack_policy,
    )
    return [subscriber]


_kafka_broker = partial(KafkaBroker, allow_auto_create_topics=False)  # it makes them by itself


def _kafka(broker: Any, topic: str, ack_policy: Any) -> Sequence[Any]:
    # Its partition is named: where a group assigns them, a killed member is missed only after 6 s.
    subscriber = broker.subscriber(
        partitions=[TopicPartition(topic, 0)],
        group_id=topic,
        auto_offset_reset="earliest",
        ack_policy=ack_policy,
    )
    return [subscriber]


def _redis(broker: Any, topic: str, ack_policy: Any) -> Sequence[Any]:
    given: dict[str, Any] = {"group": "workers", "polling_interval": 10, "last_id": ">"}
    fresh = StreamSub(topic, consumer="one", **given)
    left = StreamSub(topic, consumer="two", min_idle_time=int(AGAIN_S * 1000), **given)
    return [broker.subscriber(stream=each, ack_policy=ack_policy) for each in (fresh, left)]


BROKERS = {
    line.name: line
    for line in (
        BrokerKind("rabbitmq", RabbitBroker, _rabbit, lambda topic: {}),
        BrokerKind("nats", NatsBroker, _nats, lambda topic: {"stream": topic}),
        BrokerKind("kafka", _kafka_broker, _kafka, lambda topic: {"partition": 0}),
        BrokerKind("redis", RedisBroker, _redis, lambda topic: {}),
    )
}


def message(topic: str, payload: bytes, id: str) -> Message:
    """As an outbox would hand it to `publish_to`."""
    return Message(id, topic, None, {"content-type": "text/plain"}, payload)


NACK = AckPolicy.NACK_ON_ERROR
