"""MariaDB: the library against as many connections, each with one statement at a time."""

from __future__ import annotations

import asyncio
import time
from urllib.parse import urlsplit

import asyncmy
import uvloop

from bench.rounds import Contender, Settings, contest
from bench.table import Goal, Row
from bench.work import Library, claim, migrate
from oncekey.stores.mysql import store as mysql_store
from tests.servers import MariaDB, start_mariadb
from tests.servers.mariadb import mysql_connection

WAYS = 64
INSERTS = f"MariaDB, {WAYS} at a time, inserts"
GOAL = Goal(1.2)
SETTINGS = {"innodb-buffer-pool-size": "256M", "innodb-log-file-size": "1G"}

# As one would write it by hand for the same table.
_INSERT = """
INSERT IGNORE INTO oncekey_claims (
    id, token, tenant, operation, `key`, fingerprint, fingerprint_version, lease_s, retention_s,
    recovery, schema_version, state, fence, generation, attempt, lapses, beat, no_effect,
    created, lease_until, expires
) VALUES (
    %s, %s, %s, %s, %s, %s, 1, 30, 86400,
    'rerun', 0, 'running', 1, 1, 1, 0, 0, 0,
    UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL 30 SECOND, UTC_TIMESTAMP(6) + INTERVAL 1 DAY
)
"""


def rows(settings: Settings) -> list[Row]:
    with start_mariadb(durable=True, settings=SETTINGS) as server:
        store = mysql_store.open_url(server.url)
        migrate(store)
        with Library(store) as library, _Loop(server) as loop:
            contenders: dict[str, Contender] = {
                "raw loop": loop.crowd,
                "store verbs": lambda seconds: library.crowd(library.insert, seconds, WAYS),
                "Guard": lambda seconds: library.crowd(library.begin, seconds, WAYS),
            }
            result = contest(INSERTS, contenders, settings, before_round=lambda: _empty(server))
    return [
        result.row(f"{INSERTS}: {name}", name, "raw loop", GOAL)
        for name in ("store verbs", "Guard")
    ]


def estimate_s(settings: Settings) -> float:
    return settings.estimate_s(3)


class _Loop:
    """One connection for each of the crowd, in autocommit, on an event loop of its own."""

    def __init__(self, server: MariaDB) -> None:
        self._address = urlsplit(server.url)
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)

    def __enter__(self) -> _Loop:
        self._connections = self._runner.run(self._connect())
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.close()
        self._runner.close()

    async def _connect(self) -> list[asyncmy.Connection]:
        place = self._address
        return [
            await asyncmy.connect(
                host=place.hostname,
                port=place.port,
                user=place.username,
                password=place.password,
                database=place.path[1:],
                autocommit=True,
                binary_prefix=True,
            )
            for _ in range(WAYS)
        ]

    def crowd(self, seconds: float) -> float:
        """Inserts per second, of all connections together."""
        return self._runner.run(self._crowd(seconds))

    async def _crowd(self, seconds: float) -> float:
        begun = time.perf_counter()
        done = await asyncio.gather(
            *(_work(connection, begun + seconds) for connection in self._connections)
        )
        return sum(done) / (time.perf_counter() - begun)


async def _work(connection: asyncmy.Connection, end: float) -> int:
    done = 0
    async with connection.cursor() as cursor:
        while time.perf_counter() < end:
            new = claim()
            told = (new.tenant, new.operation, new.key, new.fingerprint)
            await cursor.execute(_INSERT, (new.id, new.token, *told))
            assert cursor.rowcount == 1
            done += 1
    return done


def _empty(server: MariaDB) -> None:
    with mysql_connection(server.url) as db, db.cursor() as cursor:
        cursor.execute("TRUNCATE oncekey_claims")
