"""Limits: how much of the API one caller may use. They are counted before a key is claimed, so a
refused request has spent nothing.

Each request of an account draws on three buckets: the endpoint's (reads and writes apart), the
account's, and the one that all accounts share. Requests without a valid key draw on their
address's bucket alone, so that strangers cannot use up what customers need.

A replay costs no handler, so it draws on a bucket of its own. Before the claim nobody knows that a
request will be a replay; therefore it draws on the writes like any other, and gets that back when
its answer turns out to be a replay. If the writes are used up, a request whose key is completed is
let through on the replays' bucket: it cannot run anything.
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
"""What the API has; an endpoint's limit names one of each."""
REDIS_S_MAX = 1.0
"""How long one question to Redis may take."""
REDIS_REST_S = 5.0
"""How long Redis is left alone after it failed."""
STEP_S = 1.0
"""Windows may last so much longer when the machine's clock is set back."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What is allowed per window, such as "50/second" or "1000/minute"; "off" for no limit."""

    reads: str = "500/second"
    """Per account and endpoint: GET."""
    writes: str = "250/second"
    """Per account and endpoint: everything else."""
    replays: str = "1000/second"
    """Per account: answers that are sent again."""
    account: str = "1000/second"
    """Per account, over all endpoints."""
    total: str = "5000/second"
    """All accounts together."""
    strangers: str = "120/minute"
    """Per address: requests without a valid key."""
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Instead of reads or writes, where an endpoint is named: {"POST charges": "20/second"}."""

    def __post_init__(self) -> None:
        for where, rate in self._all():
            try:
                _item(rate)
            except ValueError:
                raise ValueError(
                    f'{where}={rate}: no rate. Write it as "50/second", "1000/minute", or "off"'
                ) from None

    def _all(self) -> Iterator[tuple[str, str]]:
        yield from ((f.name, getattr(self, f.name)) for f in fields(self) if f.name != "endpoints")
        yield from self.endpoints.items()

    def but(self, changes: list[str]) -> Rates:
        """With changes as the command line has them, such as "writes=20/second"."""
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
    """What a request draws on."""

    reason: str
    """As Stripe-Rate-Limited-Reason names it."""
    rate: RateLimitItem | None
    who: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LimitExceeded:
    """A bucket has nothing left for this request."""

    reason: str
    retry_after_s: int


class Counters:
    """Where hits are counted: in this process, or on Redis for all processes together.

    While Redis is down each process counts by itself: the API stays up and stays limited, at worst
    at the limit times the number of processes.
    """

    def __init__(self, redis_url: str | None = None, redis_s_max: float = REDIS_S_MAX) -> None:
        self._memory = FixedWindowRateLimiter(MemoryStorage())
        self._latest = clock.wall()
        self._pool: redis.asyncio.ConnectionPool | None = None
        self._together: FixedWindowRateLimiter | None = None
        self._redis_s_max = redis_s_max
        self._rest_until = 0.0
        if redis_url is not None:
            self._pool = connection_pool(redis_url)
            storage = RedisStorage(
                f"async+{redis_url}",
                implementation="redispy",
                key_prefix="payments",
                connection_pool=self._pool,  # type: ignore[arg-type]  # (as its documentation says)
            )
            self._together = FixedWindowRateLimiter(storage)

    async def draw(self, bucket: Bucket, cost: int = 1) -> LimitExceeded | None:
        """Take one from a bucket, or say when there will be more. A negative cost gives back."""
        rate = bucket.rate
        if rate is None or await self._ask(lambda on: on.hit(rate, *bucket.who, cost=cost)):
            return None
        return await self._full(bucket, rate)

    async def look(self, bucket: Bucket) -> LimitExceeded | None:
        """Whether a bucket is empty; takes nothing."""
        rate = bucket.rate
        if rate is None or await self._ask(lambda on: on.test(rate, *bucket.who)):
            return None
        return await self._full(bucket, rate)

    async def _full(self, bucket: Bucket, rate: RateLimitItem) -> LimitExceeded:
        window = await self._ask(lambda on: on.get_window_stats(rate, *bucket.who))
        left_s = math.ceil(window.reset_time - clock.wall())
        return LimitExceeded(bucket.reason, max(1, min(left_s, rate.get_expiry())))

    async def _ask(self, question: Callable[[FixedWindowRateLimiter], Awaitable[T]]) -> T:
        if self._together is None or clock.monotonic() < self._rest_until:
            return await question(self._alone())
        try:
            async with asyncio.timeout(self._redis_s_max):
                answer = await question(self._together)
        except (RedisError, OSError) as error:  # a TimeoutError is an OSError
            if not self._rest_until:
                log.warning(
                    "the limits' Redis does not answer (%s): until it does, each process counts "
                    "for itself, so that up to the limits times the processes pass",
                    str(error) or type(error).__name__,
                )
            self._rest_until = clock.monotonic() + REDIS_REST_S
            return await question(self._alone())
        if self._rest_until:
            log.warning("the limits' Redis answers again: all processes count together")
            self._rest_until = 0.0
        return answer

    def _alone(self) -> FixedWindowRateLimiter:
        """What this process counts. The library's windows end by the machine's clock: when that is
        set back they would go on for as long as that, so counting begins anew.
        """
        before, self._latest = self._latest, clock.wall()
        if self._latest < before - STEP_S:
            self._memory = FixedWindowRateLimiter(MemoryStorage())
        return self._memory

    async def close(self) -> None:
        """Give the connections back."""
        if self._pool is not None:
            await self._pool.aclose()


def connection_pool(url: str) -> redis.asyncio.ConnectionPool:
    """Connections to this Redis, none of them open yet; ValueError if it cannot be meant."""
    try:
        return redis.asyncio.ConnectionPool.from_url(url)
    except ValueError:  # which may repeat a part of the password
        raise ValueError(
            "the limits' Redis has an address that cannot be read: write "
            "redis://user:password@host:6379/0, and in the password %40 for @ and %2F for /"
        ) from None


class RateLimits:
    """The rates, and what of them is used."""

    def __init__(self, rates: Rates, counters: Counters) -> None:
        self._counters = counters
        self._items = {name: _item(rate) for name, rate in rates._all()}

    async def admit(self, tenant: str, method: str, path: str) -> LimitExceeded | None:
        """Draw for one request of an account; the first bucket that is empty refuses it."""
        for bucket in self._buckets(tenant, method, path):
            if (full := await self._counters.draw(bucket)) is not None:
                return full
        return None

    async def admit_replay(self, tenant: str) -> LimitExceeded | None:
        """Draw for a request that can only be replayed."""
        return await self._counters.draw(self._replays(tenant))

    async def was_replay(self, tenant: str, method: str, path: str, took_s: float) -> None:
        """A request that was admitted `took_s` ago ran nothing: let it draw on the replays instead,
        as long as there are any left.

        What it drew in a window that is long over is not given back: who holds back many requests
        and lets them go at once would have them all in the present window.
        """
        if await self._counters.draw(self._replays(tenant)) is not None:
            return
        endpoint, account, _ = self._buckets(tenant, method, path)
        for bucket in (endpoint, account):
            if bucket.rate is not None and took_s < bucket.rate.get_expiry():
                await self._counters.draw(bucket, cost=-1)

    async def look_at_stranger(self, address: str) -> LimitExceeded | None:
        """Whether an address has used up what it may ask without a valid key; takes nothing."""
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
    """The kind of thing that a path is about: charges, for /v1/charges/ch_1/capture."""
    return path.removeprefix("/v1/").partition("/")[0][:RESOURCE_CHARS_MAX]


def address_network(address: str) -> str:
    """Whose address it is: an IPv6 customer has a whole /64 of them."""
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
