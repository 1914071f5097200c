"""Messages in a transaction of the caller's: what was handled counts if and only if it commits."""

from __future__ import annotations

import re
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import oncekey
from oncekey import LeaseLost, Misuse, Policy, Runtime
from oncekey.messaging import Busy, Duplicate, Handled, Inbox
from tests.messaging.inbox_shop import Shop, message_id, on_mysql, on_servers, place, shop
from tests.places import postgres_place

__all__ = ["message_id", "place", "shop"]


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
