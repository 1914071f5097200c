"""Messages that cannot be published: put off, parked, or not to blame for an outage."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from typing import Any

import pytest

from oncekey._core.message import Message, lane
from oncekey._system.clock import FakeClock
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.messaging._outbox_worker import Limits
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


def test_a_poisonous_message_is_parked_and_listed_and_can_be_retried(
    outbox_db: OutboxDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    poison = outbox_db.put("orders", b"poison", key="a")
    outbox_db.put("orders", b"after it", key="a")
    broker = Broker()
    broker.refuses = lambda m: ValueError("too odd") if m.payload == b"poison" else None
    with caplog.at_level(logging.ERROR, "oncekey"):
        done = publisher(outbox_db, broker, attempts_max=3).drain_sync()
    assert (done.failed, done.parked, done.published) == (3, 1, 1)
    assert "parked after 3 attempts: ValueError: too odd" in caplog.text
    assert broker.payloads == [b"after it"]  # what is parked holds up nobody
    [parked] = outbox_db.outbox.parked_sync()
    assert parked.message.id == poison.id
    assert parked.message.attempts == 3
    assert parked.error == "ValueError: too odd"
    assert 0 <= parked.age_s < 60

    broker.refuses = lambda message: None
    assert outbox_db.outbox.retry_sync([poison.id]) == 1
    publisher(outbox_db, broker).drain_sync()
    assert broker.got[-1].id == poison.id
    assert outbox_db.outbox.parked_sync() == []


def test_what_kills_its_workers_is_parked_too(outbox_db: OutboxDatabase) -> None:
    outbox_db.put("orders", b"deadly")

    def die(message: Message) -> None:
        raise SystemExit

    for _ in range(2):
        with pytest.raises(SystemExit):
            publisher(outbox_db, die, attempts_max=2).drain_sync()
        outbox_db.elapse(LEASE_S)
    broker = Broker()
    assert publisher(outbox_db, broker, attempts_max=2).drain_sync().parked == 1
    assert broker.got == []
    [parked] = outbox_db.outbox.parked_sync()
    assert "its workers died" in parked.error


def test_what_kills_its_workers_takes_no_others_with_it(outbox_db: OutboxDatabase) -> None:
    with outbox_db.connect() as connection:
        for payload in (b"fine", b"fine", b"deadly", b"fine", b"fine"):
            outbox_db.outbox.put_sync(connection, "orders", payload)
    published: Counter[str] = Counter()

    def die(message: Message) -> None:
        if message.payload == b"deadly":
            raise SystemExit
        published[message.id] += 1

    for _ in range(10):
        with contextlib.suppress(SystemExit):
            publisher(outbox_db, die, attempts_max=3).drain_sync()
        outbox_db.elapse(LEASE_S)

    assert [parked.message.payload for parked in outbox_db.outbox.parked_sync()] == [b"deadly"]
    assert len(published) == 4
    assert max(published.values()) <= 2, "once before its worker died, and once alone"


def test_an_outage_is_no_fault_of_a_message(outbox_db: OutboxDatabase) -> None:
    with outbox_db.connect() as connection:
        for i in range(5):
            outbox_db.outbox.put_sync(connection, "orders", b"%d" % i)
    asked: list[Message] = []

    def away(message: Message) -> Exception:
        asked.append(message)
        return ConnectionError("away")

    broker = Broker()
    broker.refuses = away
    worker = publisher(outbox_db, broker, attempts_max=2)
    for _ in range(5):
        done = worker.drain_sync()
        assert done.outage == "ConnectionError: away"
        assert done.failed == done.parked == 0
    assert 5 <= len(asked) <= 3 + 4  # once it is known, one message is enough to find out
    broker.refuses = lambda message: None
    assert worker.drain_sync().published == 5
    assert {message.attempts for message in broker.got} == {1}


def test_an_outage_that_begins_within_a_batch_is_no_fault_of_the_rest(
    outbox_db: OutboxDatabase,
) -> None:
    """The broker took another in the same round, before it went away."""
    put = [outbox_db.put(f"topic-{i}", b"%d" % i) for i in range(6)]
    broker = Broker()
    broker.refuses = lambda message: ConnectionError("away") if broker.got else None
    worker = publisher(outbox_db, broker, attempts_max=2)
    for _ in range(5):
        done = worker.drain_sync()
        assert done.outage == "ConnectionError: away"
        assert done.failed == done.parked == 0
    broker.refuses = lambda message: None
    assert worker.drain_sync().published == len(put) - 1
    assert {message.id for message in broker.got} == {each.id for each in put}


class Away(Exception):
    """As a broker's client has its own."""


@pytest.mark.parametrize("raised", [Away, ConnectionError, TimeoutError])
def test_outages_of_a_client_s_own_are_so_beside_the_usual_ones(
    sqlite_outbox: OutboxDatabase, raised: type[Exception]
) -> None:
    sqlite_outbox.put("orders", b"1")
    broker = Broker()
    broker.refuses = lambda message: raised("away")
    limits = Limits(attempts_max=1)
    worker = Publisher(sqlite_outbox.outbox, broker, limits=limits, outages=(Away,))
    assert worker.drain_sync().outage == f"{raised.__name__}: away"
    assert sqlite_outbox.outbox.parked_sync() == []


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_topic_that_alone_cannot_be_reached_is_to_blame(
    outbox_db: OutboxDatabase, colour: str
) -> None:
    """Its messages neither hold up all others nor wait for ever, unseen."""
    poison = {outbox_db.put("nowhere", b"poison").id for _ in range(3)}
    broker = Broker()
    broker.refuses = lambda m: TimeoutError("no leader") if m.id in poison else None

    async def publish(message: Message) -> None:
        broker(message)

    worker = publisher(outbox_db, broker if colour == "sync" else publish, attempts_max=2)
    for _ in range(20):  # until another was published, it looks like an outage
        outbox_db.put("orders", b"1")
        if colour == "sync":
            worker.drain_sync()
        else:
            asyncio.run(worker.drain())
        if len(parked := outbox_db.outbox.parked_sync()) == len(poison):
            break
    assert {each.message.id for each in parked} == poison
    assert {each.error for each in parked} == {"TimeoutError: no leader"}


@pytest.mark.parametrize(("batch_max", "drains_max"), [(100, 2), (5, 20)])
def test_a_topic_that_cannot_be_reached_holds_up_no_other(
    outbox_db: OutboxDatabase, batch_max: int, drains_max: int
) -> None:
    """However many of its messages there are: what was not tried yet is tried first."""
    with outbox_db.connect() as connection:
        for _ in range(50):
            outbox_db.outbox.put_sync(connection, "nowhere", b"")
        outbox_db.outbox.put_sync(connection, "orders", b"1")
    broker = Broker()
    broker.refuses = lambda m: TimeoutError("no leader") if m.topic == "nowhere" else None
    worker = publisher(outbox_db, broker, batch_max=batch_max, attempts_max=2)
    for _ in range(drains_max):
        worker.drain_sync()
    assert broker.payloads == [b"1"]


@pytest.mark.parametrize("batch_max", [1, 100])
def test_a_message_that_looks_like_an_outage_holds_up_no_other(
    outbox_db: OutboxDatabase, batch_max: int
) -> None:
    """Others of its topic, and even where it is the first to be found."""
    put = [outbox_db.put("orders", b"%d" % i) for i in range(5)]
    first = min(put, key=lane)
    broker = Broker()
    broker.refuses = lambda message: ConnectionError("away")
    worker = publisher(outbox_db, broker, batch_max=batch_max)
    worker.drain_sync()
    broker.refuses = lambda m: ConnectionError("reset") if m.id == first.id else None
    for _ in range(5):
        worker.drain_sync()
    assert {message.id for message in broker.got} == {each.id for each in put if each != first}


async def test_a_publication_that_cancels_itself_has_failed(outbox_db: OutboxDatabase) -> None:
    outbox_db.put("orders", b"1")

    async def publish(message: Message) -> None:
        raise asyncio.CancelledError("the client was closed")

    done = await publisher(outbox_db, publish, attempts_max=3).drain()
    assert (done.failed, done.parked) == (3, 1)


async def test_a_worker_that_is_cancelled_ends(outbox_db: OutboxDatabase) -> None:
    outbox_db.put("orders", b"1")
    begun = asyncio.Event()

    async def publish(message: Message) -> None:
        begun.set()
        await asyncio.Event().wait()

    worker = asyncio.create_task(publisher(outbox_db, publish).run())
    await begun.wait()
    worker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await worker
    assert outbox_db.count_waiting() == 1


@pytest.mark.parametrize(("said", "kept"), [("a\x00b", r"a\x00b"), ("a\udc80b", r"a\udc80b")])
def test_whatever_a_failure_says_can_be_kept(
    outbox_db: OutboxDatabase, said: str, kept: str
) -> None:
    outbox_db.put("orders", b"1")
    broker = Broker()
    broker.refuses = lambda message: ValueError(said)
    assert publisher(outbox_db, broker, attempts_max=2).drain_sync().parked == 1
    [parked] = outbox_db.outbox.parked_sync()
    assert parked.error == f"ValueError: {kept}"


def test_p11_what_a_failure_says_is_bounded(
    sqlite_outbox: OutboxDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    sqlite_outbox.put("orders\nERROR all is lost", b"1")
    broker = Broker()
    broker.refuses = lambda message: ValueError("x" * 100_000)
    publisher(sqlite_outbox, broker, attempts_max=2).drain_sync()
    assert len(caplog.text) < 3_000
    assert len(caplog.text.splitlines()) == 2


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_p11_a_worker_whose_database_is_gone_says_so_once_and_asks_less_and_less_often(
    sqlite_outbox: OutboxDatabase,
    colour: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, pauses, broker = FakeClock(), list[float](), Broker()
    worker = Publisher(sqlite_outbox.outbox, broker, poll_s=1.0, clock=clock, chance=lambda: 1.0)
    store, pause_s = sqlite_outbox.outbox.store, worker._pause_s

    def refused() -> Any:
        raise StoreUnavailable(f"refused, for the {len(pauses)}th time", sent=False)

    async def arefused() -> Any:
        refused()

    def passed() -> float:
        """The pause, over at once. The database is back after six of them."""
        pauses.append(pause_s())
        clock.advance(pauses[-1])
        if len(pauses) == 6:
            sqlite_outbox.put("orders", b"1")
            broken.undo()
        if broker.payloads:
            worker.stop()
        return 0.0

    with monkeypatch.context() as broken:
        broken.setattr(store, "connect", refused)
        broken.setattr(store, "aconnect", arefused)
        monkeypatch.setattr(worker, "_pause_s", passed)
        if colour == "sync":
            worker.run_sync()
        else:
            asyncio.run(worker.run())
    assert pauses[:6] == [2.0, 4.0, 5.0, 5.0, 5.0, 5.0]
    assert pauses[-1] == 1.0
    assert broker.payloads == [b"1"]
    assert caplog.messages == [
        "the outbox cannot be read: refused, for the 0th time",
        "the outbox can be read again",
    ]


def test_a_broker_that_is_back_is_told_once(
    sqlite_outbox: OutboxDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker()
    worker = publisher(sqlite_outbox, broker)
    sqlite_outbox.put("orders", b"1")
    broker.refuses = lambda message: ConnectionError("nobody listens")
    for _ in range(3):
        worker.drain_sync()
        sqlite_outbox.elapse(60)
    broker.refuses = lambda message: None
    for _ in range(2):
        worker.drain_sync()
    assert broker.payloads == [b"1"]
    assert [line for line in caplog.messages if "the broker" in line] == [
        "the broker cannot be reached, messages wait: ConnectionError: nobody listens",
        "the broker can be reached again",
    ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"concurrency_max": 0}, "concurrency_max=0"),
        ({"publish_s_max": 0}, "publish_s_max=0"),
        ({"publish_s_max": 11.0}, "another worker may start it too"),
        ({"poll_s": "3"}, "poll_s='3'"),
        ({"publish": "amqp://"}, "a function of one message"),
        ({"limits": 3}, "takes a Limits"),
        ({"outages": [OSError]}, "takes a tuple"),
    ],
)
def test_limits_that_cannot_hold_are_told(
    sqlite_outbox: OutboxDatabase, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(Misuse, match=says):
        Publisher(sqlite_outbox.outbox, **{"publish": Broker(), **given})


def test_a_url_in_place_of_an_outbox_is_refused_without_its_password() -> None:
    with pytest.raises(Misuse, match="not a str") as refused:
        Publisher("postgresql://shop:s3cret@db/shop", Broker())  # type: ignore[arg-type]
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("name", ["lease_s", "retry_s_max"])
def test_nothing_is_put_off_for_longer_than_an_hour(name: str) -> None:
    with pytest.raises(Misuse, match=f"{name}=3601: at most 3600 s"):
        Limits(**{name: 3601})


async def test_a_publication_that_hangs_is_given_up(outbox_db: OutboxDatabase) -> None:
    outbox_db.put("orders", b"1")

    async def hangs(message: Message) -> None:
        await asyncio.Event().wait()

    done = await Publisher(outbox_db.outbox, hangs, publish_s_max=0.01).drain()
    assert done.outage == "TimeoutError: "
    assert outbox_db.count_waiting() == 1
