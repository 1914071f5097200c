"""Stores as release 0.1 left them, and release 0.1 itself as a process beside an empty one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from redis import Redis

from oncekey import open_store
from oncekey._core.op import run
from oncekey._system.clock import FakeClock
from oncekey.stores.base import Store
from oncekey.stores.sqlite.store import SqliteStore
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import SyncFace
from tests.stores import elapse

OLD = Path(__file__).parent / "0.1"
ROOT = Path(__file__).parents[2]
STORES = ("sqlite", "postgres", "redis")


@dataclass(frozen=True)
class Site:
    """A store for one test, with what is in it, and a way to let its time pass."""

    name: str
    url: str
    store: Store
    elapse: Callable[[float], None]

    @contextmanager
    def case(self) -> Iterator[Case]:
        with closing(SyncFace(self.store)) as face:
            yield Case(Subject(self.store, elapse=self.elapse), face)

    def migrate(self) -> list[str]:
        with closing(self.store.connect()) as connection:
            return run(self.store.migrate(), connection.ask)


def expected(name: str) -> dict[str, Any]:
    """When the file of this store was made, and how 0.1 read its records."""
    read: dict[str, Any] = json.loads((OLD / f"{name}.expected.json").read_text())
    return read


# ------------------------------------------------------------------------ what 0.1 has left


@pytest.fixture(params=STORES)
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """Each store as 0.1 left it a moment ago; nothing has been migrated."""
    made = expected(request.param)["made"]
    match request.param:
        case "sqlite":
            path = shutil.copy(OLD / "keys.sqlite", tmp_path / "keys.db")
            clock = FakeClock(made)
            yield Site("sqlite", "", SqliteStore(path, clock=clock), clock.advance)
        case "postgres":
            with postgres_site(request) as site:
                with psycopg.connect(site.url.partition("?")[0]) as db:
                    db.execute((OLD / "postgres.sql").read_bytes())
                site.elapse(made - time.time())
                yield site
        case "redis":
            with redis_site(request) as site:
                load_redis(site.url)
                site.elapse(made - time.time())
                yield site


def load_redis(url: str) -> None:
    server, _, prefix = url.partition("?prefix=")
    with Redis.from_url(server) as client:
        for name, kept in json.loads((OLD / "redis.json").read_text()).items():
            key = name.replace("oncekey", prefix, 1)
            fields = {
                field.encode("latin-1"): text.encode("latin-1")
                for field, text in kept["fields"].items()
            }
            client.hset(key, mapping=fields)
            if kept["pttl"] > 0:
                client.pexpire(key, kept["pttl"])


# ----------------------------------------------------------------------- both side by side


@pytest.fixture(params=STORES)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """Each store empty and migrated by this release, as at the beginning of a deployment.

    A database in PostgreSQL was made by 0.1: one that this release makes is not for older ones.
    """
    match request.param:
        case "sqlite":
            path = tmp_path / "keys.db"
            url = f"sqlite:///{path}"
            site = Site("sqlite", url, open_store(url), partial(elapse.sqlite, path))
            site.migrate()
            yield site
        case "postgres":
            with postgres_site(request) as site:
                with psycopg.connect(site.url.partition("?")[0]) as db:
                    db.execute((OLD / "postgres.sql").read_bytes())
                    db.execute("TRUNCATE oncekey_claims, oncekey_answers, oncekey_steps")
                site.migrate()
                yield site
        case "redis":
            with redis_site(request) as site:
                site.migrate()
                yield site


@contextmanager
def postgres_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A database of its own."""
    server: str = request.getfixturevalue("postgres_url")
    name = f"oncekey_{uuid.uuid4().hex}"
    direct = urlsplit(server)._replace(path=f"/{name}").geturl()
    url = f"{direct}?allow=unsafe-durability"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
        yield Site("postgres", url, open_store(url), partial(elapse.postgres, direct))
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@contextmanager
def redis_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A prefix of its own."""
    server: str = request.getfixturevalue("redis_url")
    prefix = f"release-{uuid.uuid4().hex}"
    url = f"{server}?prefix={prefix}"
    yield Site("redis", url, open_store(url), partial(elapse.redis, server, prefix))
    with Redis.from_url(server) as client:
        for key in client.scan_iter(f"{prefix}:*"):
            client.unlink(key)


class OldRelease:
    """Release 0.1 in a process of its own: see worker.py."""

    def __init__(self, url: str) -> None:
        path = os.pathsep.join((str(OLD / "oncekey.zip"), str(ROOT)))
        self._process = subprocess.Popen(
            [sys.executable, str(OLD / "worker.py"), url],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, name: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([name, *arguments]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, "release 0.1 has failed: its error stands above"
        return json.loads(line)

    def close(self) -> None:
        self._process.communicate(timeout=10)


@pytest.fixture
def old(shared: Site) -> Iterator[OldRelease]:
    with closing(OldRelease(shared.url)) as release:
        assert "oncekey.zip" in release.ask("release")
        yield release
