"""What the tests of PostgreSQL's layouts share: records of every kind, parts by the day, rivals."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest

from oncekey._core.record import Answer, Record, State, Step
from oncekey._core.verbs import AppendStep, Purge, Requested, Scan, Steps, Tally
from oncekey.stores.postgres.statements import STATEMENTS
from oncekey.stores.postgres.store import open_url
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import owner, timeless
from tests.stores import elapse
from tests.stores.postgres.kit import Connection

DAY_S = 86_400.0
REQUEST = b"POST /orders"
BY_DAY = ("oncekey_answers", "oncekey_steps_by_day", "oncekey_requests_by_day")


@pytest.fixture
def db(url: str) -> Iterator[Connection]:
    """To look behind the store's back."""
    with psycopg.connect(url, autocommit=True) as db:
        yield db


def subject_of(url: str) -> Subject:
    store = open_url(f"{url}?allow=unsafe-durability")
    return Subject(store, elapse=partial(elapse.postgres, url))


# ----------------------------------------------------------------------------------- records

Kept = tuple[Record, list[Step], bytes | None]


def fill(case: Case) -> dict[bytes, Kept]:
    """Records of every kind, as they are found, with their steps and requests."""
    for state in State:
        claim = case.claim(
            recovery="resume", field_digests={"a": "b"}, schema_version=3, request=REQUEST
        )
        case.stage(state, claim)
    plain = case.done(case.complete(case.begin(), Answer(201, ((b"x", b"1"),), b"y" * 5000)))
    case.done(case.complete(case.begin(), Answer(413, (), None)))
    purged = case.begin(case.claim(tenant="leaving"))
    case.done(case.complete(purged))
    assert case.ask(Purge("leaving", 10)) == 1
    case.ask(Tally({plain.id: 2}, {plain.id: 1}))
    twice = case.begin()
    case.ask(AppendStep(*_owner(twice), Step("charge", b"d", b"r")))
    case.done(case.release(twice))
    taken = case.done(case.take(case.find(twice.id)))
    case.ask(AppendStep(*_owner(taken), Step("mail", b"d", None)))
    case.ask(AppendStep(*_owner(taken), Step("again", b"d", b"r")))
    return look(case)


def look(case: Case) -> dict[bytes, Kept]:
    ids = [record.id for record in case.ask(Scan(100))]
    return {i: (timeless(case.find(i)), case.ask(Steps(i)), case.ask(Requested(i))) for i in ids}


def _owner(record: Record) -> tuple[bytes, int, bytes]:
    held = owner(record)
    return held.id, held.fence, held.token


# ------------------------------------------------------------------------------------- parts


def parts(db: Connection, whole: str = "oncekey_answers") -> set[str]:
    rows = db.execute(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass", (whole,)
    ).fetchall()
    return {name.removeprefix(f"{whole}_") for (name,) in rows}


def day(db: Connection, number: int) -> str:
    """The name of a day: 0 is today, by the server's clock."""
    [(name,)] = db.execute(
        "SELECT to_char((now() AT TIME ZONE 'UTC')::date + %s, 'YYYYMMDD')", (number,)
    ).fetchall()
    return str(name)


def age(db: Connection) -> str:
    """As if all that is kept had expired two days ago; the part that it is in."""
    name, end = day(db, -2), day(db, -1)
    for whole in BY_DAY:
        db.execute(
            f"CREATE TABLE {whole}_{name} PARTITION OF {whole} "
            f"FOR VALUES FROM ('{name}') TO ('{end}')".encode()
        )
    known = "id IN (SELECT id FROM oncekey_claims WHERE state <> 'unknown')"
    for whole in BY_DAY:
        db.execute(f"UPDATE {whole} SET day = %s::date WHERE {known}".encode(), (name,))
    for column in ("answer_day", "kept_day"):
        was = f"{column} IS NOT NULL AND state <> 'unknown'"
        db.execute(f"UPDATE oncekey_claims SET {column} = '{name}' WHERE {was}".encode())
    db.execute(
        "UPDATE oncekey_claims SET expires = %(day)s::date::timestamp AT TIME ZONE 'UTC', "
        "lease_until = CASE WHEN state = 'running' THEN %(day)s::date END WHERE state <> 'unknown'",
        {"day": name},
    )
    return name


# ------------------------------------------------------------------------------------ rivals


@contextlib.contextmanager
def rival_of(url: str) -> Iterator[Any]:
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as rival:
        yield rival


def ask_in(rival: Any) -> Any:
    """How to ask a store's questions in the rival's transaction."""
    return lambda asked: rival.execute(asked.sql.encode(), asked.args).fetchall()


def move_one_batch(rival: Any, name: str = "move_out_of_claims") -> None:
    held = rival.execute(STATEMENTS["hold_for_move"].encode(), ("1000", b"", 10)).fetchone()[1]
    rival.execute(STATEMENTS[name].encode(), (held,))
