"""Connections of a tiered store: one to the database and one to the cache, side by side.

The database's questions pass through unchanged; the cache's are `CacheQuestion`s. A cache that does
not answer in time is skipped for a while, and everything goes on without it.
"""

from __future__ import annotations

import contextlib
from typing import Any

from oncekey._core.op import arun, run
from oncekey._system.clock import Clock
from oncekey.errors import StoreUnavailable
from oncekey.stores.base import AsyncConnection, Connection, Store
from oncekey.stores.connection import Outage
from oncekey.stores.redis.connection import (
    AsyncRedisConnection,
    Endpoint,
    RedisConnection,
    RedisError,
)
from oncekey.stores.tiered.cache import CacheQuestion

PAUSE_S = 1.0
"""How long a cache is skipped after it did not answer."""


class Cache:
    """The cache's address, and whether it is available: shared by all connections."""

    def __init__(self, endpoint: Endpoint, clock: Clock) -> None:
        self.endpoint = endpoint
        self._clock = clock
        self._paused_until = 0.0
        self._outage = Outage("the cache")

    def is_paused(self) -> bool:
        return self._clock.monotonic() < self._paused_until

    def check_replies(self, replies: list[Any], question: CacheQuestion) -> list[Any]:
        """Return the replies; raise if one of them is an error and was needed."""
        self._outage.record_success()
        refusals = [str(reply) for reply in replies if isinstance(reply, RedisError)]
        if refusals and question.needed:
            raise StoreUnavailable(
                f"the cache must be updated first, and refuses: {refusals[0]}", sent=False
            )
        return replies

    def pause(self, error: StoreUnavailable, question: CacheQuestion) -> None:
        """Skip the cache for a while; raise if its answer was needed."""
        self._paused_until = self._clock.monotonic() + PAUSE_S
        self._outage.record_failure(error)
        if question.needed:
            raise StoreUnavailable(
                f"the cache must be updated first, and does not answer: {error}", sent=False
            ) from error


class TieredConnection:
    """Answers for both, blocking."""

    def __init__(self, truth: Store, cache: Cache, *, must_open: bool) -> None:
        self._store = truth
        self._cache = cache
        self._cache_connection: RedisConnection | None = None
        self._truth: Connection | None = None
        try:
            self._truth = truth.connect()
        except StoreUnavailable:
            if must_open:
                raise

    def ask(self, question: Any) -> Any:
        if type(question) is CacheQuestion:
            return self._ask_cache(question)
        truth = self._truth or self._reopen()
        try:
            return truth.ask(question)
        except StoreUnavailable:
            self._truth = None
            with contextlib.suppress(Exception):
                truth.close()
            raise

    def _reopen(self) -> Connection:
        truth = self._store.connect()
        try:
            run(self._store.prepare(), truth.ask)
        except BaseException as error:
            truth.close()
            if isinstance(error, StoreUnavailable):
                raise StoreUnavailable(str(error), sent=False) from error
            raise
        self._truth = truth
        return truth

    def _ask_cache(self, question: CacheQuestion) -> list[Any] | None:
        if self._cache.is_paused() and not question.needed:
            return None
        try:
            self._cache_connection = self._cache_connection or self._cache.endpoint.connect()
            replies = self._cache_connection.ask(question.commands)
        except StoreUnavailable as error:
            cache_connection, self._cache_connection = self._cache_connection, None
            if cache_connection is not None:
                cache_connection.close()
            self._cache.pause(error, question)
            return None
        return self._cache.check_replies(replies, question)

    def close(self) -> None:
        for end in (self._cache_connection, self._truth):
            if end is not None:
                end.close()
        self._cache_connection = self._truth = None


class AsyncTieredConnection:
    """Answers for both, awaited."""

    def __init__(self, truth: Store, cache: Cache) -> None:
        self._store = truth
        self._cache = cache
        self._cache_connection: AsyncRedisConnection | None = None
        self._truth: AsyncConnection | None = None

    async def open(self, *, must: bool) -> None:
        try:
            self._truth = await self._store.aconnect()
        except StoreUnavailable:
            if must:
                raise

    async def ask(self, question: Any) -> Any:
        if type(question) is CacheQuestion:
            return await self._ask_cache(question)
        truth = self._truth or await self._reopen()
        try:
            return await truth.ask(question)
        except StoreUnavailable:
            self._truth = None
            with contextlib.suppress(Exception):
                await truth.close()
            raise

    async def _reopen(self) -> AsyncConnection:
        truth = await self._store.aconnect()
        try:
            await arun(self._store.prepare(), truth.ask)
        except BaseException as error:
            await truth.close()
            if isinstance(error, StoreUnavailable):
                raise StoreUnavailable(str(error), sent=False) from error
            raise
        self._truth = truth
        return truth

    async def _ask_cache(self, question: CacheQuestion) -> list[Any] | None:
        if self._cache.is_paused() and not question.needed:
            return None
        try:
            self._cache_connection = self._cache_connection or await self._cache.endpoint.aconnect()
            replies = await self._cache_connection.ask(question.commands)
        except StoreUnavailable as error:
            cache_connection, self._cache_connection = self._cache_connection, None
            if cache_connection is not None:
                await cache_connection.close()
            self._cache.pause(error, question)
            return None
        return self._cache.check_replies(replies, question)

    async def close(self) -> None:
        for end in (self._cache_connection, self._truth):
            if end is not None:
                await end.close()
        self._cache_connection = self._truth = None
