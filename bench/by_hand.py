"""Two plain writes by hand: what an application pays that only stores that a request began and
ended.

No fence, no lease, no fingerprint, no replay: the lower bound of writing twice for each request,
with the fastest driver.
"""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import asyncpg
import redis.asyncio

CONNECTIONS = 16
_CREATE = "CREATE TABLE IF NOT EXISTS by_hand (id TEXT PRIMARY KEY, answer TEXT)"
Write = Callable[[str, str | None], Awaitable[object]]
"""Writes an id; the second time with its response."""


def writer(url: str) -> Callable[[], Awaitable[Write]]:
    """Return how to open a writer for the store at `url`, once the event loop runs."""
    openers = {"postgresql": _postgres, "sqlite": _sqlite, "redis": _redis}
    return lambda: openers[urlsplit(url).scheme](url)


def new_id() -> str:
    return uuid.uuid4().hex


async def _postgres(url: str) -> Write:
    pool = await asyncpg.create_pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS)
    await pool.execute(_CREATE)

    async def write(key: str, answer: str | None) -> object:
        if answer is None:
            return await pool.execute("INSERT INTO by_hand (id) VALUES ($1)", key)
        return await pool.execute("UPDATE by_hand SET answer = $2 WHERE id = $1", key, answer)

    return write


async def _sqlite(url: str) -> Write:
    thread, loop = ThreadPoolExecutor(1), asyncio.get_running_loop()
    path = f"{urlsplit(url).path[1:]}-by-hand"
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", _CREATE):
        db.execute(statement)

    async def write(key: str, answer: str | None) -> object:
        statement = "INSERT INTO by_hand VALUES (?1, ?2)"
        if answer is not None:
            statement = "UPDATE by_hand SET answer = ?2 WHERE id = ?1"
        return await loop.run_in_executor(thread, db.execute, statement, (key, answer))

    return write


async def _redis(url: str) -> Write:
    client = redis.asyncio.Redis.from_url(url)

    async def write(key: str, answer: str | None) -> object:
        return await client.set(f"by-hand:{key}", answer or "", ex=86_400)

    return write
