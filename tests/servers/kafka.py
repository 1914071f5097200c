"""Kafka as librdkafka's mock cluster: the real protocol over real sockets, served by this process.

No broker of Kafka's own can be had without a Java runtime and a download. The mock keeps topics,
consumer groups and their offsets in memory, and loses them with the process.
"""

import confluent_kafka
from confluent_kafka import Producer

BROKERS = 1
_ASK_S_MAX = 10.0


def start_kafka() -> "Kafka":
    """Start an empty cluster; topics come into being when they are first used."""
    return Kafka()


class Kafka:
    """A cluster that lives as long as this object."""

    source = "wheel confluent_kafka"

    def __init__(self) -> None:
        self._host = Producer({"test.mock.num.brokers": BROKERS, "log_level": 0})
        brokers = self._host.list_topics(timeout=_ASK_S_MAX).brokers.values()
        self.url = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    @property
    def version(self) -> str:
        return f"mock cluster of librdkafka {confluent_kafka.libversion()[0]}"

    def close(self) -> None:
        del self._host
