"""What one record costs, measured on each engine: `cost` tells and keeps it."""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import redis

from bench.lifecycles import Spent, mean, run_lifecycles
from bench.machine import ForeignCpu
from bench.work import migrate
from oncekey.stores.urls import open_store
from tests.servers import start_mariadb, start_ministack, start_postgres, start_redis
from tests.servers.mariadb import mysql_connection
from tests.servers.ministack import ministack_version, table_url
from tests.stores.dynamodb.kit import client, name_of

RECORDS = {0: 12_000, 800: 12_000, 4_000: 6_000, 16_000: 3_000}
"""How many, for answers of each length in bytes."""
EMULATED = dict.fromkeys(RECORDS, 200)
"""An emulator is slow, and its items are all alike."""
VACUUMS = 10


@dataclass(frozen=True, slots=True)
class Point:
    """What one record costs, with an answer of this length."""

    answer_bytes: int
    stored_bytes: float
    index_bytes: float | None = None
    log_bytes: float | None = None
    server_cpu_us: float | None = None
    client_cpu_us: float | None = None
    write_units: float | None = None
    """DynamoDB's own: of the claim, the completion and the index."""


@dataclass(frozen=True, slots=True)
class Engine:
    version: str
    settings: str
    records: int
    others_cpu_percent: float
    points: tuple[Point, ...]


def _engine(
    about: str,
    how: str,
    share: float,
    point: Callable[[int, int], Point],
    lengths: Mapping[int, int] = RECORDS,
) -> Engine:
    """A point for each length of answers, and what others used of the CPUs meanwhile."""
    foreign, points, records = ForeignCpu(), [], 0
    for size, most in lengths.items():
        count = max(5, round(most * share / VACUUMS)) * VACUUMS
        records = max(records, count)
        points.append(point(size, count))
    return Engine(
        about,
        how,
        records,
        round(foreign.percent(), 1),
        tuple(Point(*(_round(each) for each in asdict(found).values())) for found in points),
    )


def _round(number: Any) -> Any:
    return round(number, 1) if isinstance(number, float) else number


# ------------------------------------------------------------------------------------- PostgreSQL


def _postgres(share: float) -> Engine:
    settings = {"shared_buffers": "256MB", "max_wal_size": "4GB"}
    with (
        start_postgres(durable=True, settings=settings) as server,
        psycopg.connect(server.url, autocommit=True) as admin,
    ):
        how = "fsync = on, synchronous_commit = on, layout inline"
        about = f"PostgreSQL {server.version}"
        return _engine(about, how, share, lambda *what: _postgres_point(server.url, admin, *what))


def _postgres_point(url: str, admin: Any, size: int, count: int) -> Point:
    store = open_store(url)
    migrate(store)
    before, spent = _one(admin, "SELECT pg_current_wal_insert_lsn()"), []
    for _ in range(VACUUMS):  # in time, as autovacuum does: what was updated is written over
        spent.append(run_lifecycles(store, count // VACUUMS, size))
        admin.execute("VACUUM oncekey_claims")
    log = _one(admin, f"SELECT pg_current_wal_insert_lsn() - '{before}'::pg_lsn")
    named = "relname LIKE 'oncekey\\_%' AND relkind IN ('r', 'p') AND NOT relispartition"
    tables = [name for (name,) in _all(admin, f"SELECT relname FROM pg_class WHERE {named}")]
    for name in tables:
        admin.execute(f"VACUUM {name}".encode())
    leaves = "relname LIKE 'oncekey\\_%' AND relkind = 'r'"
    stored = _one(admin, f"SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE {leaves}")
    index = _one(admin, f"SELECT sum(pg_indexes_size(oid)) FROM pg_class WHERE {leaves}")
    admin.execute(f"DROP TABLE {', '.join(tables)} CASCADE".encode())
    admin.execute("DROP SEQUENCE oncekey_fences")
    return _point(size, count, mean(spent), int(stored), int(index), int(log))


def _all(admin: Any, query: str) -> Any:
    return admin.execute(query.encode()).fetchall()


def _one(admin: Any, query: str) -> Any:
    [(value,)] = _all(admin, query)
    return value


def _point(size: int, count: int, spent: Spent, stored: int, index: int | None, log: int) -> Point:
    return Point(
        size,
        stored / count,
        None if index is None else index / count,
        log / count,
        spent.server_us,
        spent.client_us,
    )


# ----------------------------------------------------------------------------------------- MariaDB


def _mariadb(share: float) -> Engine:
    settings = {"innodb-buffer-pool-size": "256M", "innodb-log-file-size": "1G"}
    with (
        start_mariadb(durable=True, settings=settings) as server,
        mysql_connection(server.url) as admin,
        admin.cursor() as cursor,
    ):
        how = "innodb_flush_log_at_trx_commit = 1, no binary log"
        about = f"MariaDB {server.version}"
        return _engine(about, how, share, lambda *what: _mariadb_point(server.url, cursor, *what))


def _mariadb_point(url: str, cursor: Any, size: int, count: int) -> Point:
    store = open_store(url)
    migrate(store)
    before = _redo_bytes(cursor)
    spent = run_lifecycles(store, count, size)
    log = _redo_bytes(cursor) - before
    cursor.execute("ANALYZE TABLE oncekey_claims")
    cursor.execute(
        "SELECT data_length + index_length, index_length FROM information_schema.tables"
        " WHERE table_schema = DATABASE() AND table_name = 'oncekey_claims'"
    )
    stored, index = cursor.fetchone()
    for statement in ("DROP DATABASE oncekey", "CREATE DATABASE oncekey", "USE oncekey"):
        cursor.execute(statement)
    return _point(size, count, spent, int(stored), int(index), log)


def _redo_bytes(cursor: Any) -> int:
    cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_os_log_written'")
    return int(cursor.fetchone()[1])


# ------------------------------------------------------------------------------------------- Redis


def _redis(share: float) -> Engine:
    with (
        start_redis(settings={"auto-aof-rewrite-percentage": 0}) as server,
        redis.Redis.from_url(server.url) as admin,
    ):
        how = "appendonly yes, appendfsync everysec"
        return _engine(
            server.version, how, share, lambda *what: _redis_point(server.url, admin, *what)
        )


def _redis_point(url: str, admin: Any, size: int, count: int) -> Point:
    admin.execute_command("FLUSHALL", "SYNC")  # else what it frees counts for some time yet
    run_lifecycles(open_store(url), 50, 0)  # scripts and buffers are there already
    memory, log = _held_bytes(admin)
    spent = run_lifecycles(open_store(url), count, size)
    memory_after, log_after = _held_bytes(admin)
    return _point(size, count, spent, memory_after - memory, None, log_after - log)


def _held_bytes(admin: Any) -> tuple[int, int]:
    """In memory, without what is only on its way to the file or to a client; and in the file."""
    info = admin.info()
    passing = info["mem_aof_buffer"] + info["mem_clients_normal"]
    return info["used_memory"] - passing, info["aof_current_size"]


# ------------------------------------------------------------------------------------------ SQLite


def _sqlite(share: float) -> Engine:
    with TemporaryDirectory() as folder:
        about = f"SQLite {sqlite3.sqlite_version}"
        how = "synchronous = FULL"
        return _engine(about, how, share, lambda *what: _sqlite_point(Path(folder), *what))


def _sqlite_point(folder: Path, size: int, count: int) -> Point:
    path = folder / f"{size}.db"
    before = _written_bytes()
    spent = run_lifecycles(open_store(f"sqlite:///{path}"), count, size)
    log = _written_bytes() - before
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Point(
        size, path.stat().st_size / count, None, log / count, client_cpu_us=spent.client_us
    )


def _written_bytes() -> int:
    """What this process gave to be written."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


# ---------------------------------------------------------------------------------------- DynamoDB


def _dynamodb(share: float) -> Engine:
    with start_ministack() as server:

        def point(size: int, count: int) -> Point:
            with _table(server.url) as url:
                store = open_store(url)
                spent = run_lifecycles(store, count, size)
                scan = client(url).get_paginator("scan").paginate(TableName=name_of(url))
                items = [item for page in scan for item in page["Items"]]
            return _weigh(
                size, [item for item in items if item["id"]["B"] != b"oncekey"], spent.client_us
            )

        how = "items of the emulator, weighed by Amazon's rule"
        return _engine(ministack_version(server.url), how, share, point, EMULATED)


@contextmanager
def _table(endpoint: str) -> Iterator[str]:
    url = table_url(endpoint, f"cost-{os.urandom(4).hex()}")
    migrate(open_store(url))
    yield url
    client(url).delete_table(TableName=name_of(url))


_ITEM_BYTES = 100
"""What Amazon adds to the storage of every item, also in an index."""
_UNIT_BYTES = 1024


def _weigh(size: int, items: list[Any], client_us: float) -> Point:
    """A record may be several items: long bodies are apart."""
    count = len({item["id"]["B"] for item in items})
    weights = [sum(len(name) + _size_of(value) for name, value in item.items()) for item in items]
    keys = [{k: v for k, v in item.items() if k in ("id", "part", "owner")} for item in items]
    indexed = [each for each in keys if "owner" in each]
    index = sum(_ITEM_BYTES + sum(len(k) + _size_of(v) for k, v in e.items()) for e in indexed)
    units = sum(math.ceil(weight / _UNIT_BYTES) for weight in weights)
    return Point(
        size,
        (sum(weights) + _ITEM_BYTES * len(items) + index) / count,
        index / count,
        client_cpu_us=client_us,
        # The claim and its entry in the index weigh one each; what is completed, what it weighs.
        write_units=(2 * count + units) / count,
    )


def _size_of(value: dict[str, Any]) -> int:
    [(kind, content)] = value.items()
    match kind:
        case "S":
            return len(content.encode())
        case "B":
            return len(content)
        case "N":
            return (len(content.strip("-0.")) + 1) // 2 + 1
        case "M":
            return 3 + sum(1 + len(name) + _size_of(each) for name, each in content.items())
        case "L":
            return 3 + sum(1 + _size_of(each) for each in content)
        case _:
            return 1


ENGINES: dict[str, Callable[[float], Engine]] = {
    "sqlite": _sqlite,
    "postgres": _postgres,
    "mysql": _mariadb,
    "redis": _redis,
    "dynamodb": _dynamodb,
}
