"""An inbox whose handler writes rows beside its records, on every database that both can be in."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from oncekey import Runtime
from oncekey.messaging import Inbox
from tests.places import PLACES, Place
from tests.servers.mariadb import mysql_connection

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
