"""The databases that support an outbox, and ways to make time pass in them."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from oncekey._core.message import Message
from oncekey.messaging._outbox import Outbox
from tests.servers.mariadb import mysql_connection
from tests.servers.mysql import wanted


@dataclass(frozen=True)
class OutboxDatabase:
    """An empty outbox, with the means of somebody who shares its database."""

    name: str
    url: str
    outbox: Outbox
    connect: Callable[[], contextlib.AbstractContextManager[Any]]
    elapse: Callable[[float], None]

    def put(self, topic: str, payload: Any = b"", **given: Any) -> Message:
        """One message, committed."""
        with self.connect() as connection:
            return self.outbox.put_sync(connection, topic, payload, **given)

    def count_waiting(self) -> int:
        with self.connect() as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT count(*) FROM oncekey_outbox")
            [count] = cursor.fetchone()
        return int(count)


@pytest.fixture(
    params=[
        *("sqlite", "postgres"),
        pytest.param("mariadb", marks=pytest.mark.slow),
        *([pytest.param("mysql", marks=pytest.mark.slow)] if wanted() else ()),
    ]
)
def outbox_db(request: pytest.FixtureRequest) -> OutboxDatabase:
    made: OutboxDatabase = request.getfixturevalue(f"{request.param}_outbox")
    return made


@pytest.fixture
def sqlite_outbox(tmp_path: Path) -> OutboxDatabase:
    file = tmp_path / "shop.db"

    @contextlib.contextmanager
    def connect() -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(file, timeout=10)) as connection, connection:
            connection.execute("PRAGMA wal_autocheckpoint = 0").fetchone()
            yield connection

    def elapse(seconds: float) -> None:
        with connect() as connection:
            connection.execute("UPDATE oncekey_outbox SET due = due - ?", (seconds,))

    outbox = Outbox(f"sqlite:///{file}")
    outbox.migrate_sync()
    return OutboxDatabase("sqlite", f"sqlite:///{file}", outbox, connect, elapse)


@pytest.fixture
def postgres_outbox(postgres_url: str) -> OutboxDatabase:
    url = f"{postgres_url}?allow=unsafe-durability"

    @contextlib.contextmanager
    def connect() -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(postgres_url) as connection:
            yield connection

    def elapse(seconds: float) -> None:
        with connect() as connection:
            passed = "make_interval(secs => %s)"
            connection.execute(f"UPDATE oncekey_outbox SET due = due - {passed}", (seconds,))

    outbox = Outbox(url)
    outbox.migrate_sync()
    with connect() as connection:
        connection.execute("TRUNCATE oncekey_outbox")
    return OutboxDatabase("postgres", url, outbox, connect, elapse)


@pytest.fixture
def mariadb_outbox(mariadb_url: str) -> OutboxDatabase:
    return _mysql_outbox(mariadb_url)


@pytest.fixture
def mysql_outbox(mysql_url: str) -> OutboxDatabase:
    return _mysql_outbox(mysql_url)


def _mysql_outbox(server: str) -> OutboxDatabase:
    url = f"{server}?allow=unsafe-durability"

    @contextlib.contextmanager
    def connect() -> Iterator[Any]:
        with mysql_connection(server, autocommit=False) as connection:
            yield connection
            connection.commit()

    def elapse(seconds: float) -> None:
        with connect() as connection:
            passed = f"INTERVAL {int(seconds * 1e6)} MICROSECOND"
            connection.cursor().execute(f"UPDATE oncekey_outbox SET due = due - {passed}")

    outbox = Outbox(url)
    outbox.migrate_sync()
    with connect() as connection:
        connection.cursor().execute("DELETE FROM oncekey_outbox")
    return OutboxDatabase("mariadb", url, outbox, connect, elapse)
