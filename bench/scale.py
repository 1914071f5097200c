"""Scale: the disk space of a record, and the time of inserts among many records.

The full database is filled by SQL, in the layout and with the values that the library writes. Then
its server's memory is limited, so that its primary key is `CACHED_MAX` times what server and system
together can cache.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import quantiles
from typing import Any
from urllib.parse import urlsplit

import psycopg

from bench.machine import ForeignCpu
from bench.memory_limit import MemoryGroup, confine_memory
from bench.rounds import Settings, say
from bench.subject import try_rows
from bench.table import Goal, Row, Section
from bench.work import RETENTION_S, Item, Library, claim, migrate
from oncekey._core import lifecycle
from oncekey._core.record import Answer, encode_headers
from oncekey._core.verbs import Insert, Sweep
from oncekey._engine.sweeper import SWEEP_PAUSE_S, SWEEP_ROWS_MAX
from oncekey.stores.base import Store
from oncekey.stores.postgres import layouts
from oncekey.stores.postgres.store import open_url
from oncekey.stores.sqlite.store import SqliteStore
from tests.servers import Postgres, folders, start_postgres

SIZED, SIZED_POSTGRES, VACUUMS = 20_000, 100_000, 100
"""Records whose room is measured, and how often what their updates left is cleared meanwhile. In
PostgreSQL as many as it takes for an index to be as full as indexes are.
"""
ANSWER_BYTES = (512, 1024)
HEADERS = ((b"content-type", b"application/json"),)
RECORDS, RECORDS_QUICK, RECORDS_FULL = 1_000_000, 50_000, 10_000_000
EXPIRED_SHARE = 0.1
KEY_BYTES = 75
"""Of the primary key, for each record, when they came in any order."""
CACHED_MAX = 4
MEMORY_BYTES_MIN = 64 * 2**20
"""A server with its sessions does not live on less."""
INSERTS, WAYS = 2_000, (1, 8)
"""How many times, and how many of them at a time."""
FILL_PER_S = 25_000
"""For the estimate."""

POSTGRES_ROOM = Goal(350, at_least=False, unit="B")
SQLITE_ROOM = Goal(300, at_least=False, unit="B")
P50, P99 = (Goal(bound, at_least=False, of_time=True) for bound in (1.5, 3.0))
SWEPT = Goal(2.0, at_least=False, of_time=True)
DROPPED = Goal(1.0, at_least=False, unit="s")
HOW = (
    "*Room*: bytes on disk per completed record, less its answer's body and headers, with indexes; "
    f"on PostgreSQL after {VACUUMS} rounds of claims, completions and VACUUM, as it goes on, and "
    "after VACUUM FULL. *Inserts*: the time of one in a database with many records against one in "
    "an empty database on the same server, whose memory, with what the system caches of its files, "
    f"is a {CACHED_MAX}th of the primary key: most of them have to read a page of it; and while "
    "expired records are swept, as the sweeper does it. *Dropped*: how long it takes to drop the "
    "day of so many answers."
)


def section(settings: Settings) -> Section:
    rows = [
        *try_rows("room on PostgreSQL", _postgres_room, POSTGRES_ROOM),
        *try_rows("room on SQLite", _sqlite_room, SQLITE_ROOM),
        *try_rows("inserts among many records", lambda: _insert_rows(_records(settings)), P50),
        *try_rows("a day dropped", lambda: [_drop_row(_records(settings) // 10)], DROPPED),
    ]
    return Section("Scale", HOW, tuple(rows))


def estimate_s(settings: Settings) -> float:
    return 60 + 2.2 * _records(settings) / FILL_PER_S


def _records(settings: Settings) -> int:
    if settings.full:
        return RECORDS_FULL
    return RECORDS_QUICK if settings.quick else RECORDS


# ------------------------------------------------------------------------------------------- room


def _complete(store: Store, bodies_bytes: Iterable[int]) -> None:
    """Records as different as requests are: nothing of them can be compressed or shared."""
    limit = asyncio.Semaphore(256)

    async def one(library: Library, body_bytes: int) -> None:
        async with limit:
            new = replace(claim(), key=str(uuid.uuid4()), fingerprint=os.urandom(32))
            inserted = await library.ask(Insert(new))
            answer = Answer(201, HEADERS, os.urandom(body_bytes))
            held = Item(new, inserted.fence).held
            await library.ask(lifecycle.complete(held, answer, retention_s=RETENTION_S))

    async def all_of_them(library: Library) -> None:
        await asyncio.gather(*(one(library, body_bytes) for body_bytes in bodies_bytes))

    with Library(store) as library:
        library.run(all_of_them(library))


Lengths = Callable[[int, int], list[int]]


def _answers() -> Iterator[tuple[str, int, Lengths]]:
    """Of different lengths, as they are; and all of one, which shows how many of just these fit on
    a page.
    """
    for body_bytes in ANSWER_BYTES:
        yield f"answers of {body_bytes:,} bytes on average", body_bytes, _mixed_lengths
        yield f"answers of {body_bytes:,} bytes each", body_bytes, _equal_lengths


def _equal_lengths(records: int, body_bytes: int) -> list[int]:
    return [body_bytes] * records


def _mixed_lengths(records: int, mean_bytes: int) -> list[int]:
    """From half to one and a half times as long, in any order."""
    lengths = [mean_bytes // 2 + mean_bytes * n // records for n in range(records)]
    random.Random(records).shuffle(lengths)
    return lengths


def _overhead(total_bytes: int, records: int, body_bytes: int) -> float:
    return total_bytes / records - body_bytes - len(encode_headers(HEADERS))


def _room_row(what: str, body_bytes: int, beyond: float, goal: Goal) -> Row:
    return Row(
        what,
        ours=f"{beyond:.0f} B",
        limit=f"{body_bytes} B",
        value=beyond,
        unit="B",
        goal=goal,
        steady=True,
    )


def _postgres_room() -> list[Row]:
    return [row for answers in _answers() for row in _postgres_room_of(*answers)]


def _postgres_room_of(what: str, body_bytes: int, lengths: Lengths) -> list[Row]:
    rows = []
    query = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname = ANY (%s)"
    tables = [["oncekey_claims", "oncekey_answers", "oncekey_steps"]]
    with start_postgres() as server, psycopg.connect(server.url, autocommit=True) as db:
        store = _store(server.url)
        for _ in range(VACUUMS):
            _complete(store, lengths(SIZED_POSTGRES // VACUUMS, body_bytes))
            db.execute("VACUUM ANALYZE oncekey_claims, oncekey_answers")
        for how, statement in {"going on": "SELECT 1", "compact": "VACUUM FULL"}.items():
            db.execute(statement.encode())
            [(total,)] = db.execute(query, tables).fetchall()
            beyond = _overhead(int(total), SIZED_POSTGRES, body_bytes)
            rows.append(
                _room_row(f"Room on PostgreSQL, {how}, {what}", body_bytes, beyond, POSTGRES_ROOM)
            )
    return rows


def _sqlite_room() -> list[Row]:
    rows, folder = [], folders.private("room")
    for number, (what, body_bytes, lengths) in enumerate(_answers()):
        path: Path = folder / f"{number}.db"
        store = SqliteStore(path)
        migrate(store)
        _complete(store, lengths(SIZED, body_bytes))
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        beyond = _overhead(path.stat().st_size, SIZED, body_bytes)
        rows.append(_room_row(f"Room on SQLite, {what}", body_bytes, beyond, SQLITE_ROOM))
    return rows


# ------------------------------------------------------------------------------------------- many

_FILL = """
INSERT INTO oncekey_claims (
    id, token, tenant, operation, key_uuid, fingerprint, state, fence, created, expires, {where}
)
SELECT
    sha256(int8send(n)), substr(sha256(int8send(-n)), 1, 16), 'single', 'POST /orders',
    gen_random_uuid(), sha256(int8send(n)), 'completed', nextval('oncekey_fences'), now(),
    {expires}, {answer}
FROM generate_series(%s::bigint, %s::bigint) AS n
"""
_LATER = "(now() + interval '1 day' + n * interval '1 ms')::timestamptz(1)"
_AGO = "(now() - interval '1 day' + n * interval '1 ms')::timestamptz(1)"
_FILL_ROWS = 50_000


def _store(url: str) -> Store:
    store = open_url(f"{url}?allow=unsafe-durability")
    migrate(store)
    return store


def _fill(db: psycopg.Connection[Any], first: int, count: int, expires: str) -> None:
    parts = {"where": "status, headers, body", "expires": expires}
    statement = _FILL.format(**parts, answer="201, '\\x01'::bytea, sha256(int8send(n))")
    for begin in range(first, first + count, _FILL_ROWS):
        db.execute(statement.encode(), (begin, min(begin + _FILL_ROWS, first + count) - 1))
        if begin // _FILL_ROWS % 10 == 0:
            say(f"{begin:,} records")


def _small(records: int) -> Postgres:
    cached_kb = max(1024, records * KEY_BYTES // CACHED_MAX // 3 // 1024)
    settings = {"shared_buffers": f"{cached_kb}kB", "max_wal_size": "4GB", "autovacuum": "off"}
    return start_postgres(durable=True, settings=settings)


def _insert_rows(records: int) -> list[Row]:
    with (
        _small(records) as server,
        confine_memory(server.family) as room,
        psycopg.connect(server.url, autocommit=True) as admin,
    ):
        admin.execute("CREATE DATABASE crowded")
        crowded_url = urlsplit(server.url)._replace(path="/crowded").geturl()
        empty, crowded = _store(server.url), _store(crowded_url)
        expired = int(records * EXPIRED_SHARE)
        with psycopg.connect(crowded_url, autocommit=True) as db:
            _fill(db, 1, records, _LATER)
            _fill(db, records + 1, expired, _AGO)
            db.execute("VACUUM ANALYZE oncekey_claims")
            memory = _confine(db, room)
        with Library(empty) as alone, Library(crowded) as among:
            many = f"{records:,} records, {memory}"
            rows = [row for ways in WAYS for row in _among(alone, among, ways, many)]
            foreign = ForeignCpu()
            swept = _compare_times(
                lambda: _insert_times(among, WAYS[-1]),
                lambda: _insert_times(among, WAYS[-1], sweep=True),
            )
            what = f"Inserts, {WAYS[-1]} at a time, while {expired:,} records are swept"
            return [*rows, _time_row(f"{what}, 99th percentile", swept, 1, SWEPT, foreign)]


def _among(alone: Library, among: Library, ways: int, many: str) -> list[Row]:
    foreign = ForeignCpu()
    times = _compare_times(lambda: _insert_times(alone, ways), lambda: _insert_times(among, ways))
    what = f"Inserts{f', {ways} at a time,' if ways > 1 else ', alone,'} among {many}"
    return [
        _time_row(f"{what}, median", times, 0, P50, foreign),
        _time_row(f"{what}, 99th percentile", times, 1, P99, foreign),
    ]


def _confine(db: psycopg.Connection[Any], room: MemoryGroup) -> str:
    """Leave the server memory for a part of the primary key; says how much that is."""
    db.execute("CHECKPOINT")
    os.sync()  # what is not written yet cannot be let go
    [(key_bytes,)] = db.execute("SELECT pg_relation_size('oncekey_claims_pkey')").fetchall()
    part = max(key_bytes // CACHED_MAX, MEMORY_BYTES_MIN)
    limited = room.limit(part)
    kept = f"{part // 2**20} MB of memory" if limited else "more memory, for want of control groups"
    return f"an index of {key_bytes // 2**20} MB and {kept}"


def _insert_times(library: Library, ways: int, *, sweep: bool = False) -> list[float]:
    """How long each insert took."""
    times: list[float] = []

    async def one() -> None:
        for _ in range(INSERTS // ways):
            started = time.perf_counter()
            await library.insert()
            times.append(time.perf_counter() - started)

    async def sweep_loop() -> None:
        while True:
            await library.ask(Sweep(SWEEP_ROWS_MAX))
            await asyncio.sleep(SWEEP_PAUSE_S)

    async def crowd() -> None:
        sweeper = asyncio.create_task(sweep_loop()) if sweep else None
        await asyncio.gather(*(one() for _ in range(ways)))
        if sweeper:
            sweeper.cancel()
            await asyncio.gather(sweeper, return_exceptions=True)

    library.run(crowd())
    return times


Times = Callable[[], list[float]]


def _compare_times(base: Times, other: Times) -> tuple[list[float], list[float]]:
    """In turn, a few times; the first turn of each warms up."""
    base(), other()
    turns = [(base(), other()) for _ in range(5)]
    return [t for turn, _ in turns for t in turn], [t for _, turn in turns for t in turn]


def _time_row(
    what: str, times: tuple[list[float], list[float]], which: int, goal: Goal, foreign: ForeignCpu
) -> Row:
    base, ours = (quantiles(each, n=100)[(49, 98)[which]] for each in times)
    return Row(
        what,
        ours=f"{ours * 1000:.2f} ms",
        limit=f"{base * 1000:.2f} ms",
        value=ours / base,
        goal=goal,
        foreign_percent=foreign.percent(),
    )


# ------------------------------------------------------------------------------------------- days


def _drop_row(answers: int) -> Row:
    with start_postgres(durable=True) as server:
        store = _store(server.url)
        layouts.move(store, layouts.PARTITIONED, lambda _: None)
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute("CREATE TABLE oncekey_answers_20200101 (LIKE oncekey_answers INCLUDING ALL)")
            db.execute(
                "INSERT INTO oncekey_answers_20200101 SELECT '20200101', sha256(int8send(n)), 201, "
                "'\\x01', convert_to(repeat(md5(n::text), 16), 'UTF8') "
                "FROM generate_series(1, %s) AS n",
                (answers,),
            )
            db.execute(
                "ALTER TABLE oncekey_answers ATTACH PARTITION oncekey_answers_20200101 "
                "FOR VALUES FROM ('20200101') TO ('20200102')"
            )
            db.execute("CHECKPOINT")
            foreign, started = ForeignCpu(), time.perf_counter()
            dropped = db.execute("SELECT oncekey_turn_days('answers')").fetchone()
            took_s = time.perf_counter() - started
    assert dropped == (1,)
    return Row(
        f"Dropped: a day of {answers:,} answers",
        ours=f"{took_s:.3f} s",
        value=took_s,
        unit="s",
        goal=DROPPED,
        foreign_percent=foreign.percent(),
    )
