"""A store on a Redis Cluster as a subject for the contract."""

from __future__ import annotations

from functools import partial

from oncekey.stores.redis.store import open_url
from oncekey.testing.contract import Subject
from tests.servers.redis_cluster import RedisCluster
from tests.stores import elapse


def subject(cluster: RedisCluster, prefix: str, options: str = "") -> Subject:
    store = open_url(f"{cluster.url}?prefix={prefix}{options}")
    return Subject(store, elapse=partial(pass_time, cluster, prefix))


def empty(cluster: RedisCluster) -> None:
    for node in cluster.primaries():
        node.client.flushall()


def pass_time(cluster: RedisCluster, prefix: str, seconds: float) -> None:
    for node in cluster.primaries():
        elapse.redis_node(node.client, prefix, seconds)
