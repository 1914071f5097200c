"""The stores on which several processes can meet."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest
from redis import Redis

from oncekey import open_store
from oncekey._core.key import record_id
from oncekey._core.op import run
from oncekey._core.record import Record
from oncekey._core.verbs import Find, Sweep
from oncekey.stores.base import Store
from oncekey.stores.sealed.store import SealedStore
from oncekey.stores.urls import Unsealed
from tests.observing import VARIABLE, Observing
from tests.servers.ministack import table_url
from tests.servers.mysql import wanted
from tests.servers.redis_cluster import RedisCluster
from tests.servers.redis_sentinel import WatchedRedis
from tests.stores import elapse
from tests.stores.redis import kit
from tests.stores.sealed.kit import SECRET, ask


@dataclass(frozen=True)
class Place:
    """A store on which several processes meet, and the way to make its leases run out."""

    name: str
    url: str
    elapse: Callable[[float], None]
    observing: Observing | None = None
    """Where leases are observed: whoever is to take over must have looked before time passes."""
    secrets: str | None = None
    """Where records are sealed."""

    def open(self) -> Store:
        return open_store(self.url, secrets=self.secrets or Unsealed.UNSEALED)

    def migrate(self) -> None:
        store = self.open()
        with closing(store.connect()) as connection:
            run(store.migrate(), connection.ask)

    def look(self, key: str, operation: str, tenant: str = "single") -> Record | None:
        """What is kept under a key, seen by somebody who has nothing to do with it."""
        store = self.open()
        with closing(store.connect()) as connection:
            run(store.prepare(), connection.ask)
            find = Find(record_id(tenant, operation, key))
            [found] = run(store.perform([find]), connection.ask)
        record: Record | None = found
        return record

    def id_below(self, key: str, operation: str, tenant: str = "single") -> bytes:
        """The id by which the store knows a record, the one that is sealed where one is."""
        store, found = self.open(), record_id(tenant, operation, key)
        if not isinstance(store, SealedStore):
            return found
        with closing(store.connect()) as connection:
            return run(store.load_seal(), connection.ask).hashed_id(found)


@contextmanager
def met_at(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """One of `PLACES`, to be used at once, without what other tests have left there: one that seals
    leaves what nobody can use without its secrets. "sealed …" is the same, sealed.
    """
    kind = name.removeprefix(SEALED)
    place = PLACES[kind](request, tmp_path)
    place.migrate()
    _empty(place)
    if kind == name:
        yield place
        if name == "redis":
            forget(place)
        return
    sealed = replace(place, name=name, secrets=SECRET)
    sealed.migrate()
    yield sealed
    _empty(place)


def _empty(place: Place) -> None:
    """Let all that it holds expire, and sweep it."""
    if place.observing is None:  # else it has a table of its own
        place.elapse(FOR_EVER_S)
        ask(place.open(), Sweep(EVERYTHING))


def sqlite_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    file = tmp_path / "keys.db"
    return Place("sqlite", f"sqlite:///{file}", partial(elapse.sqlite, file))


def postgres_place(request: pytest.FixtureRequest, tmp_path: Path, name: str = "postgres") -> Place:
    url: str = request.getfixturevalue(f"{name}_url")
    # It is one for tests, and may forget what it acknowledged if the machine loses its power.
    allowed = f"{url}?allow=unsafe-durability"
    return Place(name, allowed, partial(elapse.postgres, url))


def redis_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    url: str = request.getfixturevalue("redis_url")
    prefix = f"place-{uuid.uuid4().hex}"
    return Place("redis", f"{url}?prefix={prefix}", partial(elapse.redis, url, prefix))


def cluster_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    cluster: RedisCluster = request.getfixturevalue("redis_cluster")
    prefix = f"place-{uuid.uuid4().hex}"
    url = f"{cluster.url}?prefix={prefix}"
    return Place("cluster", url, partial(kit.pass_time, cluster, prefix))


def sentinel_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    watched: WatchedRedis = request.getfixturevalue("watched_redis")
    prefix = f"place-{uuid.uuid4().hex}"
    url = f"{watched.url}&prefix={prefix}"
    return Place("sentinel", url, partial(elapse.redis, watched.first.url, prefix))


def tiered_place(request: pytest.FixtureRequest, tmp_path: Path, over: str = "postgres") -> Place:
    truth = PLACES[over](request, tmp_path)
    cache = quote(redis_place(request, tmp_path).url, safe="")
    return Place("tiered", f"tiered+{truth.url}&cache={cache}", truth.elapse)


def mariadb_place(request: pytest.FixtureRequest, tmp_path: Path, name: str = "mariadb") -> Place:
    url: str = request.getfixturevalue(f"{name}_url")
    return Place(name, f"{url}?allow=unsafe-durability", partial(elapse.mysql, url))


def dynamodb_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    endpoint: str = request.getfixturevalue("dynamodb_endpoint")
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    patch.setenv(VARIABLE, str(tmp_path))
    observing = Observing(tmp_path)
    url = table_url(endpoint, f"place-{uuid.uuid4().hex}")
    return Place("dynamodb", url, observing.elapse, observing)


PLACES: dict[str, Callable[[pytest.FixtureRequest, Path], Place]] = {
    "sqlite": sqlite_place,
    "postgres": postgres_place,
    "separate": partial(postgres_place, name="separate"),
    "partitioned": partial(postgres_place, name="partitioned"),
    "redis": redis_place,
    "cluster": cluster_place,
    "sentinel": sentinel_place,
    "mariadb": mariadb_place,
    "dynamodb": dynamodb_place,
    "tiered": tiered_place,
    "tiered over mariadb": partial(tiered_place, over="mariadb"),
}
if wanted():
    PLACES["mysql"] = partial(mariadb_place, name="mysql")
SEALED = "sealed "
EVERYTHING = 10_000
FOR_EVER_S = 4e9


def forget(place: Place) -> None:
    url, _, prefix = place.url.partition("?prefix=")
    with Redis.from_url(url) as client:
        for key in client.scan_iter(f"{prefix}:*"):
            client.unlink(key)
