"""Connections of a tiered store: one to the truth and one to the cache, side by side.

What a store asks the truth passes through as it is; what it asks the cache is `Cached`. A cache
that does not answer in time is left alone for a while, and everybody goes on without it.
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
from oncekey.stores.tiered.cache_calls import Cached

REST_S = 1.0
"""How long a cache is left alone that did not answer."""


class Cache:
    """Where the cache is, and whether it is worth asking: shared by all connections."""

    def __init__(self, endpoint: Endpoint, clock: Clock) -> None:
        self.endpoint = endpoint
        self._clock = clock
        self._rests_until = 0.0
        self._outage = Outage("the cache")

    def rests(self) -> bool:
        return self._clock.monotonic() < self._rests_until

    def answered(self, replies: list[Any], question: Cached) -> list[Any]:
        """The replies; raises if one of them is needed and none."""
        self._outage.record_success()
        refusals = [str(reply) for reply in replies if isinstance(reply, RedisError)]
        if refusals and question.needed:
            raise StoreUnavailable(
                f"the cache must be told first, and refuses: {refusals[0]}", sent=False
            )
        return replies

    def failed(self, error: StoreUnavailable, question: Cached) -> None:
        """Do without; raises where that is not possible."""
        self._rests_until = self._clock.monotonic() + REST_S
        self._outage.record_failure(error)
        if question.needed:
            raise StoreUnavailable(
                f"the cache must be told first, and does not answer: {error}", sent=False
            ) from error


class TieredConnection:
    """Answers for both, blocking."""

    def __init__(self, truth: Store, cache: Cache, *, must_open: bool) -> None:
        self._store = truth
        self._cache = cache
        self._near: RedisConnection | None = None
        self._truth: Connection | None = None
        try:
            self._truth = truth.connect()
        except StoreUnavailable:
            if must_open:
                raise

    def ask(self, question: Any) -> Any:
        if type(question) is Cached:
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

    def _ask_cache(self, question: Cached) -> list[Any] | None:
        if self._cache.rests() and not question.needed:
            return None
        try:
            self._near = self._near or self._cache.endpoint.connect()
            replies = self._near.ask(question.commands)
        except StoreUnavailable as error:
            near, self._near = self._near, None
            if near is not None:
                near.close()
            self._cache.failed(error, question)
            return None
        return self._cache.answered(replies, question)

    def close(self) -> None:
        for end in (self._near, self._truth):
            if end is not None:
                end.close()
        self._near = self._truth = None


class AsyncTieredConnection:
    """Answers for both, awaited."""

    def __init__(self, truth: Store, cache: Cache) -> None:
        self._store = truth
        self._cache = cache
        self._near: AsyncRedisConnection | None = None
        self._truth: AsyncConnection | None = None

    async def open(self, *, must: bool) -> None:
        try:
            self._truth = await self._store.aconnect()
        except StoreUnavailable:
            if must:
                raise

    async def ask(self, question: Any) -> Any:
        if type(question) is Cached:
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

    async def _ask_cache(self, question: Cached) -> list[Any] | None:
        if self._cache.rests() and not question.needed:
            return None
        try:
            self._near = self._near or await self._cache.endpoint.aconnect()
            replies = await self._near.ask(question.commands)
        except StoreUnavailable as error:
            near, self._near = self._near, None
            if near is not None:
                await near.close()
            self._cache.failed(error, question)
            return None
        return self._cache.answered(replies, question)

    async def close(self) -> None:
        for end in (self._near, self._truth):
            if end is not None:
                await end.close()
        self._near = self._truth = None
