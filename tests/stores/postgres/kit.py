"""What the tests of the PostgreSQL store share."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from oncekey._core.op import arun, run
from oncekey._core.verbs import Verb
from oncekey.errors import StoreUnavailable
from oncekey.stores.base import Store
from oncekey.stores.postgres.layouts import MoveProgress, move
from oncekey.stores.postgres.store import PostgresStore, open_url
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import FACES
from tests.stores import elapse

Connection = psycopg.Connection[Any]
LOCK_WAIT = "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
TABLES = (
    *("oncekey_claims", "oncekey_answers", "oncekey_steps"),
    *("oncekey_steps_by_day", "oncekey_requests_by_day"),
)
"""In which there may be records, in whatever layout."""
both_faces = pytest.mark.parametrize("face", list(FACES))


@contextlib.contextmanager
def case_of(face: str, url: str, direct_url: str) -> Iterator[Case]:
    store = open_url(url)
    with contextlib.closing(FACES[face](store)) as asked:
        yield Case(Subject(store, elapse=partial(elapse.postgres, direct_url)), asked)


def insist(case: Case, verb: Verb) -> Any:
    """Ask again after a failure, as the engine does: each lane has to notice that it is broken."""
    with contextlib.suppress(StoreUnavailable):
        return case.ask(verb)
    return case.ask(verb)


def start(store: Store, face: str) -> None:
    """Connect and be checked, as every line does."""
    if face == "sync":
        with contextlib.closing(store.connect()) as connection:
            run(store.prepare(), connection.ask)
        return

    async def check() -> None:
        connection = await store.aconnect()
        try:
            await arun(store.prepare(), connection.ask)
        finally:
            await connection.close()

    asyncio.run(check())


def migrate(store: PostgresStore) -> list[str]:
    with contextlib.closing(store.connect()) as connection:
        return run(store.migrate(), connection.ask)


@contextlib.contextmanager
def database(server: str, how: str = "") -> Iterator[str]:
    """The URL of an empty one of its own, made so."""
    name = f"oncekey_{uuid.uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} {how}".encode())
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@contextlib.contextmanager
def migrated_database(server: str) -> Iterator[str]:
    """The URL of one that has its tables."""
    with database(server) as url:
        migrate(open_url(f"{url}?allow=unsafe-durability"))
        yield url


@contextlib.contextmanager
def laid_out(server: str, layout: str) -> Iterator[str]:
    """The URL of one that keeps its records in this layout."""
    with migrated_database(server) as url:
        move(open_url(f"{url}?allow=unsafe-durability"), layout, ignore_progress)
        yield url


def ignore_progress(_: MoveProgress | None) -> None:
    pass


def until(db: Connection, condition: str, *args: object) -> None:
    for _ in range(1000):
        if db.execute(f"SELECT 1 {condition}".encode(), args).fetchone():
            return
        time.sleep(0.01)
    raise AssertionError(f"never came true: {condition}")
