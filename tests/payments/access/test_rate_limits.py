"""Limits: what is counted where, and what happens while Redis is down."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import redis

from payments import clock
from payments.access.rate_limits import (
    METHODS,
    REDIS_PAUSE_S,
    RESOURCES,
    Counters,
    LimitExceeded,
    RateLimits,
    Rates,
    address_network,
    resource_of,
)
from tests.payments.api_client import Api
from tests.payments.guarded_app import rates
from tests.servers.process import free_port
from tests.servers.redis import start_redis
from tests.servers.skipping import or_skip

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def open_limits(changed: Rates, redis_url: str | None = None) -> AsyncIterator[RateLimits]:
    limits = RateLimits(changed, Counters(redis_url, redis_s_max=20.0))
    yield limits
    await limits.close()


async def count_admitted(limits: RateLimits, count: int) -> int:
    """How many of so many charges are let through."""
    answers = [await limits.admit("acct_1/test", "POST", "/v1/charges") for _ in range(count)]
    return answers.count(None)


# ------------------------------------------------------------------------------- configuration


def test_a_rate_that_cannot_be_read_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r'writes=often: not a rate\. Write "50/second"'):
        Rates(writes="often")
    with pytest.raises(ValueError, match="POST charges=x"):
        Rates().but(["POST charges=x"])
    with pytest.raises(ValueError, match="not a rate"):
        Rates(writes="5/second;9/day")  # of which only the first would count


def test_the_command_line_changes_single_rates() -> None:
    changed = Rates().but(["writes=7/minute", "POST charges=1/second", "total=off"])
    assert (changed.writes, changed.total, changed.reads) == ("7/minute", "off", Rates().reads)
    assert changed.endpoints == {"POST charges": "1/second"}


@pytest.mark.parametrize(
    "change",
    [
        *("writes", "speed=1/second", "endpoints=1/second", "=1/second"),
        *("POST /v1/charges=1/second", "post charges=1/second", "POST chrages=1/second"),
    ],
)
def test_a_change_that_names_no_limit_is_refused(change: str) -> None:
    with pytest.raises(ValueError, match="limit"):
        Rates().but([change])


def test_every_endpoint_can_have_a_limit_of_its_own(api: Api) -> None:
    routes = api.client.get("/openapi.json").json()["paths"].items()
    names = {(name.upper(), resource_of(path)) for path, names in routes for name in names}
    assert {method for method, _ in names} == set(METHODS)
    assert {resource for _, resource in names} == set(RESOURCES)


def test_reads_are_more_generous_than_writes_and_replays_than_both() -> None:
    usual = Rates()
    amounts = [int(rate.split("/")[0]) for rate in (usual.writes, usual.reads, usual.replays)]
    assert amounts == sorted(amounts)
    assert len(set(amounts)) == 3


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("/v1/charges", "charges"),
        ("/v1/charges/ch_1/capture", "charges"),
        ("/v1/", ""),
        ("/v1/" + "x" * 100, "x" * 40),
    ],
)
def test_the_resource_of_a_path(path: str, resource: str) -> None:
    assert resource_of(path) == resource


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("testclient", "testclient"),
    ],
)
def test_whose_address_it_is(address: str, network: str) -> None:
    assert address_network(address) == network


# ------------------------------------------------------------------------------------ counting


async def test_off_means_off() -> None:
    async with open_limits(rates(writes="off", account="off", total="off")) as limits:
        assert await count_admitted(limits, 50) == 50


async def test_a_full_bucket_says_when_to_come_back() -> None:
    async with open_limits(rates(writes="1/hour")) as limits:
        assert await count_admitted(limits, 1) == 1
        full = await limits.admit("acct_1/test", "POST", "/v1/charges")
    assert isinstance(full, LimitExceeded)
    assert 3500 < full.retry_after_s <= 3600


async def test_a_window_that_ends_gives_all_of_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_limits(rates(writes="2/hour")) as limits:
        assert await count_admitted(limits, 3) == 2
        later = clock.wall() + 3601
        monkeypatch.setattr("time.time", lambda: later)
        assert await count_admitted(limits, 3) == 2


async def test_a_clock_that_is_set_back_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of a second would last until the clock is there again."""
    async with open_limits(rates(writes="2/second")) as limits:
        assert await count_admitted(limits, 3) == 2
        earlier = clock.wall() - 3600
        monkeypatch.setattr("time.time", lambda: earlier)
        assert await count_admitted(limits, 3) == 2


async def test_replays_of_an_earlier_window_give_nothing_back_to_this_one() -> None:
    """Requests that are held back, and let go together, would add up to a window of their own."""
    async with open_limits(rates(writes="2/hour")) as limits:
        assert await count_admitted(limits, 3) == 2
        for took_s in (3600.0, 9000.0):
            await limits.was_replay("acct_1/test", "POST", "/v1/charges", took_s)
        assert await count_admitted(limits, 1) == 0
        for _ in range(3):
            await limits.was_replay("acct_1/test", "POST", "/v1/charges", 3599.0)
        assert await count_admitted(limits, 3) == 1


# --------------------------------------------------------------------------------------- Redis


@pytest.fixture
def empty_redis(redis_url: str) -> str:
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
    return redis_url


@pytest.mark.slow
async def test_processes_that_share_a_redis_share_the_limits(empty_redis: str) -> None:
    changed = rates(writes="3/hour")
    async with open_limits(changed, empty_redis) as one, open_limits(changed, empty_redis) as other:
        assert await count_admitted(one, 2) == 2
        assert await count_admitted(other, 2) == 1
        await other.was_replay("acct_1/test", "POST", "/v1/charges", 0.1)
        await other.was_replay("acct_1/test", "POST", "/v1/charges", 0.1)
        full = [await one.admit("acct_1/test", "POST", "/v1/charges") for _ in range(3)]
    assert full[0] is None
    assert isinstance(full[-1], LimitExceeded)
    assert 0 < full[-1].retry_after_s <= 3600


@pytest.mark.slow
async def test_while_redis_is_down_each_process_limits_by_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is refused for it, and nobody is unlimited; it is said once, and once when it ends."""
    with or_skip():
        server = start_redis()
    now = clock.monotonic()
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    caplog.set_level(logging.WARNING, "payments")
    try:
        async with open_limits(rates(writes="3/hour"), server.url) as limits:
            assert await count_admitted(limits, 2) == 2
            server.kill()
            assert await count_admitted(limits, 5) == 3
            assert len(caplog.records) == 1
            assert "each process counts for itself" in caplog.text
            server.restart()
            assert await count_admitted(limits, 1) == 0  # Redis is left alone for a while
            now += REDIS_PAUSE_S
            assert await count_admitted(limits, 1) == 1  # Redis is asked again: it has counted two
            assert "all processes count together" in caplog.text
    finally:
        server.close()


async def test_a_redis_that_was_never_there_stops_nobody() -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    async with open_limits(rates(writes="2/hour"), url) as limits:
        assert await count_admitted(limits, 4) == 2
