"""Redis or Valkey: the library against redis-benchmark, and against one round trip of redis-py."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import redis
import redis.asyncio

from bench.limits import redis_benchmark
from bench.rounds import Settings, contest
from bench.table import Goal, Row
from bench.work import Item, Library, alone_rows, claim
from oncekey.core.verbs import Insert
from oncekey.stores import redis as redis_store
from oncekey.stores.redis_calls import COMMANDS, Command
from tests.servers import Unavailable, find_tool, start_redis

ROUND_TRIP = Goal(1.5, at_least=False, of_time=True)
INSERTS = Goal(0.6)
_REWRITE_S_MAX = 10.0
_PREFIX = "oncekey"


def rows(settings: Settings) -> list[Row]:
    with start_redis() as server:
        url = server.url
        with Library(redis_store.open_url(url)) as library:
            library.run(library.insert())  # teaches the server the scripts
            return [
                *_insert_rows(url, library, settings),
                *_alone_rows(url, library, settings),
            ]


def estimate_s(settings: Settings) -> float:
    return settings.estimate_s(3) + 5 * settings.estimate_s(2, 0.25)


def _insert_rows(url: str, library: Library, settings: Settings) -> list[Row]:
    title = "Redis, 32 at a time, inserts"
    try:
        find_tool("redis-benchmark")
    except Unavailable as reason:
        return [Row(title, goal=INSERTS, missing=str(reason))]
    command = _benchmark_command()
    rate = redis_benchmark(url, command, 20_000)

    def benchmark(seconds: float) -> float:
        return redis_benchmark(url, command, int(rate * seconds))

    measured = contest(
        title,
        {
            "redis-benchmark": benchmark,
            "store verbs": lambda seconds: library.crowd(library.insert, seconds),
            "Guard.begin": lambda seconds: library.crowd(library.begin, seconds),
        },
        settings,
        before_round=lambda: _empty(url),
    )
    return [
        measured.row(f"{title}: {name}", name, "redis-benchmark", INSERTS)
        for name in ("store verbs", "Guard.begin")
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


def _empty(url: str) -> None:
    """Forget everything, in the append-only file too: rewriting it must not fall into a round."""
    with redis.Redis.from_url(url) as client:
        client.flushall()
        client.bgrewriteaof()
        deadline = time.monotonic() + _REWRITE_S_MAX
        while client.info("persistence")["aof_rewrite_in_progress"]:
            if time.monotonic() > deadline:
                raise TimeoutError("the append-only file is still being rewritten")
            time.sleep(0.01)
