"""Messages are written with the caller's rows: there if and only if they commit."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.orm
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from oncekey._core.message import Message
from oncekey._core.op import run
from oncekey.errors import Misuse, StoreUnfit
from oncekey.messaging._outbox import Outbox
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

__all__ = ["mariadb_outbox", "mysql_outbox", "outbox_db", "postgres_outbox", "sqlite_outbox"]


def drained(outbox_db: OutboxDatabase) -> list[Message]:
    published: list[Message] = []
    Publisher(outbox_db.outbox, published.append).drain_sync()
    return published


def test_what_is_committed_is_published_as_it_was_written(outbox_db: OutboxDatabase) -> None:
    put = outbox_db.put("orders", b"\x00\xff", key="customer-7", headers={"Kind": "paid"})
    [message] = drained(outbox_db)
    assert message.id == put.id
    assert uuid.UUID(message.id).version == 4
    assert (message.topic, message.key, message.payload) == ("orders", "customer-7", b"\x00\xff")
    assert message.headers == {"kind": "paid"}
    assert message.attempts == 1
    assert outbox_db.count_waiting() == 0
    assert drained(outbox_db) == []


def test_what_is_not_bytes_is_written_as_json(outbox_db: OutboxDatabase) -> None:
    outbox_db.put("orders", {"id": 7, "name": "Zoë"})
    [message] = drained(outbox_db)
    assert message.payload == b'{"id":7,"name":"Zo\\u00eb"}'
    assert message.headers == {"content-type": "application/json"}


def test_a_rollback_publishes_nothing(outbox_db: OutboxDatabase) -> None:
    with outbox_db.connect() as connection:
        outbox_db.outbox.put_sync(connection, "orders", b"never")
        connection.rollback()
    assert drained(outbox_db) == []


def test_nothing_is_seen_before_the_commit(outbox_db: OutboxDatabase) -> None:
    store, shelf = outbox_db.outbox.store, outbox_db.outbox.table
    with closing(store.connect()) as worker:
        run(store.prepare(), worker.ask)
        with outbox_db.connect() as connection:
            outbox_db.outbox.put_sync(connection, "orders", b"not yet")
            assert run(shelf.look(b"", 10), worker.ask) == []
        assert len(run(shelf.look(b"", 10), worker.ask)) == 1


# ------------------------------------------------------------------------- whose transaction


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


@asynccontextmanager
async def _sqlalchemy(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    try:
        async with AsyncSession(engine) as session, session.begin():
            yield session
    finally:
        await engine.dispose()


@pytest.mark.parametrize("library", [_asyncpg, _psycopg, _sqlalchemy])
@pytest.mark.parametrize("commits", [True, False])
async def test_it_joins_any_transaction(
    postgres_outbox: OutboxDatabase, postgres_url: str, library: Any, commits: bool
) -> None:
    with contextlib.suppress(ZeroDivisionError):
        async with library(postgres_url) as transaction:
            await postgres_outbox.outbox.put(transaction, "orders", b"joined")
            if not commits:
                raise ZeroDivisionError
    assert len(drained(postgres_outbox)) == commits


@pytest.mark.parametrize("commits", [True, False])
async def test_it_joins_an_async_session_on_sqlite(
    sqlite_outbox: OutboxDatabase, commits: bool
) -> None:
    engine = create_async_engine(sqlite_outbox.url.replace("sqlite:", "sqlite+aiosqlite:"))
    async with AsyncSession(engine) as session:
        await sqlite_outbox.outbox.put(session, "orders", b"joined")
        if commits:
            await session.commit()
    await engine.dispose()
    assert len(drained(sqlite_outbox)) == commits


@pytest.mark.slow
@pytest.mark.parametrize("commits", [True, False])
async def test_it_joins_an_async_session_on_mariadb(
    mariadb_outbox: OutboxDatabase, commits: bool
) -> None:
    url = mariadb_outbox.url.partition("?")[0].replace("mariadb:", "mariadb+asyncmy:")
    engine = create_async_engine(url)
    async with AsyncSession(engine) as session:
        await mariadb_outbox.outbox.put(session, "orders", b"joined")
        if commits:
            await session.commit()
    await engine.dispose()
    assert len(drained(mariadb_outbox)) == commits


@pytest.mark.slow
def test_another_database_of_the_same_server_is_misuse(mariadb_outbox: OutboxDatabase) -> None:
    """It may have such a table too, from which nobody would publish anything."""
    elsewhere = f"elsewhere_{uuid.uuid4().hex}"
    with mariadb_outbox.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {elsewhere}")
        try:
            cursor.execute(f"USE {elsewhere}")
            with pytest.raises(Misuse, match="has no oncekey tables"):
                mariadb_outbox.outbox.put_sync(connection, "orders", b"")
            url = re.sub("/[^/?]+\\?", f"/{elsewhere}?", mariadb_outbox.url)
            Outbox(url).migrate_sync()
            with pytest.raises(Misuse, match="the connection to join is one to"):
                mariadb_outbox.outbox.put_sync(connection, "orders", b"")
        finally:
            cursor.execute(f"DROP DATABASE {elsewhere}")


@pytest.mark.parametrize("commits", [True, False])
def test_it_joins_a_session_of_sqlalchemy(outbox_db: OutboxDatabase, commits: bool) -> None:
    url = outbox_db.url.partition("?")[0].replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(re.sub("^(mariadb|mysql)://", r"\1+pymysql://", url))
    with sqlalchemy.orm.Session(engine) as session:
        outbox_db.outbox.put_sync(session, "orders", b"joined")
        if commits:
            session.commit()
    engine.dispose()
    assert len(drained(outbox_db)) == commits


# ------------------------------------------------------------------------------------ limits


def test_an_outbox_is_where_the_rows_are() -> None:
    with pytest.raises(Misuse, match="MariaDB or SQLite: memory has no transaction"):
        Outbox("memory://")


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_a_transaction_elsewhere_is_misuse(
    postgres_outbox: OutboxDatabase, postgres_url: str, colour: str
) -> None:
    """It may have such a table too, from which nobody would publish anything."""
    elsewhere = f"{postgres_url}?options=-csearch_path%3Delsewhere"
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE SCHEMA elsewhere")
    try:
        Outbox(f"{elsewhere}&allow=unsafe-durability").migrate_sync()
        with psycopg.connect(elsewhere) as connection:
            given = connection, "orders", b""
            if colour == "sync":
                with pytest.raises(Misuse, match="search_path"):
                    postgres_outbox.outbox.put_sync(*given)
            else:
                with pytest.raises(Misuse, match="search_path"):
                    await postgres_outbox.outbox.put(*given)
    finally:
        with psycopg.connect(postgres_url) as connection:
            connection.execute("DROP SCHEMA elsewhere CASCADE")


def test_what_is_too_large_or_cannot_be_kept_is_refused_before_it_is_written(
    outbox_db: OutboxDatabase,
) -> None:
    small = Outbox(outbox_db.url, payload_bytes_max=10)
    with outbox_db.connect() as connection:
        with pytest.raises(Misuse, match="payload_bytes_max=10"):
            small.put_sync(connection, "orders", b"x" * 11)
        with pytest.raises(Misuse, match="topic"):
            small.put_sync(connection, "", b"")
        for key in ("k" * 256, "", "a\x00", "a\udc80"):  # "" is no key, and would be one for all
            with pytest.raises(Misuse, match="key"):
                small.put_sync(connection, "orders", b"", key=key)
        with pytest.raises(Misuse, match="header"):
            small.put_sync(connection, "orders", b"", headers={"a": "x" * 20_000})
        for text in ("\x00", "\udc80"):
            with pytest.raises(Misuse, match="NUL"):
                small.put_sync(connection, "orders", b"", headers={"a": text})
        for payload in (float("nan"), object(), {1: {2}}):  # consumers stumble over "NaN"
            with pytest.raises(Misuse, match="bytes, or what JSON can write"):
                small.put_sync(connection, "orders", payload)
        wrong: list[tuple[str, dict[str, Any]]] = [
            ("topic of a message is a text, not PosixPath", {"topic": Path("orders")}),
            ("key of a message is a text, not int", {"key": 7}),
            ("header of a message is a text, not int", {"headers": {"a": 7}}),
        ]
        for said, given in wrong:
            with pytest.raises(Misuse, match=said):
                small.put_sync(connection, **{"topic": "orders", "payload": b"", **given})
    assert outbox_db.count_waiting() == 0


def test_a_file_without_the_table_says_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    outbox = Outbox(f"sqlite:///{file}")
    with closing(sqlite3.connect(file)) as connection:
        with pytest.raises(StoreUnfit, match=r"Outbox\.migrate\(\)"):
            outbox.put_sync(connection, "orders", b"")
        connection.rollback()
    assert outbox.migrate_sync()
    with closing(sqlite3.connect(file)) as connection, connection:
        outbox.put_sync(connection, "orders", b"")


async def test_every_command_has_an_awaited_twin(outbox_db: OutboxDatabase) -> None:
    assert await outbox_db.outbox.migrate() == []
    assert await outbox_db.outbox.parked() == []
    assert await outbox_db.outbox.retry([str(uuid.uuid4())]) == 0


async def test_what_are_no_ids_of_messages_are_refused(outbox_db: OutboxDatabase) -> None:
    """Letters of one id would be ids that nobody has, and nothing would be said."""
    put = outbox_db.put("orders", b"1")
    for wrong in (put.id, ["nope"], [None], [put]):
        with pytest.raises(Misuse, match=r"retry\(\[id\]\)"):
            outbox_db.outbox.retry_sync(wrong)  # type: ignore[arg-type]
        with pytest.raises(Misuse, match=r"retry\(\[id\]\)"):
            await outbox_db.outbox.retry(wrong)  # type: ignore[arg-type]


def test_an_id_may_be_written_in_capitals(outbox_db: OutboxDatabase) -> None:
    def refuse(message: Message) -> None:
        raise ValueError("no")

    put = outbox_db.put("orders", b"1")
    Publisher(outbox_db.outbox, refuse, limits=Limits(attempts_max=1)).drain_sync()
    assert outbox_db.outbox.retry_sync([put.id.upper()]) == 1
