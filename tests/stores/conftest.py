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

from oncekey._core.op import run
from oncekey._system.clock import FakeClock
from oncekey.stores.memory import MemoryStore
from oncekey.stores.mysql import store as mysql_store
from oncekey.stores.postgres import store as postgres_store
from oncekey.stores.redis import store as redis_store
from oncekey.stores.sqlite.store import SqliteStore
from oncekey.stores.tiered.store import TieredStore
from oncekey.testing.contract import Subject
from tests.servers.mariadb import mysql_connection
from tests.servers.mysql import wanted
from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_sentinel import WatchedRedis
from tests.stores import elapse
from tests.stores.dynamodb import kit
from tests.stores.postgres.kit import TABLES
from tests.stores.redis import kit as redis_kit


@pytest.fixture
def memory() -> Subject:
    clock = FakeClock()
    return Subject(MemoryStore(clock), elapse=clock.advance)


@pytest.fixture
def sqlite(tmp_path: Path) -> Subject:
    path = tmp_path / "keys.db"
    return Subject(SqliteStore(path), elapse=partial(elapse.sqlite, path))


@pytest.fixture
def redis(redis_url: str) -> Subject:
    # A sweep looks at a bounded number of keys: what other tests left would stand before these.
    with Redis.from_url(redis_url) as client:
        client.flushdb()
    prefix = f"oncekey-{uuid.uuid4().hex}"
    store = redis_store.open_url(f"{redis_url}?prefix={prefix}")
    return Subject(store, elapse=partial(elapse.redis, redis_url, prefix))


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
    return _empty(postgres_url)


def _empty(url: str) -> Subject:
    with psycopg.connect(url, autocommit=True) as db:
        for table in TABLES:  # faster than TRUNCATE while they are small
            db.execute(f"DELETE FROM {table}".encode())
    store = postgres_store.open_url(f"{url}?allow=unsafe-durability")
    return Subject(store, elapse=partial(elapse.postgres, url))


@pytest.fixture(scope="session")
def dynamodb_url(dynamodb_endpoint: str) -> Iterator[str]:
    """A table of this process's own."""
    with kit.table(dynamodb_endpoint) as url:
        yield url


@pytest.fixture(scope="session")
def _dynamodb(dynamodb_url: str) -> Iterator[Subject]:
    subject = kit.subject(dynamodb_url)
    with closing(subject.store.connect()):  # while one is open, others need no client of their own
        yield subject


@pytest.fixture
def dynamodb(dynamodb_url: str, _dynamodb: Subject) -> Subject:
    kit.empty(dynamodb_url)
    kit.restart_process(_dynamodb)
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


# ------------------------------------------------------------------- more ways to keep records


@pytest.fixture
def separate(separate_url: str) -> Subject:
    return _empty(separate_url)


@pytest.fixture
def partitioned(partitioned_url: str) -> Subject:
    return _empty(partitioned_url)


@pytest.fixture
def cluster(redis_cluster: RedisCluster) -> Subject:
    redis_kit.empty(redis_cluster)  # one scan reads so many keys at most, whosever they are
    return redis_kit.subject(redis_cluster, f"oncekey-{uuid.uuid4().hex}")


@pytest.fixture
def sentinel(watched_redis: WatchedRedis) -> Subject:
    prefix, primary = f"oncekey-{uuid.uuid4().hex}", watched_redis.first
    with watched_redis.client(primary) as client:
        client.flushall()
    store = redis_store.open_url(f"{watched_redis.url}&prefix={prefix}")
    return Subject(store, elapse=partial(elapse.redis, primary.url, prefix))


@pytest.fixture
def tiered(postgres: Subject, redis_url: str) -> Subject:
    return _tiered(postgres, redis_url)


@pytest.fixture
def tiered_over_mariadb(mariadb: Subject, redis_url: str) -> Subject:
    return _tiered(mariadb, redis_url)


def _tiered(truth: Subject, redis_url: str) -> Subject:
    clock, cache = FakeClock(), redis_store.open_url(redis_url).endpoint
    store = TieredStore(truth.store, cache, prefix=f"oncekey-{uuid.uuid4().hex}", clock=clock)

    def elapse(seconds: float) -> None:
        truth.elapse(seconds)
        clock.advance(seconds)

    return Subject(store, elapse=elapse)


STORES: tuple[str, ...] = ("memory", "sqlite", "redis", "postgres", "dynamodb", "mariadb")
if wanted():
    STORES += ("mysql",)
MORE = ("separate", "partitioned", "sentinel", "tiered", "tiered_over_mariadb")
"""What differs from one of `STORES` in a part of what it does: for the long run."""
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
