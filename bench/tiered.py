"""The tiered store: what replays cost beside records that are in Redis themselves."""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace

from bench.rounds import Settings, contest
from bench.table import Goal, Row
from bench.work import FOUND, Item, Library, migrate
from oncekey._core.record import TOKEN_BYTES
from oncekey._core.verbs import Found, Insert
from oncekey.stores.postgres import store as postgres_store
from oncekey.stores.redis import store as redis_store
from oncekey.stores.tiered.store import CACHE_TIMEOUT_S, TieredStore
from tests.servers import start_postgres, start_redis

TITLE = "Tiered, PostgreSQL and Redis, replays"
GOAL = Goal(0.9)
_RECORDS = 512


def rows(settings: Settings) -> list[Row]:
    with start_postgres(durable=True) as database, start_redis() as server:
        truth = postgres_store.open_url(database.url)
        migrate(truth)
        cache = redis_store.open_url(f"{server.url}?prefix=cache").endpoint
        tiered = TieredStore(truth, cache.with_timeout(CACHE_TIMEOUT_S))
        alone = redis_store.open_url(server.url)
        with Library(tiered) as ours, Library(alone) as theirs:
            result = contest(
                TITLE,
                {"tiered": _contender(ours), "Redis alone": _contender(theirs)},
                settings,
            )
    return [result.row(TITLE, "tiered", "Redis alone", GOAL)]


def estimate_s(settings: Settings) -> float:
    return settings.estimate_s(2)


def _contender(library: Library) -> Callable[[float], float]:
    items: list[Item] = library.items(FOUND, _RECORDS)
    turns = itertools.cycle(items)

    async def replay() -> None:
        claim = replace(next(turns).claim, token=os.urandom(TOKEN_BYTES))
        outcome = await library.ask(Insert(claim))
        assert isinstance(outcome, Found), outcome

    work: Callable[[], Awaitable[object]] = replay
    library.crowd(work, 0.2)  # what the truth is asked once is in the cache then
    return lambda seconds: library.crowd(work, seconds)
