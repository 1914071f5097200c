"""Rate limits: how much of the API one caller may use, counted before a key is claimed.

Each request of an account draws on three buckets: one per endpoint (reads and writes apart), one
per account, and one shared by all accounts. Requests without a valid API key draw only on a bucket
of their address, so that strangers cannot use up what customers need.

A replay runs no handler and draws on a separate bucket. Before the claim it is unknown whether a
request will be a replay, so it draws on the writes first and gets that back when the response is a
replay. If the writes are used up, a request whose key is completed may still draw on the replays:
it cannot run anything.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TypeVar

import redis.asyncio
from limits import RateLimitItem, parse_many
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import FixedWindowRateLimiter
from redis.exceptions import RedisError

from payments import clock

log = logging.getLogger("payments")

T = TypeVar("T")

OFF = "off"
READS = frozenset({"GET", "HEAD", "OPTIONS"})
RESOURCE_CHARS_MAX = 40
METHODS = ("DELETE", "GET", "POST")
RESOURCES = (
    *("balance", "charges", "customers", "events", "payment_intents", "payment_methods"),
    *("refunds", "tokens", "webhook_endpoints"),
)
"""The API's methods and resources; a limit for an endpoint names one of each."""
REDIS_S_MAX = 1.0
"""How long one Redis command may take."""
REDIS_PAUSE_S = 5.0
"""How long Redis is not used after it failed."""
CLOCK_STEP_S_MAX = 1.0
"""How far the machine's clock may be set back before counting restarts."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The limits, such as "50/second" or "1000/minute"; "off" for none."""

    reads: str = "500/second"
    """Per account and endpoint: GET."""
    writes: str = "250/second"
    """Per account and endpoint: everything else."""
    replays: str = "1000/second"
    """Per account: replayed responses."""
    account: str = "1000/second"
    """Per account, over all endpoints."""
    total: str = "5000/second"
    """All accounts together."""
    strangers: str = "120/minute"
    """Per address: requests without a valid key."""
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Per account, for one endpoint, instead of reads or writes: {"POST charges": "20/second"}."""

    def __post_init__(self) -> None:
        for where, rate in self._all():
            try:
                _item(rate)
            except ValueError:
                raise ValueError(
                    f'{where}={rate}: not a rate. Write "50/second", "1000/minute" or "off"'
                ) from None

    def _all(self) -> Iterator[tuple[str, str]]:
        yield from ((f.name, getattr(self, f.name)) for f in fields(self) if f.name != "endpoints")
        yield from self.endpoints.items()

    def but(self, changes: list[str]) -> Rates:
        """Return rates with changes from the command line, such as "writes=20/second"."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        endpoints = dict(self.endpoints)
        for change in changes:
            name, equals, rate = change.partition("=")
            if not equals or name == "endpoints":
                raise ValueError(
                    f'{change}: write a limit as NAME=RATE, such as "writes=20/second"'
                )
            if name in values:
                values[name] = rate
            elif _is_endpoint(name):
                endpoints[name] = rate
            else:
                known = ", ".join(n for n in values if n != "endpoints")
                raise ValueError(
                    f'{change}: there is no limit "{name}". There are {known}, and endpoints such '
                    f'as "POST charges": {", ".join(METHODS)} with {", ".join(RESOURCES)}'
                )
        return Rates(**{**values, "endpoints": endpoints})


@dataclass(frozen=True, slots=True)
class Bucket:
    """A limit that requests count against."""

    reason: str
    """Its name in Stripe-Rate-Limited-Reason."""
    rate: RateLimitItem | None
    who: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LimitExceeded:
    """A bucket is empty."""

    reason: str
    retry_after_s: int


class Counters:
    """Counts hits in this process, or in Redis for all processes together.

    While Redis is down each process counts by itself: the API stays up and stays limited, at worst
    to the limit times the number of processes.
    """

    def __init__(self, redis_url: str | None = None, redis_s_max: float = REDIS_S_MAX) -> None:
        self._memory = FixedWindowRateLimiter(MemoryStorage())
        self._latest = clock.wall()
        self._pool: redis.asyncio.ConnectionPool | None = None
        self._shared: FixedWindowRateLimiter | None = None
        self._redis_s_max = redis_s_max
        self._redis_paused_until = 0.0
        if redis_url is not None:
            self._pool = connection_pool(redis_url)
            storage = RedisStorage(
                f"async+{redis_url}",
                implementation="redispy",
                key_prefix="payments",
                connection_pool=self._pool,  # type: ignore[arg-type]  # (as its documentation says)
            )
            self._shared = FixedWindowRateLimiter(storage)

    async def draw(self, bucket: Bucket, cost: int = 1) -> LimitExceeded | None:
        """Take one from a bucket, or say when it refills. A negative cost gives back."""
        rate = bucket.rate
        if rate is None or await self._ask(lambda on: on.hit(rate, *bucket.who, cost=cost)):
            return None
        return await self._full(bucket, rate)

    async def look(self, bucket: Bucket) -> LimitExceeded | None:
        """Check whether a bucket is empty; take nothing."""
        rate = bucket.rate
        if rate is None or await self._ask(lambda on: on.test(rate, *bucket.who)):
            return None
        return await self._full(bucket, rate)

    async def _full(self, bucket: Bucket, rate: RateLimitItem) -> LimitExceeded:
        window = await self._ask(lambda on: on.get_window_stats(rate, *bucket.who))
        left_s = math.ceil(window.reset_time - clock.wall())
        return LimitExceeded(bucket.reason, max(1, min(left_s, rate.get_expiry())))

    async def _ask(self, question: Callable[[FixedWindowRateLimiter], Awaitable[T]]) -> T:
        if self._shared is None or clock.monotonic() < self._redis_paused_until:
            return await question(self._local())
        try:
            async with asyncio.timeout(self._redis_s_max):
                answer = await question(self._shared)
        except (RedisError, OSError) as error:  # a TimeoutError is an OSError
            if not self._redis_paused_until:
                log.warning(
                    "Redis for rate limits does not respond (%s): until it does, each process "
                    "counts for itself, so up to the limits times the processes pass",
                    str(error) or type(error).__name__,
                )
            self._redis_paused_until = clock.monotonic() + REDIS_PAUSE_S
            return await question(self._local())
        if self._redis_paused_until:
            log.warning("Redis for rate limits responds again: all processes count together")
            self._redis_paused_until = 0.0
        return answer

    def _local(self) -> FixedWindowRateLimiter:
        """Return this process's own counters.

        The library's windows end by the machine's clock. If that is set back they would last that
        much longer, so counting restarts.
        """
        before, self._latest = self._latest, clock.wall()
        if self._latest < before - CLOCK_STEP_S_MAX:
            self._memory = FixedWindowRateLimiter(MemoryStorage())
        return self._memory

    async def close(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            await self._pool.aclose()


def connection_pool(url: str) -> redis.asyncio.ConnectionPool:
    """Return an unopened connection pool; raise ValueError for an invalid URL."""
    try:
        return redis.asyncio.ConnectionPool.from_url(url)
    except ValueError:  # its text may contain part of the password
        raise ValueError(
            "cannot read the URL of Redis for rate limits: write "
            "redis://user:password@host:6379/0, and in the password %40 for @ and %2F for /"
        ) from None


class RateLimits:
    """Applies the rates to requests."""

    def __init__(self, rates: Rates, counters: Counters) -> None:
        self._counters = counters
        self._items = {name: _item(rate) for name, rate in rates._all()}

    async def admit(self, tenant: str, method: str, path: str) -> LimitExceeded | None:
        """Draw for a request of an account; the first empty bucket refuses it."""
        for bucket in self._buckets(tenant, method, path):
            if (full := await self._counters.draw(bucket)) is not None:
                return full
        return None

    async def admit_replay(self, tenant: str) -> LimitExceeded | None:
        """Draw for a request that can only be replayed."""
        return await self._counters.draw(self._replays(tenant))

    async def was_replay(self, tenant: str, method: str, path: str, took_s: float) -> None:
        """Make a request, admitted `took_s` ago, draw on the replays instead, if any are left.

        What it drew in an earlier window is not given back: otherwise a client that holds back many
        requests and releases them at once would get all of them in the current window.
        """
        if await self._counters.draw(self._replays(tenant)) is not None:
            return
        endpoint, account, _ = self._buckets(tenant, method, path)
        for bucket in (endpoint, account):
            if bucket.rate is not None and took_s < bucket.rate.get_expiry():
                await self._counters.draw(bucket, cost=-1)

    async def look_at_stranger(self, address: str) -> LimitExceeded | None:
        """Check whether an address may send more requests without a valid key; take nothing."""
        return await self._counters.look(self._strangers(address))

    async def admit_stranger(self, address: str) -> LimitExceeded | None:
        """Draw for a request without a valid key."""
        return await self._counters.draw(self._strangers(address))

    async def close(self) -> None:
        await self._counters.close()

    def _buckets(self, tenant: str, method: str, path: str) -> tuple[Bucket, Bucket, Bucket]:
        kind, resource = "reads" if method in READS else "writes", resource_of(path)
        rate = self._items.get(f"{method} {resource}", self._items[kind])
        return (
            Bucket("endpoint-rate", rate, (kind, tenant, method, resource)),
            Bucket("account-rate", self._items["account"], ("account", tenant)),
            Bucket("global-rate", self._items["total"], ("total",)),
        )

    def _replays(self, tenant: str) -> Bucket:
        return Bucket("replay-rate", self._items["replays"], ("replays", tenant))

    def _strangers(self, address: str) -> Bucket:
        who = ("strangers", address_network(address))
        return Bucket("address-rate", self._items["strangers"], who)


def resource_of(path: str) -> str:
    """Return the resource of a path: charges, for /v1/charges/ch_1/capture."""
    return path.removeprefix("/v1/").partition("/")[0][:RESOURCE_CHARS_MAX]


def address_network(address: str) -> str:
    """Return the address or, for IPv6, its /64: one customer has all of that."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((int(ip) >> 64 << 64, 64)))
    return address


def _is_endpoint(name: str) -> bool:
    method, _, resource = name.partition(" ")
    return method in METHODS and resource in RESOURCES


def _item(rate: str) -> RateLimitItem | None:
    if rate == OFF:
        return None
    [only] = parse_many(rate)
    return only
