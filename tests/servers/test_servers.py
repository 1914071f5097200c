"""The servers under the other tests: crash tests mean something only if a crash is one."""

import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import aio_pika
import nats
import psycopg
import pytest
import redis
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.servers import (
    Postgres,
    Redis,
    start_mariadb,
    start_nats,
    start_postgres,
    start_rabbitmq,
    start_redis,
)
from tests.servers.mariadb import mysql_connection


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    with start_postgres(durable=True) as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[Redis]:
    with start_redis(durable=True) as server:
        yield server


@pytest.mark.slow
def test_postgres_keeps_commits_through_a_crash(own_postgres: Postgres) -> None:
    with psycopg.connect(own_postgres.url) as before:
        before.execute("CREATE TABLE kept (value int)")
        before.execute("INSERT INTO kept VALUES (7)")
        before.commit()
        before.execute("INSERT INTO kept VALUES (8)")
        first = own_postgres.pid
        own_postgres.kill()
        before.close()
    own_postgres.restart()
    assert own_postgres.pid != first
    assert "not properly shut down" in own_postgres.log
    with psycopg.connect(own_postgres.url) as after:
        assert after.execute("SELECT value FROM kept").fetchall() == [(7,)]
        assert after.execute("SHOW fsync").fetchone() == ("on",)


def test_redis_keeps_writes_through_a_crash(own_redis: Redis) -> None:
    with redis.Redis.from_url(own_redis.url) as client:
        client.set("kept", "7")
        own_redis.kill()
        with pytest.raises(redis.ConnectionError):
            client.get("kept")
        own_redis.restart()
        assert client.get("kept") == b"7"
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


@pytest.mark.slow
def test_mariadb_keeps_commits_through_a_crash() -> None:
    with start_mariadb(durable=True) as own:
        with mysql_connection(own.url) as before:
            cursor = before.cursor()
            cursor.execute("CREATE TABLE kept (value int)")
            cursor.execute("INSERT INTO kept VALUES (7)")
            before.begin()
            cursor.execute("INSERT INTO kept VALUES (8)")
            own.kill()
        own.restart()
        assert "Starting crash recovery" in own.log
        with mysql_connection(own.url) as after, after.cursor() as cursor:
            cursor.execute("SELECT value, @@innodb_flush_log_at_trx_commit FROM kept")
            assert cursor.fetchall() == ((7, 1),)


@pytest.mark.slow
async def test_nats_keeps_its_streams_through_a_crash() -> None:
    with start_nats(durable=True) as own:
        async with await nats.connect(own.url) as before:
            await before.jetstream().add_stream(name="kept", subjects=["kept"])
            await before.jetstream().publish("kept", b"7")
        own.kill()
        own.restart()
        async with await nats.connect(own.url) as after:
            message = await after.jetstream().get_last_msg("kept", "kept")
        assert message.data == b"7"


@pytest.mark.long
async def test_rabbitmq_keeps_durable_queues_through_a_restart() -> None:
    """Killed, it may forget a queue that it has just declared, though not what was confirmed in
    it: its list of queues is written a little later.
    """
    with start_rabbitmq() as own:
        async with await aio_pika.connect(own.url) as before:
            channel = await before.channel()  # with confirmations: published is written
            await channel.declare_queue("kept", durable=True)
            lasting = aio_pika.Message(b"7", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(lasting, "kept")
        own.restart()
        async with await aio_pika.connect(own.url) as after:
            queue = await (await after.channel()).get_queue("kept")
            message = await queue.get(no_ack=True)
        assert message.body == b"7"


def test_kafka_gives_back_what_it_was_given(kafka_url: str) -> None:
    topic = f"topic-{uuid.uuid4().hex}"
    producer = Producer({"bootstrap.servers": kafka_url})
    producer.produce(topic, b"7", partition=0)
    assert producer.flush(10) == 0
    consumer = Consumer({"bootstrap.servers": kafka_url, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(20)
    consumer.close()
    assert message is not None
    assert message.value() == b"7"


def test_a_server_dies_with_the_process_that_started_it() -> None:
    script = (
        "from tests.servers import start_redis\n"
        "server = start_redis()\n"
        "print(server.pid, server.folder.parent, flush=True)\n"
        "input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid_text, folder = parent.stdout.readline().split()
        pid = int(pid_text)
        assert _alive(pid)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while _alive(pid):
        assert time.monotonic() < deadline, "the server outlived its parent"
        time.sleep(0.01)
    shutil.rmtree(folder)  # the next run would do it, too


def test_shared_servers_answer(postgres_url: str, redis_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    with redis.Redis.from_url(redis_url) as client:
        assert client.ping()


def test_pgbouncer_pools_by_transaction(pgbouncer_url: str) -> None:
    """Three idle clients share one server connection, so session state is not a client's own."""
    backends = set()
    clients = [psycopg.connect(pgbouncer_url, prepare_threshold=None) for _ in range(3)]
    for client in clients:
        backends.add(client.execute("SELECT pg_backend_pid()").fetchone())
        client.commit()
    for client in clients:
        client.close()
    assert len(backends) == 1


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # dead, but nobody has asked for its exit status yet
