"""A process is killed at every probe of an atomic handler: nothing is left, or exactly one set of
rows with its answer. Nobody has to wait for a lease. On every engine that rows can share with
records, as it is and sealed, from an event loop and from threads.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from oncekey._core.record import State
from tests.crash.atomic_server import reached
from tests.crash.child import START_S_MAX, Child, Reply
from tests.crash.server import SECRETS
from tests.places import SEALED, Place, met_at
from tests.servers.mariadb import mysql_connection
from tests.servers.mysql import wanted

pytestmark = pytest.mark.slow
TABLES = ("payments", "entries")


class AtomicChild(Child):
    """Its ledger are the rows: where others are told of a file, it is told of an adapter."""


PROGRAMS = {"async": "tests.crash.atomic_server", "sync": "tests.crash.atomic_wsgi"}
_POSTGRES = {"async": "asyncpg", "sync": "psycopg"}
_MARIADB = {"async": "asyncmy", "sync": "pymysql"}
ADAPTERS = {
    "sqlite": {"async": "sqlite", "sync": "sqlite"},
    "postgres": _POSTGRES,
    "separate": _POSTGRES,
    "partitioned": _POSTGRES,
    "mariadb": _MARIADB,
}
if wanted():
    ADAPTERS["mysql"] = _MARIADB
_USUAL = [(name, "async") for name in ("sqlite", "postgres", "mariadb", "mysql")]
_WAYS = [
    pytest.param(way, id=" ".join(way), marks=[] if way in _USUAL else pytest.mark.long)
    for way in itertools.product((*ADAPTERS, *(SEALED + name for name in ADAPTERS)), PROGRAMS)
]


@pytest.fixture(scope="module", params=_WAYS)
def way(request: pytest.FixtureRequest) -> Any:
    """Where the records are, and the colour of the processes."""
    return request.param


@pytest.fixture(scope="module")
def adapter(way: tuple[str, str]) -> str:
    name, colour = way
    return ADAPTERS[name.removeprefix(SEALED)][colour]


@pytest.fixture(scope="module")
def place(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    way: tuple[str, str],
) -> Iterator[Place]:
    (name, colour), folder = way, tmp_path_factory.mktemp("atomic")
    with met_at(name, request, folder) as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(AtomicChild, "program", PROGRAMS[colour])
        if place.secrets is not None:
            patch.setenv(SECRETS, place.secrets)
        for table in TABLES:
            change(place, f"CREATE TABLE IF NOT EXISTS {table} (paid TEXT, pid INTEGER)")
        yield place


def change(place: Place, statement: str) -> list[Any]:
    kind = place.name.removeprefix(SEALED)
    if kind == "sqlite":
        with closing(sqlite3.connect(place.url.removeprefix("sqlite:///"), timeout=10)) as db, db:
            return db.execute(statement).fetchall()
    if kind in ("mariadb", "mysql"):
        with mysql_connection(place.url) as my, my.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())
    with psycopg.connect(place.url.partition("?")[0]) as pg:
        cursor = pg.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def rows(place: Place, key: str) -> list[list[Any]]:
    """Who wrote rows under this key, by table."""
    return [
        [pid for (pid,) in change(place, f"SELECT pid FROM {table} WHERE paid = '{key}'")]
        for table in TABLES
    ]


@contextmanager
def serving(place: Place, adapter: str, *, at: str = "") -> Iterator[Child]:
    child = AtomicChild(place.url, Path(adapter), at=at, atomic=True)
    try:
        child.wait_ready()
        yield child
    finally:
        child.close()


@pytest.fixture(scope="module")
def survivor(place: Place, adapter: str) -> Iterator[Child]:
    """The process that clients retry at."""
    with serving(place, adapter) as child:
        yield child


# Where the process dies, and whether the request has happened by then.
KILLED = [
    ("before_insert", False),
    ("after_insert", False),
    ("after_handler", False),
    ("before_complete", False),
    ("before_commit", False),
    ("after_commit", True),
    ("after_complete", True),
    ("after_send", True),
]


@pytest.mark.parametrize(("at", "happened"), KILLED)
def test_p2_killed_at_any_point_it_happened_or_it_did_not(
    place: Place, adapter: str, survivor: Child, at: str, happened: bool
) -> None:
    key = str(uuid.uuid4())
    with serving(place, adapter, at=f"{at}=kill") as first:
        lost = first.pay(key)
        assert first.process.wait() == -9
        died = first.process.pid
    record = place.look(key, "POST /pay")
    if happened:
        assert record is not None
        assert record.state is State.COMPLETED
    else:
        assert record is None
    assert rows(place, key) == ([[died], [died]] if happened else [[], []])
    reply = retried(survivor, key)
    again = survivor.pay(key)
    owner = died if happened else survivor.process.pid
    assert (reply.status, json.loads(reply.body)) == (201, {"paid_by": owner})
    assert (again.headers["idempotent-replayed"], again.body) == ("true", reply.body)
    assert rows(place, key) == [[owner], [owner]]
    if lost.status:
        assert lost.body == reply.body


def test_killed_while_it_rolls_back_it_leaves_nothing(place: Place, adapter: str) -> None:
    key = str(uuid.uuid4())
    with serving(place, adapter, at="before_release=kill") as first:
        assert first.pay(key, status=500).status == 0
    assert place.look(key, "POST /pay") is None
    assert rows(place, key) == [[], []]


def test_a_duplicate_in_another_process_is_told_in_flight_at_once(
    place: Place, adapter: str, tmp_path: Path
) -> None:
    """Also if it is the first request that the other process gets."""
    key, sign = str(uuid.uuid4()), tmp_path / "go on"
    order = {"until": str(sign)}
    replies: list[Reply] = []
    with serving(place, adapter) as first, serving(place, adapter) as other:
        thread = threading.Thread(target=lambda: replies.append(first.pay(key, **order)))
        thread.start()
        wait_for(reached(sign))
        told = other.pay(key, **order)
        sign.touch()
        thread.join()
        again = other.pay(key, **order)
        owner = first.process.pid
    assert (told.status, told.headers["retry-after"]) == (409, "1")
    assert replies[0].status == 201
    assert again.body == replies[0].body
    assert rows(place, key) == [[owner], [owner]]


def retried(child: Child, key: str) -> Reply:
    """There is no lease to wait for: only the server must see that its client is gone."""
    deadline = time.monotonic() + START_S_MAX
    while (reply := child.pay(key)).status == 409 and time.monotonic() < deadline:
        time.sleep(0.005)
    return reply


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + START_S_MAX
    while not file.exists():
        assert time.monotonic() < deadline, "the first process never ran the handler"
        time.sleep(0.005)
