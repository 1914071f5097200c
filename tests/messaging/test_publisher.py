"""Publish an outbox: several workers, leases, crashes, start and stop."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from oncekey._core.message import Message
from oncekey._core.op import run
from oncekey._system.clock import SystemClock
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.messaging._outbox import Outbox
from oncekey.messaging._outbox_worker import Deliver, Limits, OutboxWorker, Published
from oncekey.messaging._publisher import Publisher
from tests.messaging.outbox_databases import (
    OutboxDatabase,
    mariadb_outbox,
    mysql_outbox,
    outbox_db,
    postgres_outbox,
    sqlite_outbox,
)
from tests.messaging.publishing import LEASE_S, Broker, publisher

__all__ = ["mariadb_outbox", "mysql_outbox", "outbox_db", "postgres_outbox", "sqlite_outbox"]


# --------------------------------------------------------------------------- several workers


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_workers_at_once_publish_each_message_once(outbox_db: OutboxDatabase, colour: str) -> None:
    with outbox_db.connect() as connection:
        put = [outbox_db.outbox.put_sync(connection, "orders", b"%d" % i).id for i in range(200)]
    broker = Broker()

    async def all_at_once() -> None:
        workers = [publisher(outbox_db, broker, batch_max=7) for _ in range(3)]
        await asyncio.gather(*(worker.drain() for worker in workers))

    if colour == "async":
        asyncio.run(all_at_once())
    else:
        drains = [publisher(outbox_db, broker, batch_max=7).drain_sync for _ in range(3)]
        threads = [threading.Thread(target=drain) for drain in drains]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert Counter(message.id for message in broker.got) == Counter(put)
    assert outbox_db.count_waiting() == 0


def test_messages_of_a_key_are_published_in_order(outbox_db: OutboxDatabase) -> None:
    with outbox_db.connect() as connection:
        for i in range(120):
            outbox_db.outbox.put_sync(connection, "orders", b"%d" % i, key=f"customer-{i % 5}")
    broker = Broker()
    drains = [publisher(outbox_db, broker, batch_max=4).drain_sync for _ in range(3)]
    threads = [threading.Thread(target=drain) for drain in drains]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    publisher(outbox_db, broker).drain_sync()  # what one had while the last of the others looked
    for customer in range(5):
        of_one = [int(m.payload) for m in broker.got if m.key == f"customer-{customer}"]
        assert of_one == list(range(customer, 120, 5))


def test_a_message_that_fails_holds_up_its_key_alone(outbox_db: OutboxDatabase) -> None:
    for payload, key in ((b"1", "a"), (b"2", "a"), (b"3", "b"), (b"4", None)):
        outbox_db.put("orders", payload, key=key)
    broker = Broker()
    broker.refuses = lambda message: ValueError("no") if message.payload == b"1" else None
    given = Limits(retry_s_min=100.0, retry_s_max=100.0)
    worker = Publisher(outbox_db.outbox, broker, limits=given, chance=lambda: 0.9)
    done = worker.drain_sync()
    assert (done.published, done.failed) == (2, 1)
    assert sorted(broker.payloads) == [b"3", b"4"]
    broker.refuses = lambda message: None
    assert worker.drain_sync().claimed == 0  # not before its time
    outbox_db.elapse(100.0)
    worker.drain_sync()
    assert broker.payloads[2:] == [b"1", b"2"]


def test_a_long_lane_costs_one_look(outbox_db: OutboxDatabase) -> None:
    with outbox_db.connect() as connection:
        for i in range(50):
            outbox_db.outbox.put_sync(connection, "orders", b"%d" % i, key="hot")
        for i in range(3):
            outbox_db.outbox.put_sync(connection, "orders", b"other %d" % i)
    store, table = outbox_db.outbox.store, outbox_db.outbox.table
    connection = store.connect()
    run(store.prepare(), connection.ask)
    heads = run(table.look(b"", 100), connection.ask)
    assert len(heads) == 4
    assert run(table.look(heads[1].lane, 100), connection.ask) == heads[2:]
    assert run(table.look(b"", 2), connection.ask) == heads[:2]
    connection.close()


def test_a_batch_is_bounded_in_bytes(outbox_db: OutboxDatabase) -> None:
    for _ in range(3):
        outbox_db.put("orders", b"x" * 1000)
    batches: list[int] = []
    worker = OutboxWorker(outbox_db.outbox.table, Limits(batch_bytes_max=1500), SystemClock())
    with_connection = outbox_db.outbox.store.connect()
    run(outbox_db.outbox.store.prepare(), with_connection.ask)

    def ask(question: Any) -> Any:
        if isinstance(question, Deliver):
            batches.append(len(question.messages))
            return [Published()] * len(question.messages)
        return with_connection.ask(question)

    assert run(worker.run_until_empty(), ask).published == 3
    with_connection.close()
    assert batches == [1, 1, 1]


# ------------------------------------------------------------------------- leases and deaths


def test_a_stale_worker_marks_nothing_as_delivered(outbox_db: OutboxDatabase) -> None:
    """Its lease was over while it published: another has the message, and its say alone counts."""
    outbox_db.put("orders", b"1")
    heir = Broker()
    heir.refuses = lambda message: ValueError("not this one")

    def slow(message: Message) -> None:
        outbox_db.elapse(LEASE_S)
        publisher(outbox_db, heir, attempts_max=2).drain_sync()

    assert publisher(outbox_db, slow).drain_sync().published == 1
    assert outbox_db.count_waiting() == 1
    assert len(outbox_db.outbox.parked_sync()) == 1  # as the heir has left it


def test_a_stale_worker_brings_nothing_back(outbox_db: OutboxDatabase) -> None:
    outbox_db.put("orders", b"1")
    heir = Broker()

    def slow(message: Message) -> None:
        outbox_db.elapse(LEASE_S)
        publisher(outbox_db, heir).drain_sync()
        raise ValueError("too late")

    publisher(outbox_db, slow).drain_sync()
    assert heir.payloads == [b"1"]
    assert outbox_db.count_waiting() == 0


def test_nothing_is_begun_when_the_lease_is_nearly_over(outbox_db: OutboxDatabase) -> None:
    for _ in range(3):
        outbox_db.put("orders", b"1")
    begun = SystemClock.monotonic()

    class Jumps(SystemClock):
        """Its first reading is the claim's; half the lease goes by with every later one."""

        def __init__(self) -> None:
            self.readings = 0

        def monotonic(self) -> float:
            self.readings += 1
            return begun + (self.readings - 1) * LEASE_S / 2

    broker, clock = Broker(), Jumps()
    worker = Publisher(outbox_db.outbox, broker, limits=Limits(lease_s=LEASE_S), clock=clock)
    worker._worker._is_stopping = lambda: bool(broker.got)  # one round
    assert worker.drain_sync().published == 1
    assert outbox_db.count_waiting() == 2
    publisher(outbox_db, broker).drain_sync()
    assert {message.attempts for message in broker.got} == {1}  # what was not begun is not counted


@pytest.mark.parametrize("happened", [True, False])
def test_a_lost_reply_is_asked_again(outbox_db: OutboxDatabase, happened: bool) -> None:
    """The removal happened and its answer was lost: repeated, it does no harm. Or it did not
    happen: if it was not repeated, the message would be published again after the lease.
    """
    outbox_db.put("orders", b"1")
    store = outbox_db.outbox.store
    connection = store.connect()
    run(store.prepare(), connection.ask)
    worker = OutboxWorker(outbox_db.outbox.table, Limits(), SystemClock())
    published: list[Message] = []
    replies = 0

    def ask(question: Any) -> Any:
        nonlocal replies
        if isinstance(question, Deliver):
            published.extend(question.messages)
            return [Published()] * len(question.messages)
        if hasattr(question, "seconds"):
            return None
        replies += bool(published)
        lost = replies == 1
        answer = connection.ask(question) if happened or not lost else None
        if lost:
            raise StoreUnavailable("the reply was lost")
        return answer

    assert run(worker.run_until_empty(), ask).published == 1
    connection.close()
    assert len(published) == 1
    assert outbox_db.count_waiting() == 0


# ------------------------------------------------------------------------------------ running


async def test_it_runs_until_it_is_stopped_and_can_be_woken(outbox_db: OutboxDatabase) -> None:
    arrived = asyncio.Event()

    async def publish(message: Message) -> None:
        arrived.set()

    worker = Publisher(outbox_db.outbox, publish, poll_s=3600.0)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(10):
        for _ in range(3):
            await asyncio.to_thread(outbox_db.put, "orders", b"1")
            while not arrived.is_set():
                worker.wake()
                await asyncio.sleep(0.001)
            arrived.clear()
        worker.stop()
        await running
    assert outbox_db.count_waiting() == 0


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_it_goes_on_after_an_error_that_nobody_foresaw(
    sqlite_outbox: OutboxDatabase,
    colour: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Such as a driver's own, where a table is changed under a statement that it has prepared."""
    look, errors = sqlite_outbox.outbox.table.look, [RuntimeError("cached plan must not change")]

    def failing(*asked: Any) -> Any:
        if errors:
            raise errors.pop()
        return look(*asked)

    monkeypatch.setattr(sqlite_outbox.outbox.table, "look", failing)
    sqlite_outbox.put("orders", b"1")
    broker = Broker()

    def publish(message: Message) -> None:
        broker(message)
        worker.stop()

    worker = Publisher(sqlite_outbox.outbox, publish, poll_s=0.001)
    if colour == "sync":
        worker.run_sync()
    else:
        asyncio.run(worker.run())

    assert broker.payloads == [b"1"]
    assert "RuntimeError: cached plan" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_table_that_is_changed_meanwhile_ends_nobody(
    postgres_outbox: OutboxDatabase, colour: str
) -> None:
    """As a migration to the next release does."""
    outbox_db, arrived = postgres_outbox, threading.Event()
    worker = Publisher(outbox_db.outbox, lambda message: arrived.set(), poll_s=0.01)
    work = worker.run_sync if colour == "sync" else lambda: asyncio.run(worker.run())
    thread = threading.Thread(target=work)
    thread.start()
    for kind in ("bigint", "integer"):
        outbox_db.put("orders", b"1")
        assert arrived.wait(20)
        arrived.clear()
        with outbox_db.connect() as connection:
            connection.execute(f"ALTER TABLE oncekey_outbox ALTER COLUMN attempts TYPE {kind}")
    worker.stop()
    thread.join(20)
    assert not thread.is_alive()


def test_it_polls_without_being_woken(outbox_db: OutboxDatabase) -> None:
    arrived = threading.Event()
    worker = Publisher(outbox_db.outbox, lambda message: arrived.set(), poll_s=0.01)
    thread = threading.Thread(target=worker.run_sync)
    thread.start()
    outbox_db.put("orders", b"1")
    assert arrived.wait(10)
    worker.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_an_async_publish_needs_a_loop(outbox_db: OutboxDatabase) -> None:
    outbox_db.put("orders", b"1")

    async def publish(message: Message) -> None: ...

    with pytest.raises(Misuse, match=r"run\(\) or drain\(\)"):
        Publisher(outbox_db.outbox, publish).drain_sync()


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_it_drains_through_pgbouncer(
    postgres_outbox: OutboxDatabase, pgbouncer_url: str, colour: str
) -> None:
    for i in range(10):
        postgres_outbox.put("orders", b"%d" % i, key=str(i % 2))
    broker = Broker()
    outbox = Outbox(f"{pgbouncer_url}?pgbouncer=true&allow=unsafe-durability")
    worker = Publisher(outbox, broker, limits=Limits(batch_max=3))
    if colour == "async":
        asyncio.run(worker.drain())
    else:
        worker.drain_sync()
    assert len(broker.got) == 10
    assert postgres_outbox.count_waiting() == 0
