"""P12: a request that is not needed any more is gone, not only out of sight."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from redis import Redis

from oncekey._core.record import Record
from oncekey._core.verbs import Requested, Swap, Sweep
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import SyncFace
from tests.stores.dynamodb import kit

REQUEST = b"POST /orders, with a card number"
Raw = Callable[[], list[bytes]]


@pytest.fixture(
    params=["sqlite", "postgres", "redis", pytest.param("dynamodb", marks=pytest.mark.slow)]
)
def subject(request: pytest.FixtureRequest) -> Subject:
    subject: Subject = request.getfixturevalue(request.param)
    return subject


@pytest.fixture
def case(subject: Subject) -> Iterator[Case]:
    with closing(SyncFace(subject.store)) as face:
        yield Case(subject, face)


@pytest.fixture
def raw(request: pytest.FixtureRequest, subject: Subject, tmp_path: Path) -> Raw:
    """What requests the store keeps, seen behind its back."""
    raws = {"sqlite": _sqlite, "postgres": _postgres, "redis": _redis, "dynamodb": _dynamodb}
    return raws[subject.store.name](request, subject, tmp_path)


def _sqlite(request: pytest.FixtureRequest, subject: Subject, tmp_path: Path) -> Raw:
    def look() -> list[bytes]:
        with closing(sqlite3.connect(tmp_path / "keys.db")) as db:
            return [kept for (kept,) in db.execute("SELECT request FROM oncekey_requests")]

    return look


def _postgres(request: pytest.FixtureRequest, subject: Subject, tmp_path: Path) -> Raw:
    url: str = request.getfixturevalue("postgres_url")

    def look() -> list[bytes]:
        kept = "SELECT request FROM oncekey_claims WHERE request IS NOT NULL"
        with psycopg.connect(url) as db:
            return [kept for (kept,) in db.execute(kept).fetchall()]

    return look


def _redis(request: pytest.FixtureRequest, subject: Subject, tmp_path: Path) -> Raw:
    url: str = request.getfixturevalue("redis_url")
    prefix = cast(Any, subject.store).prefix

    def look() -> list[bytes]:
        with Redis.from_url(url) as client:
            hashes = [key for key in client.scan_iter(f"{prefix}:*") if client.type(key) == b"hash"]
            kept = [client.hmget(key, "request", "request_of") for key in hashes]
        return [request for request, token in kept if request is not None or token is not None]

    return look


def _dynamodb(request: pytest.FixtureRequest, subject: Subject, tmp_path: Path) -> Raw:
    url: str = request.getfixturevalue("dynamodb_url")

    def look() -> list[bytes]:
        found = kit.client(url).scan(TableName=kit.name_of(url))["Items"]
        return [item["data"]["B"] for item in found if item["part"]["B"].startswith(b"q")]

    return look


ENDS: dict[str, Callable[[Case, Record], Swap]] = {
    "complete": Case.complete,
    "release": Case.release,
    "give up": Case.give_up,
    "run again without": lambda case, found: case.take(found),
}


@pytest.mark.parametrize("how", ENDS)
def test_what_ends_leaves_nothing(case: Case, raw: Raw, how: str) -> None:
    record = case.begin(case.claim(request=REQUEST))
    assert raw() == [REQUEST]
    case.lapse()
    case.done(ENDS[how](case, case.find(record.id)))
    assert raw() == []


def test_completing_together_leaves_nothing(case: Case, raw: Raw) -> None:
    records = [case.begin(case.claim(request=REQUEST)) for _ in range(5)]
    case.together([case.complete(record) for record in records])
    assert raw() == []


def test_starting_over_and_sweeping_leave_nothing(case: Case, raw: Raw) -> None:
    record = case.begin(case.claim(request=REQUEST))
    case.expire()
    case.done(case.take(case.find(record.id)))
    assert raw() == []
    case.begin(case.claim(request=REQUEST))
    case.expire()
    case.ask(Sweep(10))
    assert raw() == []


def test_there_is_only_the_newest(case: Case, raw: Raw) -> None:
    record = case.begin(case.claim(request=REQUEST))
    case.lapse()
    case.done(case.take(record, request=b"newer"))
    assert raw() == [case.ask(Requested(record.id))] == [b"newer"]
