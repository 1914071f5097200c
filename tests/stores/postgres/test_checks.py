"""Which PostgreSQL will do, how it gets its tables, and how errors are told."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, replace
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from oncekey._core.op import arun, run
from oncekey._core.verbs import Done, Found, Insert
from oncekey.errors import Misuse, StoreUnavailable, StoreUnfit
from oncekey.stores.postgres import store as module
from oncekey.stores.postgres.checks import Server
from oncekey.stores.postgres.layouts import INLINE, layout
from oncekey.stores.postgres.store import PostgresStore, open_url
from oncekey.stores.postgres.verbs import Question
from oncekey.stores.sql import Migration, migrations
from oncekey.stores.sql_batch import Denied, RowHeld
from oncekey.testing.contract import Subject
from oncekey.testing.contract.subject import ANSWER, FACES
from tests.servers import start_postgres
from tests.stores.postgres.kit import Connection, both_faces, case_of, database, migrate, start


@pytest.fixture
def db(postgres_url: str) -> Iterator[Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as db:
        yield db


# ------------------------------------------------------------------------ refusals to start

NEWEST = migrations("postgres")[-1].number
FIT = Server(180_000, False, False, "read committed", "UTF8", True, "on", None, NEWEST, 1)


def _prepare(store: PostgresStore, **changes: Any) -> None:
    row = astuple(replace(FIT, **changes))
    run(store.prepare(), lambda question: [row])


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"version": 120_022}, "PostgreSQL 12.22: the oldest that will do is 13"),
        ({"standby": True, "read_only": True}, ": a standby: "),
        ({"read_only": True}, "default_transaction_read_only = off"),
        ({"isolation": "serializable"}, "default_transaction_isolation = 'read committed'"),
        ({"encoding": "LATIN1"}, "LATIN1: it lacks characters: .* ENCODING 'UTF8'"),
        (
            {"fsync": False},
            "fsync = off: a crash can forget .* or accept that by adding allow=unsafe",
        ),
        ({"synchronous_commit": "off"}, "SET synchronous_commit = on"),
        ({"unheard": True}, "SET client_min_messages = 'warning'"),
        ({"unlogged": "oncekey_claims"}, "ALTER TABLE oncekey_claims SET LOGGED"),
        ({"applied": None, "oldest_reader": None}, "no oncekey tables: .* `oncekey migrate"),
        ({"oldest_reader": 99}, "Upgrade oncekey here"),
    ],
)
def test_what_would_break_a_promise_is_refused(found: dict[str, Any], told: str) -> None:
    store = PostgresStore("postgresql://user:s3cret@host/keys")
    _prepare(store)
    with pytest.raises(StoreUnfit, match=told) as refused:
        _prepare(store, **found)
    assert "postgresql://user:***@host/keys" in str(refused.value)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_p11_no_wait_is_without_end(seconds: float) -> None:
    with pytest.raises(Misuse, match="timeout_s"):
        PostgresStore("postgresql://host/keys", timeout_s=seconds)


@pytest.mark.parametrize("sync", ["local", "remote_write", "on", "remote_apply"])
def test_every_other_kind_of_commit_is_on_disk(sync: str) -> None:
    _prepare(PostgresStore("postgresql://host/keys"), synchronous_commit=sync)


def test_unsafe_durability_is_accepted_where_somebody_says_so() -> None:
    store = open_url("postgresql://host/keys?allow=unsafe-durability")
    _prepare(store, fsync=False, synchronous_commit="off", unlogged="oncekey_steps")
    assert not store.durability.power_loss
    assert not store.durability.store_crash


def test_who_may_have_fewer_connections_is_refused_unless_they_are_pooled_or_it_is_said() -> None:
    url = "postgresql://host/keys"
    with pytest.raises(StoreUnfit, match=r"CONNECTION LIMIT 6: .* CONNECTION LIMIT 7 for each"):
        _prepare(open_url(url), connections_max=6)
    _prepare(open_url(url), connections_max=7)
    _prepare(open_url(f"{url}?pgbouncer=true"), connections_max=2)
    store = open_url(f"{url}?allow=few-connections")
    _prepare(store, connections_max=2)
    assert store.durability.power_loss


@pytest.fixture
def limited(migrated_url: str, db: Connection) -> Iterator[str]:
    """The URL of a role that may have two connections."""
    role = f"few_{uuid.uuid4().hex}"
    db.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x' CONNECTION LIMIT 2".encode())
    for grant in ("SELECT, INSERT, UPDATE, DELETE ON ALL TABLES", "USAGE ON ALL SEQUENCES"):
        db.execute(f"GRANT {grant} IN SCHEMA public TO {role}".encode())
    yield migrated_url.replace(urlsplit(migrated_url).netloc.rpartition("@")[0], f"{role}:x", 1)
    db.execute(f"DROP OWNED BY {role}".encode())
    db.execute(f"DROP ROLE {role}".encode())


@both_faces
def test_a_real_role_that_may_have_two_connections_is_refused(
    limited: str, db: Connection, face: str
) -> None:
    with pytest.raises(StoreUnfit, match="CONNECTION LIMIT 2: a process takes up to 7"):
        start(open_url(limited), face)
    db.execute(f"ALTER ROLE {urlsplit(limited).username} CONNECTION LIMIT 7".encode())
    start(open_url(limited), face)


@pytest.mark.slow
def test_a_standby_is_refused() -> None:
    with start_postgres(durable=True) as server:
        migrate(open_url(server.url))
        server.stop()
        server.write("data/standby.signal", "")
        server.restart()
        for face in FACES:
            with pytest.raises(StoreUnfit, match=r"a standby: .* Name the primary"):
                start(open_url(server.url), face)


@both_faces
@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("default_transaction_read_only=on", "read-only for this role"),
        ("default_transaction_isolation=serializable", "serializable: concurrent claims fail"),
        ("fsync=off", "fsync = off: a crash can forget"),
    ],
)
def test_a_real_server_is_refused(
    migrated_url: str, postgres_url: str, db: Connection, face: str, setting: str, told: str
) -> None:
    name = setting.partition("=")[0]
    url = f"{migrated_url}&pgbouncer=true&options={quote(f'-c {setting}')}"  # as behind a pooler
    if name == "fsync":
        if db.execute("SHOW fsync").fetchone() != ("off",):
            pytest.skip("the server that is given is a safe one")
        url = postgres_url
    with pytest.raises(StoreUnfit, match=told):
        start(open_url(url), face)


@both_faces
def test_on_our_own_connections_the_isolation_is_ours(migrated_url: str, face: str) -> None:
    serializable = quote("-c default_transaction_isolation=serializable")
    start(open_url(f"{migrated_url}&options={serializable}"), face)


@both_faces
@pytest.mark.slow
@pytest.mark.parametrize("server_encoding", ["UTF8", "SQL_ASCII"])
@pytest.mark.parametrize("client_encoding", ["LATIN1", "SQL_ASCII"])
def test_a_text_is_what_it_is_whatever_encoding_the_client_is_set_to(
    postgres_url: str, face: str, server_encoding: str, client_encoding: str
) -> None:
    with database(postgres_url, f"ENCODING '{server_encoding}' TEMPLATE template0") as url:
        with psycopg.connect(url, autocommit=True) as db:
            name = urlsplit(url).path[1:]
            db.execute(f"ALTER DATABASE {name} SET client_encoding = '{client_encoding}'".encode())
        url = f"{url}?allow=unsafe-durability"
        migrate(open_url(url))
        with case_of(face, url, url) as case:
            record = case.begin(case.claim(tenant="Zürich-東京-🗝"))
            assert record.tenant == "Zürich-東京-🗝"
            assert case.done(case.complete(record, resource_id="東京")).resource_id == "東京"


@both_faces
def test_a_database_without_tables_is_refused(empty_url: str, face: str) -> None:
    with pytest.raises(
        StoreUnfit, match="has no oncekey tables: run `oncekey migrate postgresql://"
    ):
        start(open_url(empty_url), face)


# ------------------------------------------------------------------------------- migrations


@pytest.fixture
def empty_url(postgres_url: str, db: Connection) -> Iterator[str]:
    name = f"oncekey_{uuid.uuid4().hex}"
    db.execute(f"CREATE DATABASE {name}".encode())
    url = urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    yield f"{url}?allow=unsafe-durability"
    db.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@both_faces
def test_migrating_twice_is_migrating_once(empty_url: str, face: str) -> None:
    store = open_url(empty_url)

    async def amigrate() -> list[str]:
        connection = await store.aconnect()
        try:
            return await arun(store.migrate(), connection.ask)
        finally:
            await connection.close()

    def once() -> list[str]:
        return migrate(store) if face == "sync" else asyncio.run(amigrate())

    assert once() == [f"{each.number:04}_{each.name}" for each in migrations("postgres")]
    assert once() == []
    start(store, face)


def test_of_several_migrators_each_migration_is_applied_by_one(empty_url: str) -> None:
    with ThreadPoolExecutor(4) as threads:
        applied = list(threads.map(migrate, [open_url(empty_url) for _ in range(4)]))
    names = [name for names in applied for name in names]
    assert sorted(names) == [f"{each.number:04}_{each.name}" for each in migrations("postgres")]


def test_a_migration_that_fails_leaves_nothing_of_it(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(open_url(empty_url))
    bad = Migration(9999, "bad", 1, "CREATE TABLE oncekey_half (); SELECT 1 / 0")
    monkeypatch.setattr(module, "migrations", lambda engine: [*migrations(engine), bad])
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(open_url(empty_url))
    with psycopg.connect(empty_url.partition("?")[0]) as db:
        assert db.execute("SELECT to_regclass('oncekey_half')").fetchone() == (None,)
        noted = db.execute("SELECT number FROM oncekey_schema ORDER BY number").fetchall()
    assert noted == [(each.number,) for each in migrations("postgres")]


@pytest.mark.slow
@pytest.mark.parametrize("questions", [3, 7, 13, 16, 18, 24])
def test_a_first_migration_that_is_cut_short_is_the_first_once_more(
    empty_url: str, questions: int
) -> None:
    """Half of it would be taken for what an older release made, and be left in its layout."""
    store, left = open_url(empty_url), iter(range(questions))
    with contextlib.closing(store.connect()) as connection:

        def ask(question: Question) -> Any:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return connection.ask(question)

        with pytest.raises(KeyboardInterrupt):
            run(store.migrate(), ask)
    migrate(store)
    assert layout(store) == INLINE


# --------------------------------------------------------------------------------- PgBouncer


@both_faces
def test_everything_works_through_pgbouncer(
    postgres: Subject, postgres_url: str, pgbouncer_url: str, face: str
) -> None:
    url = f"{pgbouncer_url}?pgbouncer=true&allow=unsafe-durability"
    with case_of(face, url, postgres_url) as case:
        records = [case.begin() for _ in range(3)]
        case.done(case.renew(records[0]))
        case.lapse()
        taken = case.done(case.take(records[0]))
        case.refused(case.complete(records[0]), taken)
        outcomes = case.together([case.complete(record) for record in (taken, *records[1:])], 2)
        assert all(isinstance(outcome, Done) for outcome in outcomes)
        found = case.ask(Insert(case.rival(taken)))
        assert isinstance(found, Found)
        assert found.record.answer == ANSWER
        assert migrate(case.subject.store) == []  # type: ignore[arg-type]


@both_faces
def test_a_pooler_that_is_not_announced_is_named(
    postgres: Subject, pgbouncer_url: str, face: str
) -> None:
    with pytest.raises(StoreUnfit, match="add pgbouncer=true to the URL"):
        start(open_url(f"{pgbouncer_url}?allow=unsafe-durability"), face)


# ----------------------------------------------------------------------------- errors in words


class DriverError(Exception):
    def __init__(self, sqlstate: str | None) -> None:
        super().__init__("what the server said")
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        ("40001", StoreUnavailable),  # serialization failure
        ("40P01", StoreUnavailable),  # deadlock
        ("57P01", StoreUnavailable),  # admin shutdown
        ("57014", StoreUnavailable),  # cancelled, by a statement_timeout
        ("53100", StoreUnavailable),  # disk full
        ("08006", StoreUnavailable),
        ("25006", StoreUnavailable),  # became read-only
        ("XX000", StoreUnavailable),
        ("55P03", RowHeld),
        ("42P01", StoreUnfit),
        ("42501", Denied),
        ("26000", StoreUnfit),
        ("22021", DriverError),  # a text that cannot be kept: the verb's own fault
        ("23514", DriverError),
    ],
)
def test_errors_are_told_in_the_words_of_the_contract(sqlstate: str, kind: type) -> None:
    translated = PostgresStore("postgresql://host/keys").driver.translate(DriverError(sqlstate))
    assert type(translated) is kind
    if isinstance(translated, StoreUnavailable):
        assert translated.sent


def test_whatever_prevents_a_connection_has_sent_nothing() -> None:
    store = PostgresStore("postgresql://host/keys")
    for sqlstate in ("28P01", "3D000", "53300", None):
        translated = store.driver.translate(DriverError(sqlstate), sent=False)
        assert isinstance(translated, StoreUnavailable)
        assert not translated.sent


def test_a_question_that_the_driver_cannot_encode_is_the_verbs_own_fault(postgres: Subject) -> None:
    store = postgres.store
    with contextlib.closing(store.connect()) as connection, pytest.raises(psycopg.DataError):
        connection.ask(Question("SELECT $1::text", ("a\0b",)))
