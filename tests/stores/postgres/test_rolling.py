"""PostgreSQL in the middle of a deployment: what a schema of before was made for is still so after
migrating, until somebody says the layout again.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from oncekey._core import lifecycle
from oncekey._core.lifecycle import Held
from oncekey._core.op import run
from oncekey._core.record import Step
from oncekey._core.verbs import AppendStep, Done, Requested, Steps, Sweep
from oncekey.stores.postgres import store as postgres
from oncekey.stores.postgres import transactions
from oncekey.stores.postgres.layouts import INLINE, MOVERS, PARTITIONED, layout, move
from oncekey.stores.postgres.statements import STATEMENTS
from oncekey.stores.postgres.store import PostgresStore, open_url
from oncekey.stores.sql import migrations
from oncekey.testing.contract import Case
from oncekey.testing.contract.subject import ANSWER, FACES, owner
from tests.stores.postgres.kit import Connection, database, ignore_progress, migrate
from tests.stores.postgres.layouts import REQUEST, db, parts, subject_of

__all__ = ["db"]

pytestmark = pytest.mark.slow
CHARGE = Step("charge", b"d", b"r")
TURNS_ANSWERS = """
CREATE TABLE turned (at timestamptz NOT NULL DEFAULT now());
CREATE FUNCTION oncekey_turn_days() RETURNS integer LANGUAGE sql
AS 'INSERT INTO turned DEFAULT VALUES RETURNING 1'
"""
"""In place of what a release with schema 4 made: a function without arguments."""
PARTS_OF_ANSWERS = """
DROP TABLE oncekey_answers;
CREATE TABLE oncekey_answers (
    day date NOT NULL, id bytea NOT NULL, status integer NOT NULL, headers bytea NOT NULL,
    body bytea, PRIMARY KEY (day, id)
) PARTITION BY RANGE (day);
CREATE TABLE oncekey_answers_other PARTITION OF oncekey_answers DEFAULT;
"""


@contextmanager
def of_before(url: str, said: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresStore]:
    """A database that a release with schema 4 has made and laid out."""
    store = open_url(f"{url}?allow=unsafe-durability")
    with monkeypatch.context() as before:
        before.setattr(postgres, "migrations", lambda name: migrations(name)[:4])
        migrate(store)
    with psycopg.connect(url, autocommit=True) as db:
        reader = 4 if said == INLINE else 1
        say = "UPDATE oncekey_schema SET layout = %s, oldest_reader = %s WHERE number = 4"
        db.execute(say, (said, reader))
        if said == PARTITIONED:
            db.execute((PARTS_OF_ANSWERS + TURNS_ANSWERS).encode())
    yield store


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    with database(postgres_url) as url:
        yield url


@contextmanager
def open_case(url: str) -> Iterator[Case]:
    subject = subject_of(url)
    with closing(FACES["sync"](subject.store)) as face:
        yield Case(subject, face)


def begin_with_step(case: Case, **changes: Any) -> Held:
    held = owner(case.begin(case.claim(request=REQUEST, recovery="resume", **changes)))
    assert case.ask(AppendStep(held.id, held.fence, held.token, CHARGE)) == Done(held.fence)
    return held


def settle(case: Case, url: str) -> None:
    claim = case.claim(key=str(uuid.uuid4()), lease_s=30.0, retention_s=86_400.0)
    complete = lifecycle.complete(Held(claim.id, 0, claim.token), ANSWER, retention_s=60.0)
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as caller:

        def ask(asked: Any) -> Any:
            return caller.execute(asked.sql.encode(), asked.args).fetchall()

        assert run(transactions.hold(claim), ask).ours
        assert run(transactions.insert_completed(claim, complete), ask)


def test_inline_rows_stay_readable_for_the_release_before_until_the_layout_is_said_again(
    url: str, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    unread = (
        "SELECT count(*) FROM oncekey_claims WHERE key IS NULL OR lease_s IS NULL "
        "OR retention_s IS NULL OR fingerprint_version IS NULL"
    )
    oldest = "SELECT max(oldest_reader) FROM oncekey_schema"
    usual = {"lease_s": 30.0, "retention_s": 86_400.0}
    with of_before(url, INLINE, monkeypatch) as store, open_case(url) as case:
        migrate(store)
        case.done(case.complete(case.begin(case.claim(key=str(uuid.uuid4()), **usual))))
        settle(case, url)
        assert db.execute(unread).fetchone() == (0,)
        assert db.execute(oldest).fetchone() == (4,), "and so it may start"
        move(store, INLINE, ignore_progress)
        case.done(case.complete(case.begin(case.claim(key=str(uuid.uuid4()), **usual))))
        settle(case, url)
        assert db.execute(unread).fetchone() == (2,)
        assert db.execute(oldest).fetchone() == (6,)


def test_days_of_answers_are_turned_as_before_until_the_layout_is_said_again(
    url: str, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with of_before(url, PARTITIONED, monkeypatch) as store, open_case(url) as case:
        migrate(store)
        begin_with_step(case)
        case.ask(Sweep(10))
        assert db.execute("SELECT count(*) FROM turned").fetchone() == (1,)
        assert not parts(db, "oncekey_steps_by_day")


def test_answers_that_had_days_before_steps_did_are_joined_by_them(
    url: str, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with of_before(url, PARTITIONED, monkeypatch) as store, open_case(url) as case:
        migrate(store)
        older = begin_with_step(case)
        done = case.done(case.complete(case.begin()))
        assert move(store, PARTITIONED, ignore_progress) == 1
        newer = begin_with_step(case)
        case.ask(Sweep(10))
        for held in (older, newer):
            assert case.ask(Steps(held.id)) == [CHARGE]
            assert case.ask(Requested(held.id)) == REQUEST
        assert case.find(done.id).answer == done.answer
        for whole in ("oncekey_answers", "oncekey_steps_by_day", "oncekey_requests_by_day"):
            assert len(parts(db, whole)) > 2
        move(store, INLINE, ignore_progress)
        assert case.ask(Steps(older.id)) == [CHARGE]
        left = "SELECT count(*) FROM pg_proc WHERE proname = 'oncekey_turn_days'"
        assert (layout(store), db.execute(left).fetchone()) == (INLINE, (0,))


def test_a_move_waits_for_the_end_of_a_connection_that_has_moved(url: str) -> None:
    store = open_url(f"{url}?allow=unsafe-durability")
    migrate(store)
    last = psycopg.connect(url, autocommit=True)
    last.execute("SELECT pg_advisory_lock(%s)", (MOVERS,))
    timer = threading.Timer(0.3, last.close)
    timer.start()
    assert move(store, INLINE, ignore_progress) == 0
    timer.join()


@pytest.mark.parametrize("name", [n for n, text in STATEMENTS.items() if "FOR UPDATE" in text])
def test_who_locks_rows_does_not_find_out_parts_at_run_time(name: str) -> None:
    """PostgreSQL 18.6 crashes, now and then, when such a statement has waited for a changed row."""
    assert not re.search(r"\bday = \w+\.\w+", STATEMENTS[name])


def test_who_is_not_allowed_functions_by_default_completes_and_sweeps(
    url: str, db: Connection
) -> None:
    role = f"shop_{uuid.uuid4().hex}"
    db.execute("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
    store = open_url(f"{url}?allow=unsafe-durability")
    migrate(store)
    db.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p'".encode())
    for what in ("TABLES", "SEQUENCES"):
        db.execute(f"GRANT ALL ON ALL {what} IN SCHEMA public TO {role}".encode())
    shop = urlsplit(url)
    theirs = shop._replace(netloc=f"{role}:p@{shop.hostname}:{shop.port}").geturl()
    with open_case(theirs) as case:
        case.done(case.complete(case.begin()))
        move(store, PARTITIONED, ignore_progress)
        assert case.ask(Sweep(10)) == 0
    db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
