"""Redis or Valkey: the library against redis-benchmark, and against one round trip of redis-py."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import redis
import redis.asyncio

from bench.limits import redis_benchmark
from bench.rounds import Settings, contest
from bench.subject import try_rows
from bench.table import Goal, Row
from bench.work import Item, Library, alone_rows, claim
from oncekey._core.verbs import Insert
from oncekey.stores.redis import store as redis_store
from oncekey.stores.redis.verbs import COMMANDS, Command
from tests.servers import Redis, start_redis

ROUND_TRIP = Goal(1.5, at_least=False, of_time=True)
INSERTS_TITLE = "Redis, 32 at a time, inserts"
INSERTS = Goal(0.6)
_REWRITE_S_MAX = 10.0
_PREFIX = "oncekey"


def start() -> Redis:
    """A server that syncs its file every second, and rewrites it only when told: a rewrite keeps a
    CPU busy, and whoever it happened to fall on would look slow.
    """
    server = start_redis()
    with redis.Redis.from_url(server.url) as client:
        client.config_set("auto-aof-rewrite-percentage", 0)
    return server


def rows(settings: Settings) -> list[Row]:
    with start() as server:
        url = server.url
        with Library(redis_store.open_url(url)) as library:
            library.run(library.insert())  # teaches the server the scripts
            return [
                *try_rows(INSERTS_TITLE, lambda: _insert_rows(url, library, settings), INSERTS),
                *_alone_rows(url, library, settings),
            ]


def estimate_s(settings: Settings) -> float:
    return settings.estimate_s(3) + 5 * settings.estimate_s(2, 0.25)


def _insert_rows(url: str, library: Library, settings: Settings) -> list[Row]:
    command = _benchmark_command()
    rate = redis_benchmark(url, command, 20_000)

    def benchmark(seconds: float) -> float:
        requests, before = int(rate * seconds), _keys(url)
        found = redis_benchmark(url, command, requests)
        inserted = _keys(url) - before
        assert inserted > 0.99 * requests, f"of {requests} inserts {inserted} inserted"
        return found

    result = contest(
        INSERTS_TITLE,
        {
            "redis-benchmark": benchmark,
            "store verbs": lambda seconds: library.crowd(library.insert, seconds),
            "Guard": lambda seconds: library.crowd(library.begin, seconds),
        },
        settings,
        before_round=lambda: _empty(url),
    )
    return [
        result.row(f"{INSERTS_TITLE}: {name}", name, "redis-benchmark", INSERTS)
        for name in ("store verbs", "Guard")
    ]


def _benchmark_command() -> list[str]:
    """The same script, with arguments of the same length that can stand on a command line."""
    insert = Insert(claim())
    key = f"{_PREFIX}:{insert.id.hex()[:-12]}__rand_int__"
    return [_printable(part) for part in COMMANDS[Insert](insert, key)]


def _printable(part: object) -> str:
    return "x" * len(part) if isinstance(part, bytes) else str(part)


def _alone_rows(url: str, library: Library, settings: Settings) -> list[Row]:
    client = redis.asyncio.Redis.from_url(url, single_connection_client=True)

    def bare(name: str, items: list[Item]) -> float:
        commands: list[Command] = []
        for item in items:
            verb = item.verb(name)
            commands.append(COMMANDS[type(verb)](verb, f"{_PREFIX}:{item.claim.id.hex()}"))
        ask: Callable[..., Awaitable[object]] = client.execute_command
        return library.median_rate(lambda command: ask(*command), commands)

    _empty(url)
    try:
        return alone_rows("Redis", library, bare, lambda _: ROUND_TRIP, settings)
    finally:
        library.run(client.aclose())


def _keys(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.dbsize())


def _empty(url: str) -> None:
    """Forget everything, in the append-only file too."""
    with redis.Redis.from_url(url) as client:
        client.flushall()
        client.bgrewriteaof()
        deadline = time.monotonic() + _REWRITE_S_MAX
        while client.info("persistence")["aof_rewrite_in_progress"]:
            if time.monotonic() > deadline:
                raise TimeoutError("the append-only file is still being rewritten")
            time.sleep(0.01)
