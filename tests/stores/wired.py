"""Every engine at the other end of a wire that can be cut at each message."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit

import pytest

from oncekey._system.clock import FakeClock
from oncekey.stores.base import Store
from oncekey.stores.mysql import store as mysql
from oncekey.stores.postgres import store as postgres
from oncekey.stores.redis import store as redis_store
from oncekey.stores.tiered.connection import PAUSE_S
from oncekey.stores.tiered.store import TieredStore
from oncekey.testing.contract import Subject
from tests.servers.ministack import table_url
from tests.servers.mysql import wanted
from tests.servers.redis_cluster import RedisCluster, await_that, start_redis_cluster
from tests.stores import elapse
from tests.stores.dynamodb import kit
from tests.stores.lossy import Lossy
from tests.stores.wire import Wire

ALLOWED = "?allow=unsafe-durability"
"""They are servers for tests, and may forget what they acknowledged if the power fails."""


class Cuttable(Protocol):
    """What can be told to lose a message, and counts how often it did."""

    cuts: int

    def cut_at_next_question(self, *, skipped: int = 0) -> None: ...
    def cut_at_next_reply(self, *, skipped: int = 0) -> None: ...
    def pass_all(self) -> None: ...


@dataclass(frozen=True)
class Wired:
    """An empty store, and what leads to it."""

    subject: Subject
    wire: Cuttable


def _port(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


def _by(wire_port: int, url: str) -> str:
    return url.replace(f":{_port(url)}/", f":{wire_port}/")


# ------------------------------------------------------------------------------------ one server


def _lossy(name: str, request: pytest.FixtureRequest) -> Iterator[Wired]:
    subject: Subject = request.getfixturevalue(name)
    lossy = Lossy(subject.store)
    yield Wired(Subject(lossy, elapse=subject.elapse, observed=subject.observed), lossy)


def _database(
    name: str, open_url: Callable[[str], Store], url_name: str, request: pytest.FixtureRequest
) -> Iterator[Wired]:
    subject: Subject = request.getfixturevalue(name)
    url: str = request.getfixturevalue(url_name)
    with Wire(_port(url)) as wire:
        yield Wired(Subject(open_url(_by(wire.port, url) + ALLOWED), elapse=subject.elapse), wire)


def _redis(request: pytest.FixtureRequest) -> Iterator[Wired]:
    subject: Subject = request.getfixturevalue("redis")
    url: str = request.getfixturevalue("redis_url")
    with Wire(_port(url)) as wire:
        prefix: str = subject.store.prefix  # type: ignore[attr-defined]
        store = redis_store.open_url(f"{_by(wire.port, url)}?prefix={prefix}")
        yield Wired(Subject(store, elapse=subject.elapse), wire)


def _dynamodb(request: pytest.FixtureRequest) -> Iterator[Wired]:
    request.getfixturevalue("dynamodb")
    url: str = request.getfixturevalue("dynamodb_url")
    with Wire(_port(kit.endpoint_of(url))) as wire:
        beside = table_url(f"http://127.0.0.1:{wire.port}", kit.name_of(url))
        yield Wired(kit.subject(beside), wire)


# --------------------------------------------------------------------------------------- several


@contextmanager
def cluster_behind_wire() -> Iterator[tuple[RedisCluster, Wire]]:
    """Three primaries that everybody, told by any of them, finds at the other end of a wire."""
    with (
        start_redis_cluster(replicas=0) as cluster,
        Wire(*(node.port for node in cluster.nodes)) as wire,
    ):
        for node, port in zip(cluster.nodes, wire.ports, strict=True):
            node.client.config_set("cluster-announce-port", port)

        def announced() -> bool:
            slots = [node.client.execute_command("CLUSTER SLOTS") for node in cluster.nodes]
            return all({e[2][1] for e in told} == set(wire.ports) for told in slots)

        await_that(announced, "the nodes do not tell where the wire is")
        yield cluster, wire


def _cluster(request: pytest.FixtureRequest) -> Iterator[Wired]:
    cluster, wire = request.getfixturevalue("wired_cluster")
    prefix = f"oncekey-{uuid.uuid4().hex}"
    places = ",".join(f"127.0.0.1:{port}" for port in wire.ports)

    def pass_time(seconds: float) -> None:
        for node in cluster.nodes:
            elapse.redis_node(node.client, prefix, seconds)

    url = f"redis+cluster://:{cluster.password}@{places}?prefix={prefix}"
    yield Wired(Subject(redis_store.open_url(url), elapse=pass_time), wire)
    for node in cluster.nodes:
        node.client.flushall()


class _Restless(FakeClock):
    """By which a cache that did not answer has rested whenever somebody looks."""

    def monotonic(self) -> float:
        self.advance(PAUSE_S)
        return super().monotonic()


def _tiered(
    name: str, open_url: Callable[[str], Store], url_name: str, request: pytest.FixtureRequest
) -> Iterator[Wired]:
    """Both tiers: a message to or from either can be lost."""
    truth: Subject = request.getfixturevalue(name)
    url, cache_url = (request.getfixturevalue(each) for each in (url_name, "redis_url"))
    clock, prefix = _Restless(), f"oncekey-{uuid.uuid4().hex}"

    def pass_time(seconds: float) -> None:
        truth.elapse(seconds)
        clock.advance(seconds)

    with Wire(_port(url), _port(cache_url)) as wire:
        cache = redis_store.open_url(_by(wire.ports[1], cache_url)).endpoint
        below = open_url(_by(wire.ports[0], url) + ALLOWED)
        store = TieredStore(below, cache, prefix=prefix, clock=clock)
        yield Wired(Subject(store, elapse=pass_time), wire)


_POSTGRES = ("postgres", postgres.open_url, "postgres_url")
_MARIADB = ("mariadb", mysql.open_url, "mariadb_url")
ENGINES: dict[str, Callable[[pytest.FixtureRequest], Iterator[Wired]]] = {
    "sqlite": partial(_lossy, "sqlite"),
    "postgres": partial(_database, *_POSTGRES),
    "separate": partial(_database, "separate", postgres.open_url, "separate_url"),
    "partitioned": partial(_database, "partitioned", postgres.open_url, "partitioned_url"),
    "redis": _redis,
    "cluster": _cluster,
    "sentinel": partial(_lossy, "sentinel"),
    "mariadb": partial(_database, *_MARIADB),
    "dynamodb": _dynamodb,
    "tiered": partial(_tiered, *_POSTGRES),
    "tiered over mariadb": partial(_tiered, *_MARIADB),
}
if wanted():
    ENGINES["mysql"] = partial(_database, "mysql", mysql.open_url, "mysql_url")


def behind_wire(name: str, request: pytest.FixtureRequest) -> AbstractContextManager[Wired]:
    """One of `ENGINES`, for one test."""
    return contextmanager(ENGINES[name])(request)
