"""Sealed records commit with the caller's rows like any others: joined, and in atomic mode. The
tests are those of `tests/stores/joining.py` and `tests/atomic/test_adapters.py`, over places whose
records are sealed.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from oncekey import Policy, Runtime
from oncekey.messaging import Inbox
from tests.atomic import shop as atomic_shop
from tests.atomic import test_adapters
from tests.places import Place, sqlite_place
from tests.servers.mariadb import mysql_connection
from tests.stores import elapse, test_transactions
from tests.stores.joining import POSTGRES, World
from tests.stores.sealed.kit import SECRET

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(scope="module")
def database(postgres_url: str) -> Iterator[str]:
    """A new database: one that was used without sealing cannot be sealed."""
    name = f"sealed_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"'.encode())
        yield urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


@pytest.fixture(scope="module")
def mariadb_database(mariadb_url: str) -> Iterator[str]:
    yield from _new_database(mariadb_url)


@pytest.fixture(scope="module")
def mysql_database(mysql_url: str) -> Iterator[str]:
    yield from _new_database(mysql_url)


def _new_database(url: str) -> Iterator[str]:
    name = f"sealed_{uuid.uuid4().hex}"
    with mysql_connection(url) as admin, admin.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
        cursor.execute(f"DROP DATABASE {name}")


def sealed_place(request: pytest.FixtureRequest, tmp_path: Path, engine: str) -> Place:
    if engine == "sqlite":
        return replace(sqlite_place(request, tmp_path), secrets=SECRET)
    fixture, passing = _SERVERS[engine]
    url: str = request.getfixturevalue(fixture)
    allowed = f"{url}?allow=unsafe-durability"
    return Place(engine, allowed, partial(passing, url), secrets=SECRET)


_SERVERS: dict[str, tuple[str, Callable[[str, float], None]]] = {
    "postgres": ("database", elapse.postgres),
    "mariadb": ("mariadb_database", elapse.mysql),
    "mysql": ("mysql_database", elapse.mysql),
}


# -------------------------------------------------------------------------------------- joining

JOINING = ("asyncpg", "psycopg", "Session on psycopg", "sqlite3", "AsyncSession on aiosqlite")
JOINED: list[Callable[[World], Any]] = [
    test_transactions.test_p2_what_is_committed_is_both,
    test_transactions.test_p2_what_is_rolled_back_is_neither_and_the_attempt_goes_on,
    test_transactions.test_p2_whoever_was_taken_over_commits_nothing,
    test_transactions.test_a_step_is_kept_with_the_rows_that_it_wrote,
]


@pytest.fixture(params=JOINING)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    place = sealed_place(request, tmp_path, "postgres" if request.param in POSTGRES else "sqlite")
    atomic_shop.prepare(place)
    runtime = Runtime(place.open())
    policy = Policy(lease_s=test_transactions.LEASE_S).settled()
    yield World(request.param, place, runtime, policy, place.url)
    await runtime.aclose()


@pytest.mark.parametrize("joined", JOINED, ids=lambda test: test.__name__)
async def test_sealed_records_are_joined(world: World, joined: Callable[[World], Any]) -> None:
    await joined(world)


def test_a_message_is_handled_within_the_callers_transaction(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = sealed_place(request, tmp_path, "sqlite")
    atomic_shop.prepare(place)
    handled: list[str] = []
    with Runtime(place.open()) as runtime:
        inbox = Inbox(runtime, name="shop.orders")
        for _ in range(2):
            with closing(sqlite3.connect(tmp_path / "keys.db")) as db, db:
                inbox.handle_in_sync(db, "message-1", handled.append, "once")
    assert handled == ["once"]


# ---------------------------------------------------------------------------------- atomic mode

ATOMIC = (
    *("asyncpg", "psycopg in threads", "Session", "Django", "sqlite3", "Session on sqlite3"),
    *atomic_shop.kinds_as_params("asyncmy"),
)
COMMITTED: list[Callable[[atomic_shop.Shop], Any]] = [
    test_adapters.test_p3_rows_and_answer_are_there_together_and_replayed,
    test_adapters.test_a_handler_that_raises_leaves_nothing,
    test_adapters.test_a_concurrent_duplicate_is_told_in_flight_at_once,
    test_adapters.test_p5_another_request_is_told_apart_once_the_first_has_committed,
    test_adapters.test_a_crowd_of_replays_gets_the_answer,
]


@pytest.fixture(params=ATOMIC)
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[atomic_shop.Shop]:
    place = sealed_place(request, tmp_path, atomic_shop.engine_of(request.param))
    atomic_shop.prepare(place)
    opening = atomic_shop.KINDS[request.param][1]
    async with opening(place.url.partition("?")[0]) as adapter:
        store: Any = place.open()
        shop = atomic_shop.Shop(request.param, place, adapter, store)
        yield shop
        await shop.close()


@pytest.mark.parametrize("committed", COMMITTED, ids=lambda test: test.__name__)
async def test_sealed_records_commit_with_the_rows(
    shop: atomic_shop.Shop, committed: Callable[[atomic_shop.Shop], Any]
) -> None:
    await committed(shop)


async def test_an_expired_sealed_record_is_taken_over_in_atomic_mode(
    shop: atomic_shop.Shop,
) -> None:
    key = str(uuid.uuid4())
    assert (await shop.order(key)).body == b"run 1"
    shop.app.edge.recent.seconds = 0
    shop.place.elapse(100_000.0)
    assert (await shop.order(key)).body == b"run 2"
    assert (await shop.order(key)).replayed
    assert shop.orders() == 2
