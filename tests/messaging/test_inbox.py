"""The inbox: a handler runs once per message; the consumer is told what to do with it."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import oncekey
from oncekey import LeaseLost, Misuse, Policy, Runtime, StoreUnavailable
from oncekey.clock import FakeClock
from oncekey.core.key import record_id
from oncekey.core.record import Record
from oncekey.core.verbs import Find
from oncekey.messaging import (
    Busy,
    Duplicate,
    Handled,
    Inbox,
    Rejected,
    Released,
    Then,
    Unknown,
)
from oncekey.stores.memory import MemoryStore
from tests.places import PLACES, Place, postgres_place
from tests.servers.mariadb import mysql_connection
from tests.stores.unreliable import Unreachable

Handle = Callable[..., Awaitable[Any]]


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.runtime = Runtime(MemoryStore(self.clock), clock=self.clock)
        self.runs: list[Any] = []

    def inbox(self, **policy: Any) -> Inbox:
        return Inbox(self.runtime, name="orders", policy=Policy(**policy))

    def ship(self, *args: Any) -> str:
        self.runs.append(args)
        return "shipped"

    async def ship_async(self, *args: Any) -> str:
        await asyncio.sleep(0)
        return self.ship(*args)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.runtime.close()


@pytest.fixture(params=["awaited", "blocking"])
def handle(request: pytest.FixtureRequest, world: World) -> Handle:
    async def blocking(inbox: Inbox, *args: Any, **kwargs: Any) -> Any:
        return inbox.handle_sync(*args, **kwargs)

    return Inbox.handle if request.param == "awaited" else blocking


# ------------------------------------------------------------------------------------ outcomes


async def test_a_message_is_handled_once(world: World, handle: Handle) -> None:
    inbox = world.inbox()
    first = await handle(inbox, "m1", world.ship, 17, payload=b"17")
    again = await handle(inbox, "m1", world.ship, 17, payload=b"17")
    other = await handle(inbox, "m2", world.ship, 17, payload=b"17")

    assert (first, again, other) == (Handled("shipped"), Duplicate("shipped"), Handled("shipped"))
    assert {first.then, again.then} == {Then.ACKNOWLEDGE}
    assert world.runs == [(17,), (17,)]


async def test_handlers_may_be_async(world: World) -> None:
    inbox = world.inbox()
    assert await inbox.handle("m1", world.ship_async) == Handled("shipped")
    assert await inbox.handle("m1", world.ship_async) == Duplicate("shipped")
    with pytest.raises(Misuse, match="coroutine, which did not run"):
        inbox.handle_sync("m2", world.ship_async)
    assert inbox.handle_sync("m2", world.ship) == Handled("shipped")


async def test_what_is_being_handled_is_delivered_later(world: World, handle: Handle) -> None:
    inbox = world.inbox()
    meanwhile: list[Any] = []

    def ship() -> None:
        meanwhile.append(inbox.handle_sync("m1", world.ship))

    assert await handle(inbox, "m1", ship) == Handled(None)
    assert meanwhile == [Busy(1.0)]
    assert meanwhile[0].then is Then.REDELIVER
    assert world.runs == []


async def test_what_failed_is_delivered_again(world: World, handle: Handle) -> None:
    inbox = world.inbox()

    def fails() -> None:
        raise ConnectionError("no answer")

    with pytest.raises(ConnectionError):
        await handle(inbox, "m1", fails)
    assert await handle(inbox, "m1", world.ship) == Handled("shipped")


async def test_what_is_not_done_yet_is_delivered_again(world: World, handle: Handle) -> None:
    inbox = world.inbox()

    def not_yet() -> str:
        oncekey.current().transient()
        return "out of stock"

    outcome = await handle(inbox, "m1", not_yet)
    assert outcome == Released("out of stock")
    assert outcome.then is Then.REDELIVER
    assert await handle(inbox, "m1", world.ship) == Handled("shipped")


async def test_an_unknown_outcome_is_never_acknowledged(world: World, handle: Handle) -> None:
    inbox = world.inbox(recovery="block")

    def dies() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        inbox.handle_sync("m1", dies)
    world.clock.advance(31)
    outcome = await handle(inbox, "m1", world.ship)
    assert isinstance(outcome, Unknown)
    assert outcome.then is Then.DEAD_LETTER
    assert world.runs == []


async def test_p5_another_message_under_the_same_id_is_rejected(
    world: World, handle: Handle
) -> None:
    inbox = world.inbox()
    await handle(inbox, "m1", world.ship, payload=b"one")
    outcome = await handle(inbox, "m1", world.ship, payload=b"two")
    assert isinstance(outcome, Rejected)
    assert outcome.then is Then.DEAD_LETTER
    assert len(world.runs) == 1


async def test_what_was_done_so_long_ago_that_only_a_tombstone_is_left_is_acknowledged(
    world: World, handle: Handle
) -> None:
    inbox = world.inbox(retention_s=60, tombstone_s=3600)
    await handle(inbox, "m1", world.ship)
    world.clock.advance(60)
    assert await handle(inbox, "m1", world.ship) == Duplicate(None)
    assert len(world.runs) == 1


async def test_what_was_done_is_acknowledged_even_if_its_result_was_not_kept(
    world: World, handle: Handle
) -> None:
    inbox = world.inbox()
    with pytest.raises(Misuse, match="JSON"):
        await handle(inbox, "m1", object)
    assert await handle(inbox, "m1", world.ship) == Duplicate(None)
    assert world.runs == []


def test_p7_without_a_store_nothing_runs_and_nothing_is_acknowledged(world: World) -> None:
    with Runtime(Unreachable()) as runtime:
        with pytest.raises(StoreUnavailable):
            Inbox(runtime, name="orders").handle_sync("m1", world.ship)
        unprotected = Inbox(runtime, name="orders", policy=Policy(store_down="run"))
        assert unprotected.handle_sync("m1", world.ship) == Handled("shipped", stored=False)
    assert len(world.runs) == 1


def test_steps_survive_a_failure(world: World) -> None:
    def ship() -> Any:
        attempt = oncekey.current()
        label = attempt.step_sync("label", world.ship)
        if attempt.attempt == 1:
            raise ConnectionError
        return label

    inbox = world.inbox(recovery="resume")
    with pytest.raises(ConnectionError):
        inbox.handle_sync("m1", ship)
    assert inbox.handle_sync("m1", ship) == Handled("shipped")
    assert len(world.runs) == 1


def test_the_recoverer_leaves_messages_to_their_broker(world: World) -> None:
    """`resume` would have it give up a record whose message comes back only after an hour."""
    world.inbox(recovery="resume").handle_sync("m1", world.ship)
    record: Record = world.runtime.gatherer.ask(Find(record_id("single", "orders", "m1")))
    assert record.recovery == "rerun"


# ------------------------------------------------------------------------------------------ ids


def test_any_text_is_an_id(world: World) -> None:
    inbox = world.inbox()
    for name in ("a" * 5000, "<1.2@host> ", "größe", "\0\ud800", "a" * 255, "sha256:" + "0" * 64):
        assert inbox.handle_sync(name, world.ship) == Handled("shipped")
        assert inbox.handle_sync(name, world.ship) == Duplicate("shipped")


@pytest.mark.parametrize("name", ["", " ", "none", "null", None, 17, b"m1"])
def test_an_id_is_never_taken_from_nothing(world: World, name: Any) -> None:
    with pytest.raises(Misuse, match="id"):
        world.inbox().handle_sync(name, world.ship)
    assert world.runs == []


def test_p5_inboxes_and_tenants_do_not_meet(world: World) -> None:
    one, two = Inbox(world.runtime, name="one"), Inbox(world.runtime, name="two")
    for inbox in (one, two):
        for tenant in ("acme", "umbrella"):
            assert inbox.handle_sync("m1", world.ship, tenant=tenant) == Handled("shipped")
            assert inbox.handle_sync("m1", world.ship, tenant=tenant) == Duplicate("shipped")


@pytest.mark.parametrize("tenant", ["", None, 1])
def test_an_account_that_is_none_is_misuse(world: World, tenant: Any) -> None:
    with pytest.raises(Misuse, match="tenant"):
        world.inbox().handle_sync("m1", world.ship, tenant=tenant)


async def test_a_handler_that_would_never_run_is_refused(world: World, handle: Handle) -> None:
    """Calling a generator does nothing: the message would count as handled."""

    def ship() -> Iterator[None]:
        world.ship()
        yield

    with pytest.raises(Misuse, match="ship is a generator"):
        await handle(world.inbox(), "m1", ship)
    assert await handle(world.inbox(), "m1", world.ship) == Handled("shipped")


def test_an_inbox_has_a_name(world: World) -> None:
    with pytest.raises(Misuse, match="name"):
        Inbox(world.runtime, name="")


# ------------------------------------------------------------------------ the caller's transaction


MYSQL = [
    pytest.param(name, marks=pytest.mark.slow) for name in ("mariadb", "mysql") if name in PLACES
]
"""MariaDB; and MySQL, where it is tested."""


@pytest.fixture(params=["sqlite", "postgres", *MYSQL])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    place = PLACES[request.param](request, tmp_path)
    place.migrate()
    return place


on_servers = pytest.mark.parametrize("place", ["postgres", *MYSQL], indirect=True)
on_mysql = pytest.mark.parametrize("place", MYSQL, indirect=True)


class Shop:
    """Rows in the store's own database, and connections of the application's own."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.runtime = Runtime(place.url)
        self.inbox = Inbox(self.runtime, name="orders")
        self.url = place.url.partition("?")[0]
        with closing(self.connect()) as connection:
            connection.cursor().execute("DROP TABLE IF EXISTS shipped")
            connection.cursor().execute("CREATE TABLE shipped (id TEXT)")
            connection.commit()

    def connect(self) -> Any:
        if self.place.name == "sqlite":
            return sqlite3.connect(self.url.removeprefix("sqlite:///"), check_same_thread=False)
        if self.place.name == "postgres":
            return psycopg.connect(self.url)
        return mysql_connection(self.url, autocommit=False)

    def ship(self, connection: Any, message_id: str) -> Any:
        cursor = connection.cursor()
        cursor.execute(f"INSERT INTO shipped VALUES ('{message_id}')")
        return cursor.rowcount

    def rows(self, message_id: str) -> int:
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT id FROM shipped")
            found = cursor.fetchall()
        return sum(row == (message_id,) for row in found)


@pytest.fixture
def shop(place: Place) -> Iterator[Shop]:
    shop = Shop(place)
    yield shop
    shop.runtime.close()


@pytest.fixture
def message_id() -> str:
    return uuid.uuid4().hex


def test_a_message_counts_if_and_only_if_the_caller_commits(shop: Shop, message_id: str) -> None:
    with closing(shop.connect()) as connection:

        def handle() -> Any:
            return shop.inbox.handle_in_sync(
                connection, message_id, shop.ship, connection, message_id
            )

        assert handle() == Handled(1)
        connection.rollback()
        assert shop.rows(message_id) == 0
        assert handle() == Handled(1)
        connection.commit()
        assert handle() == Duplicate(1)
        connection.commit()
    assert shop.rows(message_id) == 1


def test_what_was_rolled_back_is_not_remembered(shop: Shop, message_id: str) -> None:
    """Found twice within one transaction: a duplicate there, and nothing at all after it."""
    with closing(shop.connect()) as connection:
        arguments = (connection, message_id, shop.ship, connection, message_id)
        assert shop.inbox.handle_in_sync(*arguments) == Handled(1)
        assert shop.inbox.handle_in_sync(*arguments) == Duplicate(1)
        connection.rollback()
        assert shop.inbox.handle_in_sync(*arguments) == Handled(1)


def test_a_handler_that_raises_leaves_nothing(shop: Shop, message_id: str) -> None:
    def fails() -> None:
        shop.ship(oncekey.current().connection, message_id)
        raise ConnectionError("no answer")

    with closing(shop.connect()) as connection:
        with pytest.raises(ConnectionError):
            shop.inbox.handle_in_sync(connection, message_id, fails)
        connection.rollback()
        assert shop.inbox.handle_in_sync(connection, message_id, lambda: 2) == Handled(2)
        connection.commit()
    assert shop.rows(message_id) == 0


def test_both_ways_to_handle_know_of_each_other(shop: Shop, message_id: str) -> None:
    other = uuid.uuid4().hex
    with closing(shop.connect()) as connection:
        assert shop.inbox.handle_in_sync(connection, message_id, lambda: 1) == Handled(1)
        connection.commit()
        assert shop.inbox.handle_sync(message_id, lambda: 2) == Duplicate(1)
        assert shop.inbox.handle_sync(other, lambda: 3) == Handled(3)
        assert shop.inbox.handle_in_sync(connection, other, lambda: 4) == Duplicate(3)


def test_what_cannot_be_rolled_back_by_a_word_is_misuse(shop: Shop, message_id: str) -> None:
    with closing(shop.connect()) as connection:
        with pytest.raises(Misuse, match="raise an exception instead"):
            shop.inbox.handle_in_sync(connection, message_id, lambda: oncekey.current().transient())
        connection.rollback()
        asks = Policy(recovery="ask", ask=lambda attempt: None)
        with pytest.raises(Misuse, match="a transaction cannot"):
            Inbox(shop.runtime, name="o", policy=asks).handle_in_sync(connection, "m", print)


PATIENCE = {
    "postgres": "statement_timeout = '2s'",
    "mariadb": "max_statement_time = 2",
    "mysql": "innodb_lock_wait_timeout = 100",
}
"""For how long one who should wait for nobody may do so. MySQL has no such limit: there whoever
waits does so for longer than a test may take.
"""


@on_servers
def test_p1_two_deliveries_at_once_have_one_effect_and_nobody_waits(
    shop: Shop, message_id: str
) -> None:
    """The second comes while the first holds its rows uncommitted; and so does another message."""
    with closing(shop.connect()) as one, closing(shop.connect()) as two:
        two.cursor().execute(f"SET {PATIENCE[shop.place.name]}")
        two.commit()

        def ship() -> Any:
            assert shop.inbox.handle_in_sync(two, uuid.uuid4().hex, lambda: 2) == Handled(2)
            two.commit()
            busy = shop.inbox.handle_in_sync(two, message_id, shop.ship, two, message_id)
            two.commit()
            assert isinstance(busy, Busy)
            return shop.ship(one, message_id)

        assert shop.inbox.handle_in_sync(one, message_id, ship) == Handled(1)
        one.commit()
        assert shop.inbox.handle_in_sync(two, message_id, ship) == Duplicate(1)
    assert shop.rows(message_id) == 1


@on_servers
def test_p2_rows_of_a_delivery_that_lost_its_message_must_be_rolled_back(
    shop: Shop, message_id: str
) -> None:
    """Handled in the leased way by another worker, while this one was in its transaction."""

    def ship(connection: Any) -> None:
        shop.ship(connection, message_id)
        assert shop.inbox.handle_sync(message_id, lambda: "the other") == Handled("the other")

    with closing(shop.connect()) as connection:
        with pytest.raises(LeaseLost, match="roll this one back"):
            shop.inbox.handle_in_sync(connection, message_id, ship, connection)
        connection.rollback()
        assert shop.inbox.handle_in_sync(connection, message_id, print) == Duplicate("the other")
    assert shop.rows(message_id) == 0


def test_sqlalchemy_sessions(shop: Shop, message_id: str) -> None:
    url = shop.url.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(re.sub("^(mariadb|mysql)://", r"\1+pymysql://", url))
    insert = sqlalchemy.text("INSERT INTO shipped VALUES (:id)")

    def ship(session: Session) -> None:
        session.execute(insert, {"id": message_id})

    for outcome in (Handled(None), Duplicate(None)):
        with Session(engine) as session, session.begin():
            assert shop.inbox.handle_in_sync(session, message_id, ship, session) == outcome
    assert shop.rows(message_id) == 1
    engine.dispose()


async def test_asyncpg_and_async_sessions(
    request: pytest.FixtureRequest, tmp_path: Path, message_id: str
) -> None:
    place = postgres_place(request, tmp_path)
    place.migrate()
    shop, other = Shop(place), uuid.uuid4().hex
    async with Runtime(place.url) as runtime:
        inbox = Inbox(runtime, name="orders")
        connection = await asyncpg.connect(shop.url)
        for outcome in (Handled("INSERT 0 1"), Duplicate("INSERT 0 1")):
            async with connection.transaction():
                insert = ("INSERT INTO shipped VALUES ($1)", message_id)
                found = await inbox.handle_in(connection, message_id, connection.execute, *insert)
            assert found == outcome
        await connection.close()
        engine = create_async_engine(shop.url.replace("postgresql://", "postgresql+asyncpg://"))

        async def ship(session: AsyncSession) -> None:
            await session.execute(sqlalchemy.text(f"INSERT INTO shipped VALUES ('{other}')"))

        for outcome in (Handled(None), Duplicate(None)):
            async with AsyncSession(engine) as session, session.begin():
                assert await inbox.handle_in(session, other, ship, session) == outcome
        await engine.dispose()
    assert (shop.rows(message_id), shop.rows(other)) == (1, 1)
    shop.runtime.close()


@on_mysql
async def test_asyncmy_and_its_async_sessions(shop: Shop, message_id: str) -> None:
    engine = create_async_engine(shop.url.replace("://", "+asyncmy://", 1))

    async def ship(session: AsyncSession) -> None:
        await session.execute(sqlalchemy.text(f"INSERT INTO shipped VALUES ('{message_id}')"))

    async with Runtime(shop.place.url) as runtime:
        inbox = Inbox(runtime, name="orders")
        for outcome in (Handled(None), Duplicate(None)):
            async with AsyncSession(engine) as session, session.begin():
                assert await inbox.handle_in(session, message_id, ship, session) == outcome
    await engine.dispose()
    assert shop.rows(message_id) == 1


def test_p12_a_url_in_place_of_a_runtime_is_refused_without_its_password() -> None:
    url: Any = "postgresql://shop:hunter2@db.internal/shop"
    with pytest.raises(oncekey.Misuse, match="given a str as its runtime") as refused:
        Inbox(url, name="orders")
    assert "hunter2" not in str(refused.value)
