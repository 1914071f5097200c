"""Draining an outbox: several workers, failures, outages, deaths."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from oncekey.clock import SystemClock
from oncekey.core.op import run
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.messaging.draining import Deliver, Drain, Limits, Published
from oncekey.messaging.message import Message
from oncekey.messaging.outbox import Outbox
from oncekey.messaging.publisher import Publisher
from tests.messaging.desks import Desk, desk, mariadb_desk, mysql_desk, postgres_desk, sqlite_desk

__all__ = ["desk", "mariadb_desk", "mysql_desk", "postgres_desk", "sqlite_desk"]

LEASE_S = 30.0


class Broker:
    """Remembers what it was given, and refuses what a test tells it to."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.refuses: Callable[[Message], Exception | None] = lambda message: None
        self._mutex = threading.Lock()

    def __call__(self, message: Message) -> None:
        with self._mutex:
            if error := self.refuses(message):
                raise error
            self.got.append(message)

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.got]


def publisher(desk: Desk, publish: Callable[[Message], Any], **limits: Any) -> Publisher:
    """One whose delays are all 0: tests make time pass by `elapse`."""
    given = Limits(**{"lease_s": LEASE_S, **limits})
    return Publisher(desk.outbox, publish, limits=given, chance=lambda: 0.0)


# --------------------------------------------------------------------------- several workers


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_workers_at_once_publish_each_message_once(desk: Desk, colour: str) -> None:
    with desk.connect() as connection:
        put = [desk.outbox.put_sync(connection, "orders", b"%d" % i).id for i in range(200)]
    broker = Broker()

    async def all_at_once() -> None:
        workers = [publisher(desk, broker, batch_max=7) for _ in range(3)]
        await asyncio.gather(*(worker.drain() for worker in workers))

    if colour == "async":
        asyncio.run(all_at_once())
    else:
        drains = [publisher(desk, broker, batch_max=7).drain_sync for _ in range(3)]
        threads = [threading.Thread(target=drain) for drain in drains]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert Counter(message.id for message in broker.got) == Counter(put)
    assert desk.waiting() == 0


def test_messages_of_a_key_are_published_in_order(desk: Desk) -> None:
    with desk.connect() as connection:
        for i in range(120):
            desk.outbox.put_sync(connection, "orders", b"%d" % i, key=f"customer-{i % 5}")
    broker = Broker()
    drains = [publisher(desk, broker, batch_max=4).drain_sync for _ in range(3)]
    threads = [threading.Thread(target=drain) for drain in drains]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    publisher(desk, broker).drain_sync()  # what one had while the last of the others looked
    for customer in range(5):
        of_one = [int(m.payload) for m in broker.got if m.key == f"customer-{customer}"]
        assert of_one == list(range(customer, 120, 5))


def test_a_message_that_fails_holds_up_its_key_alone(desk: Desk) -> None:
    for payload, key in ((b"1", "a"), (b"2", "a"), (b"3", "b"), (b"4", None)):
        desk.put("orders", payload, key=key)
    broker = Broker()
    broker.refuses = lambda message: ValueError("no") if message.payload == b"1" else None
    given = Limits(retry_s_min=100.0, retry_s_max=100.0)
    worker = Publisher(desk.outbox, broker, limits=given, chance=lambda: 0.9)
    done = worker.drain_sync()
    assert (done.published, done.failed) == (2, 1)
    assert sorted(broker.payloads) == [b"3", b"4"]
    broker.refuses = lambda message: None
    assert worker.drain_sync().claimed == 0  # not before its time
    desk.elapse(100.0)
    worker.drain_sync()
    assert broker.payloads[2:] == [b"1", b"2"]


def test_a_long_lane_costs_one_look(desk: Desk) -> None:
    with desk.connect() as connection:
        for i in range(50):
            desk.outbox.put_sync(connection, "orders", b"%d" % i, key="hot")
        for i in range(3):
            desk.outbox.put_sync(connection, "orders", b"other %d" % i)
    store, shelf = desk.outbox.store, desk.outbox.shelf
    connection = store.connect()
    run(store.prepare(), connection.ask)
    heads = run(shelf.look(b"", 100), connection.ask)
    assert len(heads) == 4
    assert run(shelf.look(heads[1].lane, 100), connection.ask) == heads[2:]
    assert run(shelf.look(b"", 2), connection.ask) == heads[:2]
    connection.close()


def test_a_batch_is_bounded_in_bytes(desk: Desk) -> None:
    for _ in range(3):
        desk.put("orders", b"x" * 1000)
    batches: list[int] = []
    drain = Drain(desk.outbox.shelf, Limits(batch_bytes_max=1500), SystemClock())
    with_connection = desk.outbox.store.connect()
    run(desk.outbox.store.prepare(), with_connection.ask)

    def ask(question: Any) -> Any:
        if isinstance(question, Deliver):
            batches.append(len(question.messages))
            return [Published()] * len(question.messages)
        return with_connection.ask(question)

    assert run(drain.until_empty(), ask).published == 3
    with_connection.close()
    assert batches == [1, 1, 1]


# --------------------------------------------------------------------------------- failures


def test_a_poisonous_message_is_parked_and_listed_and_can_be_retried(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    poison = desk.put("orders", b"poison", key="a")
    desk.put("orders", b"after it", key="a")
    broker = Broker()
    broker.refuses = lambda m: ValueError("too odd") if m.payload == b"poison" else None
    with caplog.at_level(logging.ERROR, "oncekey"):
        done = publisher(desk, broker, attempts_max=3).drain_sync()
    assert (done.failed, done.parked, done.published) == (3, 1, 1)
    assert "parked after 3 attempts: ValueError: too odd" in caplog.text
    assert broker.payloads == [b"after it"]  # what is parked holds up nobody
    [parked] = desk.outbox.parked_sync()
    assert parked.message.id == poison.id
    assert parked.message.attempts == 3
    assert parked.error == "ValueError: too odd"
    assert 0 <= parked.age_s < 60

    broker.refuses = lambda message: None
    assert desk.outbox.retry_sync([poison.id]) == 1
    publisher(desk, broker).drain_sync()
    assert broker.got[-1].id == poison.id
    assert desk.outbox.parked_sync() == []


def test_what_kills_its_workers_is_parked_too(desk: Desk) -> None:
    desk.put("orders", b"deadly")

    def die(message: Message) -> None:
        raise SystemExit

    for _ in range(2):
        with pytest.raises(SystemExit):
            publisher(desk, die, attempts_max=2).drain_sync()
        desk.elapse(LEASE_S)
    broker = Broker()
    assert publisher(desk, broker, attempts_max=2).drain_sync().parked == 1
    assert broker.got == []
    [parked] = desk.outbox.parked_sync()
    assert "its workers died" in parked.error


def test_what_kills_its_workers_takes_no_others_with_it(desk: Desk) -> None:
    with desk.connect() as connection:
        for payload in (b"fine", b"fine", b"deadly", b"fine", b"fine"):
            desk.outbox.put_sync(connection, "orders", payload)
    published: Counter[str] = Counter()

    def die(message: Message) -> None:
        if message.payload == b"deadly":
            raise SystemExit
        published[message.id] += 1

    for _ in range(10):
        with contextlib.suppress(SystemExit):
            publisher(desk, die, attempts_max=3).drain_sync()
        desk.elapse(LEASE_S)

    assert [parked.message.payload for parked in desk.outbox.parked_sync()] == [b"deadly"]
    assert len(published) == 4
    assert max(published.values()) <= 2, "once before its worker died, and once alone"


def test_an_outage_is_no_fault_of_a_message(desk: Desk) -> None:
    with desk.connect() as connection:
        for i in range(5):
            desk.outbox.put_sync(connection, "orders", b"%d" % i)
    asked: list[Message] = []

    def away(message: Message) -> Exception:
        asked.append(message)
        return ConnectionError("away")

    broker = Broker()
    broker.refuses = away
    worker = publisher(desk, broker, attempts_max=2)
    for _ in range(5):
        done = worker.drain_sync()
        assert done.outage == "ConnectionError: away"
        assert done.failed == done.parked == 0
    assert 5 <= len(asked) <= 3 + 4  # once it is known, one message is enough to find out
    broker.refuses = lambda message: None
    assert worker.drain_sync().published == 5
    assert {message.attempts for message in broker.got} == {1}


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_topic_that_alone_cannot_be_reached_is_to_blame(desk: Desk, colour: str) -> None:
    """Its messages neither hold up all others nor wait for ever, unseen."""
    poison = {desk.put("nowhere", b"poison").id for _ in range(3)}
    broker = Broker()
    broker.refuses = lambda m: TimeoutError("no leader") if m.id in poison else None

    async def publish(message: Message) -> None:
        broker(message)

    worker = publisher(desk, broker if colour == "sync" else publish, attempts_max=2)
    for _ in range(20):  # until another was published, it looks like an outage
        desk.put("orders", b"1")
        if colour == "sync":
            worker.drain_sync()
        else:
            asyncio.run(worker.drain())
        if len(parked := desk.outbox.parked_sync()) == len(poison):
            break
    assert {each.message.id for each in parked} == poison
    assert {each.error for each in parked} == {"TimeoutError: no leader"}


async def test_a_publication_that_cancels_itself_has_failed(desk: Desk) -> None:
    desk.put("orders", b"1")

    async def publish(message: Message) -> None:
        raise asyncio.CancelledError("the client was closed")

    done = await publisher(desk, publish, attempts_max=3).drain()
    assert (done.failed, done.parked) == (3, 1)


async def test_a_worker_that_is_cancelled_ends(desk: Desk) -> None:
    desk.put("orders", b"1")
    begun = asyncio.Event()

    async def publish(message: Message) -> None:
        begun.set()
        await asyncio.Event().wait()

    worker = asyncio.create_task(publisher(desk, publish).run())
    await begun.wait()
    worker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await worker
    assert desk.waiting() == 1


@pytest.mark.parametrize(("said", "kept"), [("a\x00b", r"a\x00b"), ("a\udc80b", r"a\udc80b")])
def test_whatever_a_failure_says_can_be_kept(desk: Desk, said: str, kept: str) -> None:
    desk.put("orders", b"1")
    broker = Broker()
    broker.refuses = lambda message: ValueError(said)
    assert publisher(desk, broker, attempts_max=2).drain_sync().parked == 1
    [parked] = desk.outbox.parked_sync()
    assert parked.error == f"ValueError: {kept}"


def test_p11_what_a_failure_says_is_bounded(
    sqlite_desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    sqlite_desk.put("orders\nERROR all is lost", b"1")
    broker = Broker()
    broker.refuses = lambda message: ValueError("x" * 100_000)
    publisher(sqlite_desk, broker, attempts_max=2).drain_sync()
    assert len(caplog.text) < 3_000
    assert len(caplog.text.splitlines()) == 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"concurrency_max": 0}, "concurrency_max=0"),
        ({"publish_s_max": 0}, "publish_s_max=0"),
        ({"publish_s_max": 11.0}, "may be begun by another worker too"),
        ({"poll_s": "3"}, "poll_s='3'"),
        ({"publish": "amqp://"}, "a function of one message"),
        ({"limits": 3}, "takes a Limits"),
        ({"outages": [OSError]}, "takes a tuple"),
    ],
)
def test_limits_that_cannot_hold_are_told(
    sqlite_desk: Desk, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(Misuse, match=says):
        Publisher(sqlite_desk.outbox, **{"publish": Broker(), **given})


def test_a_url_in_place_of_an_outbox_is_refused_without_its_password() -> None:
    with pytest.raises(Misuse, match="not a str") as refused:
        Publisher("postgresql://shop:s3cret@db/shop", Broker())  # type: ignore[arg-type]
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("name", ["lease_s", "retry_s_max"])
def test_nothing_is_put_off_for_longer_than_an_hour(name: str) -> None:
    with pytest.raises(Misuse, match=f"{name}=3601: at most 3600 s"):
        Limits(**{name: 3601})


async def test_a_publication_that_hangs_is_given_up(desk: Desk) -> None:
    desk.put("orders", b"1")

    async def hangs(message: Message) -> None:
        await asyncio.Event().wait()

    done = await Publisher(desk.outbox, hangs, publish_s_max=0.01).drain()
    assert done.outage == "TimeoutError: "
    assert desk.waiting() == 1


# ------------------------------------------------------------------------- leases and deaths


def test_a_stale_worker_marks_nothing_as_delivered(desk: Desk) -> None:
    """Its lease was over while it published: another has the message, and its say alone counts."""
    desk.put("orders", b"1")
    heir = Broker()
    heir.refuses = lambda message: ValueError("not this one")

    def slow(message: Message) -> None:
        desk.elapse(LEASE_S)
        publisher(desk, heir, attempts_max=2).drain_sync()

    assert publisher(desk, slow).drain_sync().published == 1
    assert desk.waiting() == 1
    assert len(desk.outbox.parked_sync()) == 1  # as the heir has left it


def test_a_stale_worker_brings_nothing_back(desk: Desk) -> None:
    desk.put("orders", b"1")
    heir = Broker()

    def slow(message: Message) -> None:
        desk.elapse(LEASE_S)
        publisher(desk, heir).drain_sync()
        raise ValueError("too late")

    publisher(desk, slow).drain_sync()
    assert heir.payloads == [b"1"]
    assert desk.waiting() == 0


def test_nothing_is_begun_when_the_lease_is_nearly_over(desk: Desk) -> None:
    for _ in range(3):
        desk.put("orders", b"1")
    begun = SystemClock.monotonic()

    class Jumps(SystemClock):
        """Its first reading is the claim's; half the lease goes by with every later one."""

        def __init__(self) -> None:
            self.readings = 0

        def monotonic(self) -> float:
            self.readings += 1
            return begun + (self.readings - 1) * LEASE_S / 2

    broker, clock = Broker(), Jumps()
    worker = Publisher(desk.outbox, broker, limits=Limits(lease_s=LEASE_S), clock=clock)
    worker._drain._stopping = lambda: bool(broker.got)  # one round
    assert worker.drain_sync().published == 1
    assert desk.waiting() == 2
    publisher(desk, broker).drain_sync()
    assert {message.attempts for message in broker.got} == {1}  # what was not begun is not counted


def test_a_lost_reply_is_asked_again(desk: Desk) -> None:
    """The removal happened and its answer was lost: repeated, it does no harm."""
    desk.put("orders", b"1")
    store = desk.outbox.store
    connection = store.connect()
    run(store.prepare(), connection.ask)
    drain = Drain(desk.outbox.shelf, Limits(), SystemClock())
    published: list[Message] = []
    replies = 0

    def ask(question: Any) -> Any:
        nonlocal replies
        if isinstance(question, Deliver):
            published.extend(question.messages)
            return [Published()] * len(question.messages)
        if not hasattr(question, "seconds"):
            answer = connection.ask(question)
            replies += bool(published)
            if replies == 1:
                replies += 1
                raise StoreUnavailable("the reply was lost")
            return answer
        return None

    assert run(drain.until_empty(), ask).published == 1
    connection.close()
    assert len(published) == 1
    assert desk.waiting() == 0


# ------------------------------------------------------------------------------------ running


async def test_it_runs_until_it_is_stopped_and_can_be_woken(desk: Desk) -> None:
    arrived = asyncio.Event()

    async def publish(message: Message) -> None:
        arrived.set()

    worker = Publisher(desk.outbox, publish, poll_s=3600.0)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(10):
        for _ in range(3):
            await asyncio.to_thread(desk.put, "orders", b"1")
            while not arrived.is_set():
                worker.wake()
                await asyncio.sleep(0.001)
            arrived.clear()
        worker.stop()
        await running
    assert desk.waiting() == 0


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_it_goes_on_after_an_error_that_nobody_foresaw(
    sqlite_desk: Desk,
    colour: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Such as a driver's own, where a table is changed under a statement that it has prepared."""
    look, errors = sqlite_desk.outbox.shelf.look, [RuntimeError("cached plan must not change")]

    def failing(*asked: Any) -> Any:
        if errors:
            raise errors.pop()
        return look(*asked)

    monkeypatch.setattr(sqlite_desk.outbox.shelf, "look", failing)
    sqlite_desk.put("orders", b"1")
    broker = Broker()

    def publish(message: Message) -> None:
        broker(message)
        worker.stop()

    worker = Publisher(sqlite_desk.outbox, publish, poll_s=0.001)
    if colour == "sync":
        worker.run_sync()
    else:
        asyncio.run(worker.run())

    assert broker.payloads == [b"1"]
    assert "RuntimeError: cached plan" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_table_that_is_changed_meanwhile_ends_nobody(postgres_desk: Desk, colour: str) -> None:
    """As a migration to the next release does."""
    desk, arrived = postgres_desk, threading.Event()
    worker = Publisher(desk.outbox, lambda message: arrived.set(), poll_s=0.01)
    work = worker.run_sync if colour == "sync" else lambda: asyncio.run(worker.run())
    thread = threading.Thread(target=work)
    thread.start()
    for kind in ("bigint", "integer"):
        desk.put("orders", b"1")
        assert arrived.wait(20)
        arrived.clear()
        with desk.connect() as connection:
            connection.execute(f"ALTER TABLE oncekey_outbox ALTER COLUMN attempts TYPE {kind}")
    worker.stop()
    thread.join(20)
    assert not thread.is_alive()


def test_it_polls_without_being_woken(desk: Desk) -> None:
    arrived = threading.Event()
    worker = Publisher(desk.outbox, lambda message: arrived.set(), poll_s=0.01)
    thread = threading.Thread(target=worker.run_sync)
    thread.start()
    desk.put("orders", b"1")
    assert arrived.wait(10)
    worker.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_an_async_publish_needs_a_loop(desk: Desk) -> None:
    desk.put("orders", b"1")

    async def publish(message: Message) -> None: ...

    with pytest.raises(Misuse, match=r"run\(\) or drain\(\)"):
        Publisher(desk.outbox, publish).drain_sync()


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_it_drains_through_pgbouncer(postgres_desk: Desk, pgbouncer_url: str, colour: str) -> None:
    for i in range(10):
        postgres_desk.put("orders", b"%d" % i, key=str(i % 2))
    broker = Broker()
    outbox = Outbox(f"{pgbouncer_url}?pgbouncer=true&allow=unsafe-durability")
    worker = Publisher(outbox, broker, limits=Limits(batch_max=3))
    if colour == "async":
        asyncio.run(worker.drain())
    else:
        worker.drain_sync()
    assert len(broker.got) == 10
    assert postgres_desk.waiting() == 0
