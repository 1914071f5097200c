"""Records in a Redis Cluster: found wherever they are, while slots and primaries move."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from oncekey.testing.contract import StoreContract, Subject
from tests.servers.programs import Unavailable
from tests.servers.redis_cluster import RedisCluster, start_redis_cluster
from tests.stores import redis_kit

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    """Three primaries, each with a replica; of these tests' own, to be mistreated."""
    try:
        started = start_redis_cluster()
    except Unavailable as unavailable:
        pytest.skip(str(unavailable))
    with started:
        yield started


@pytest.fixture
def prefix() -> str:
    return f"oncekey-{uuid.uuid4().hex}"


@pytest.fixture
def subject(cluster: RedisCluster, prefix: str) -> Iterator[Subject]:
    yield redis_kit.subject(cluster, prefix)
    redis_kit.empty(cluster)


class TestCluster(StoreContract):
    """The whole contract, over three primaries."""
