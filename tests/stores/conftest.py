"""The table of our stores: each as a subject for the contract, empty for every test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg
import pytest
from redis import Redis

from oncekey.clock import FakeClock
from oncekey.core.op import run
from oncekey.stores import mysql as mysql_store
from oncekey.stores import postgres as postgres_store
from oncekey.stores import redis as redis_store
from oncekey.stores.memory import MemoryStore
from oncekey.stores.sqlite import SqliteStore
from oncekey.testing.contract import Subject
from tests.servers.mariadb import mysql_connection
from tests.servers.mysql import wanted
from tests.stores import dynamodb_kit, elapse


@pytest.fixture
def memory() -> Subject:
    clock = FakeClock()
    return Subject(MemoryStore(clock), elapse=clock.advance)


@pytest.fixture
def sqlite(tmp_path: Path) -> Subject:
    path = tmp_path / "keys.db"
    return Subject(SqliteStore(path), elapse=partial(elapse.sqlite, path))


@pytest.fixture
def redis(redis_url: str) -> Iterator[Subject]:
    prefix = f"oncekey-{uuid.uuid4().hex}"
    store = redis_store.open_url(f"{redis_url}?prefix={prefix}")
    yield Subject(store, elapse=partial(elapse.redis, redis_url, prefix))
    with Redis.from_url(redis_url) as client:
        for key in client.scan_iter(f"{prefix}:*"):
            client.unlink(key)


@pytest.fixture(scope="session")
def migrated_url(postgres_url: str) -> str:
    """A PostgreSQL with our tables; it is one for tests, so it may forget what it acknowledged."""
    url = f"{postgres_url}?allow=unsafe-durability"
    store = postgres_store.open_url(url)
    connection = store.connect()
    run(store.migrate(), connection.ask)
    connection.close()
    return url


@pytest.fixture
def postgres(postgres_url: str, migrated_url: str) -> Subject:
    with psycopg.connect(postgres_url, autocommit=True) as db:
        for table in ("claims", "answers", "steps"):
            db.execute(f"DELETE FROM oncekey_{table}".encode())
    store = postgres_store.open_url(migrated_url)
    return Subject(store, elapse=partial(elapse.postgres, postgres_url))


@pytest.fixture(scope="session")
def dynamodb_url(dynamodb_endpoint: str) -> Iterator[str]:
    """A table of this process's own."""
    with dynamodb_kit.table(dynamodb_endpoint) as url:
        yield url


@pytest.fixture(scope="session")
def _dynamodb(dynamodb_url: str) -> Iterator[Subject]:
    subject = dynamodb_kit.subject(dynamodb_url)
    with closing(subject.store.connect()):  # while one is open, others need no client of their own
        yield subject


@pytest.fixture
def dynamodb(dynamodb_url: str, _dynamodb: Subject) -> Subject:
    dynamodb_kit.empty(dynamodb_url)
    dynamodb_kit.unsee(_dynamodb)
    return _dynamodb


@pytest.fixture(scope="session")
def migrated_mariadb_url(mariadb_url: str) -> str:
    """A MariaDB with our tables; it is one for tests, so it may forget what it acknowledged."""
    return _migrated_mysql(mariadb_url)


@pytest.fixture
def mariadb(mariadb_url: str, migrated_mariadb_url: str) -> Subject:
    return _mysql_subject(mariadb_url, migrated_mariadb_url)


@pytest.fixture(scope="session")
def migrated_mysql_url(mysql_url: str) -> str:
    return _migrated_mysql(mysql_url)


@pytest.fixture
def mysql(mysql_url: str, migrated_mysql_url: str) -> Subject:
    return _mysql_subject(mysql_url, migrated_mysql_url)


def _migrated_mysql(url: str) -> str:
    url = f"{url}?allow=unsafe-durability"
    store = mysql_store.open_url(url)
    connection = store.connect()
    run(store.migrate(), connection.ask)
    connection.close()
    return url


def _mysql_subject(url: str, migrated_url: str) -> Subject:
    with mysql_connection(url) as db, db.cursor() as cursor:
        for table in ("claims", "steps"):
            cursor.execute(f"DELETE FROM oncekey_{table}")
    return Subject(mysql_store.open_url(migrated_url), elapse=partial(elapse.mysql, url))


STORES: tuple[str, ...] = ("memory", "sqlite", "redis", "postgres", "dynamodb", "mariadb")
if wanted():
    STORES += ("mysql",)
# Over a socket the contract takes its time: the quick run leaves it to memory and SQLite.
_REMOTE = ("redis", "postgres", "dynamodb", "mariadb", "mysql")
_PARAMETERS = [
    pytest.param(name, marks=[pytest.mark.slow] if name in _REMOTE else []) for name in STORES
]


@pytest.fixture(params=_PARAMETERS)
def subject(request: pytest.FixtureRequest) -> Subject:
    """Each of our stores in turn."""
    subject: Subject = request.getfixturevalue(request.param)
    return subject
