"""Which MySQL or MariaDB is fit, what is said of those that are not, and the schema."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oncekey._core.op import run
from oncekey._core.reserved_records import reserved_claim
from oncekey._core.verbs import Count, Insert
from oncekey.errors import Misuse, StoreError, StoreUnavailable, StoreUnfit
from oncekey.stores import connection as line
from oncekey.stores.checks import Finding, Level, Risk, refuse_unsafe
from oncekey.stores.connection import AsyncStoreConnection, StoreConnection
from oncekey.stores.mysql.checks import PACKET_BYTES, PACKET_BYTES_MIN, Server, statements
from oncekey.stores.mysql.connection import parse_url
from oncekey.stores.mysql.statements import FOR_EVER_US, Question, literal, micros, table
from oncekey.stores.mysql.store import DURABILITY, UNSAFE_DURABILITY, open_url
from oncekey.stores.sql import migrations
from tests.servers.mariadb import mysql_connection
from tests.stores.mysql.kit import migrate
from tests.stores.postgres.kit import both_faces, start

MIGRATIONS = ["0001_first", "0002_atomic", "0003_outbox"]
FIT = Server("10.11.19-MariaDB-0+deb12u1", False, 1, False, 0, PACKET_BYTES, {})


# ----------------------------------------------------------------------------------- judgement


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Transport does not expose socket instance", StoreUnavailable),
        ("'pynacl' package is required for ed25519_password auth method", StoreUnfit),
    ],
)
def test_a_server_that_hangs_up_at_once_is_away_and_not_unfit(
    monkeypatch: pytest.MonkeyPatch, said: str, kind: type[StoreError]
) -> None:
    """asyncmy says both by a `RuntimeError`. An application refuses to start on what is unfit."""

    async def connect(**_: Any) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr("asyncmy.connect", connect)
    with pytest.raises(kind, match=said):
        asyncio.run(open_url("mysql://user@host/keys").aconnect())


def unfit(server: Server, *allowed: Risk) -> str | None:
    try:
        refuse_unsafe(server.findings(), "mysql://host/keys", allowed)
    except StoreUnfit as refused:
        return str(refused)
    return None


@pytest.mark.parametrize(
    "version", ["10.6.0-MariaDB", "10.11.19-MariaDB-0+deb12u1", "11.8.3-MariaDB", "8.0.11", "9.7.4"]
)
def test_these_versions_are_fit(version: str) -> None:
    assert unfit(replace(FIT, version=version)) is None


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("10.5.29-MariaDB", "MariaDB 10.5.29-MariaDB: the oldest that will do is 10.6"),
        ("5.7.44", "MySQL 5.7.44: the oldest that will do is 8.0"),
        ("8.0.11-TiDB-v7.5.0", "neither MySQL nor MariaDB"),
        ("something", "neither MySQL nor MariaDB"),
    ],
)
def test_these_versions_are_not(version: str, told: str) -> None:
    assert told in str(unfit(replace(FIT, version=version), Risk.DURABILITY))


def test_p4_without_a_binary_log_others_see_what_is_not_on_disk_yet() -> None:
    def durability(server: Server) -> Finding:
        return next(found for found in server.findings() if found.what == "durability")

    logged = replace(FIT, log_bin=True, sync_binlog=1)
    assert (FIT.shows_early, logged.shows_early) == (True, False)
    assert not replace(FIT, flush_log=2).shows_early  # what never gets to disk is not waited for
    assert durability(FIT).level is durability(logged).level is Level.FINE


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (replace(FIT, flush_log=0), "innodb_flush_log_at_trx_commit = 0: a crash can forget"),
        (replace(FIT, flush_log=2), "innodb_flush_log_at_trx_commit = 2: a crash can forget"),
        (replace(FIT, log_bin=True), "sync_binlog = 0: a crash can forget"),
    ],
)
def test_p4_what_may_forget_has_to_be_accepted_by_name(server: Server, told: str) -> None:
    refused = unfit(server)
    assert refused is not None
    assert told in refused
    assert "allow=unsafe-durability" in refused
    assert unfit(server, Risk.DURABILITY) is None


def test_a_binary_log_that_is_synced_is_fit() -> None:
    assert unfit(replace(FIT, log_bin=True, sync_binlog=1)) is None
    assert unfit(replace(FIT, flush_log=3)) is None


def test_p3_packets_that_not_every_answer_fits_into_have_to_be_accepted_by_name() -> None:
    assert unfit(replace(FIT, packet_bytes_max=PACKET_BYTES_MIN)) is None
    small = replace(FIT, packet_bytes_max=PACKET_BYTES_MIN - 1024)
    refused = str(unfit(small))
    assert "max_allowed_packet = 2,227,200: an answer may have 1,048,576 bytes" in refused
    assert f"SET GLOBAL max_allowed_packet = {PACKET_BYTES}" in refused
    assert "allow=small-packets" in refused
    assert unfit(small, Risk.PACKETS) is None


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (replace(FIT, read_only=True), "read_only = 1: as on a replica"),
        (replace(FIT, other_engines={"oncekey_steps": "Aria"}), "oncekey_steps in Aria"),
    ],
)
def test_nobody_can_accept_these(server: Server, told: str) -> None:
    assert told in str(unfit(server, Risk.DURABILITY))


# ------------------------------------------------------------------------------------- real ones


@pytest.fixture
def fresh_url(mariadb_url: str) -> Iterator[str]:
    """A database without our tables."""
    with mysql_connection(mariadb_url) as admin, admin.cursor() as cursor:
        cursor.execute("CREATE DATABASE oncekey_fresh")
        yield f"{mariadb_url.rpartition('/')[0]}/oncekey_fresh?allow=unsafe-durability"
        cursor.execute("DROP DATABASE oncekey_fresh")


def execute(url: str, *statements: str) -> Any:
    with mysql_connection(url) as db, db.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall()


@pytest.mark.slow
@both_faces
def test_without_tables_it_says_how_to_make_them(fresh_url: str, face: str) -> None:
    with pytest.raises(StoreUnfit, match=r"has no oncekey tables: run `oncekey migrate mariadb://"):
        start(open_url(fresh_url), face)


@pytest.mark.slow
def test_migrating_is_safe_to_repeat_and_to_cut_short(fresh_url: str) -> None:
    store = open_url(fresh_url)
    with contextlib.closing(store.connect()) as connection:
        op = store.migrate()
        question = next(op)
        while not question.statements[0].startswith("CREATE TABLE IF NOT EXISTS oncekey_claims"):
            question = op.send(connection.ask(question))
        op.close()  # the process ends here, and its connection with it
    assert migrate(store) == MIGRATIONS
    assert migrate(store) == []
    start(store, "sync")
    assert execute(fresh_url, "SELECT * FROM oncekey_fences") == ((1, 0),)


@pytest.mark.slow
def test_of_several_migrators_one_does_it(fresh_url: str) -> None:
    applied: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: applied.append(migrate(open_url(fresh_url))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(applied) == [[], [], [], MIGRATIONS]


@pytest.mark.slow
def test_p4_a_server_that_may_forget_is_refused(migrated_mariadb_url: str) -> None:
    bare = migrated_mariadb_url.partition("?")[0]
    with pytest.raises(StoreUnfit, match="innodb_flush_log_at_trx_commit = 2"):
        start(open_url(bare), "sync")
    assert open_url(bare).durability == DURABILITY
    assert open_url(migrated_mariadb_url).durability == UNSAFE_DURABILITY
    assert open_url(f"{bare}?allow=small-packets").durability == DURABILITY
    start(open_url(migrated_mariadb_url), "sync")


@pytest.mark.slow
def test_a_table_of_another_engine_is_refused(fresh_url: str) -> None:
    store = open_url(fresh_url)
    migrate(store)
    execute(fresh_url, "ALTER TABLE oncekey_steps ENGINE = MyISAM")
    with pytest.raises(StoreUnfit, match="oncekey_steps in MyISAM: it has no transact"):
        start(store, "sync")


@pytest.mark.slow
def test_a_newer_schema_is_refused(fresh_url: str) -> None:
    store = open_url(fresh_url)
    migrate(store)
    execute(fresh_url, "INSERT INTO oncekey_schema VALUES (9000, 'later', 9000, NOW())")
    with pytest.raises(StoreUnfit, match="only releases that know schema 9000"):
        start(store, "sync")


@pytest.mark.slow
@both_faces
def test_missing_privileges_are_named(migrated_mariadb_url: str, face: str) -> None:
    name = migrated_mariadb_url.partition("?")[0].rpartition("/")[2]
    execute(
        migrated_mariadb_url,
        "CREATE OR REPLACE USER reader@'127.0.0.1' IDENTIFIED BY 'read'",
        f"GRANT SELECT ON `{name}`.* TO reader@'127.0.0.1'",
    )
    place = migrated_mariadb_url.partition("@")[2]
    store = open_url(f"mariadb://reader:read@{place}")
    start(store, face)
    with contextlib.closing(store.connect()) as connection:
        denied = Question(("DELETE FROM oncekey_claims",))
        with pytest.raises(StoreUnfit, match="needs SELECT, INSERT, UPDATE and DELETE"):
            connection.ask(denied)
        assert run(store.perform([Count()]), connection.ask)  # the connection is as good as before


@pytest.mark.slow
async def test_a_right_that_is_granted_counts_in_processes_that_run(
    migrated_mariadb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "DENIED_S", 0.0)
    name = migrated_mariadb_url.partition("?")[0].rpartition("/")[2]
    user, place = "late@'127.0.0.1'", migrated_mariadb_url.partition("@")[2]
    execute(
        migrated_mariadb_url,
        f"CREATE OR REPLACE USER {user} IDENTIFIED BY 'x'",
        f"GRANT SELECT ON `{name}`.* TO {user}",
    )
    store = open_url(f"mariadb://late:x@{place}")
    claim = Insert(
        reserved_claim(secrets.token_bytes(32), "granted", secrets.token_bytes(16), 60.0)
    )
    held, aheld = StoreConnection(store), AsyncStoreConnection(store)
    with pytest.raises(StoreUnfit, match="needs SELECT, INSERT, UPDATE and DELETE"):
        held.perform([claim])
    with pytest.raises(StoreUnfit, match="needs SELECT, INSERT, UPDATE and DELETE"):
        await aheld.perform([claim])
    execute(migrated_mariadb_url, f"GRANT ALL ON `{name}`.* TO {user}")
    held.perform([claim])
    await aheld.perform([claim])
    held.close()
    await aheld.close()


@both_faces
def test_a_user_that_may_have_two_connections_is_refused(
    migrated_mariadb_url: str, face: str
) -> None:
    name = migrated_mariadb_url.partition("?")[0].rpartition("/")[2]
    user = "few@'127.0.0.1'"
    execute(
        migrated_mariadb_url,
        f"CREATE OR REPLACE USER {user} IDENTIFIED BY 'x' WITH MAX_USER_CONNECTIONS 2",
        f"GRANT ALL ON `{name}`.* TO {user}",
    )
    url = f"mariadb://few:x@{migrated_mariadb_url.partition('@')[2]}"
    with pytest.raises(StoreUnfit, match="max_user_connections = 2: a process takes up to 7"):
        start(open_url(url), face)
    start(open_url(f"{url},few-connections"), face)
    execute(migrated_mariadb_url, f"ALTER USER {user} WITH MAX_USER_CONNECTIONS 7")
    start(open_url(url), face)


# ---------------------------------------------------------------------------------- addresses


def test_an_address_is_taken_apart_and_its_password_is_not_shown() -> None:
    address, options = parse_url("mysql://us%40er:p%2Fw@db.example:3307/keys?timeout_s=2&tls=true")
    assert options == {"timeout_s": 2.0}
    assert address.safe_url == "mysql://us%40er:***@db.example:3307/keys"
    driver = address.driver()
    assert isinstance(driver.pop("ssl"), ssl.SSLContext)
    assert driver == {
        "host": "db.example",
        "port": 3307,
        "user": "us@er",
        "password": "p/w",
        "database": "keys",
    }
    assert address.scrub("no p/w, no p%2Fw") == "no ***, no ***"


def test_an_address_may_be_a_socket(tmp_path: Path) -> None:
    address, _ = parse_url(f"mariadb://user@localhost/keys?unix_socket={tmp_path}/socket")
    assert address.driver()["unix_socket"] == f"{tmp_path}/socket"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("mysql://host/keys", "names no user"),
        ("mysql://user@host", "names no database"),
        ("mysql://user@host/keys?ssl=1", "ssl=1 is not understood. There are allow="),
        ("mysql://user@host/keys?timeout_s=x", "timeout_s=x is not understood"),
        ("mysql://user@host/keys?timeout_s=0", "is no time to wait"),
        ("mysql://user@host/keys?allow=anything", "allow=anything is not understood"),
        ("mysql://user@host/keys?tls_ca=/nowhere", "tls_ca=/nowhere cannot be read"),
    ],
)
def test_addresses_that_are_refused(url: str, told: str) -> None:
    with pytest.raises(Misuse) as refused:
        open_url(url)
    assert told in str(refused.value)


# --------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "NULL"),
        (True, "1"),
        (False, "0"),
        (7, "7"),
        (0.1, "0.1e0"),
        (1e-7, "1e-07"),
        (b"", "x''"),
        (b"'\\", "x'275c'"),
        ("é", "x'c3a9'"),
    ],
)
def test_values_are_numbers_or_digits(given: Any, text: str) -> None:
    assert literal(given) == text


@pytest.mark.parametrize("given", [float("inf"), float("nan")])
def test_what_is_no_number_is_refused(given: float) -> None:
    with pytest.raises(ValueError, match="cannot be stored"):
        literal(given)


def test_rows_are_a_table_and_times_have_an_end() -> None:
    assert table([{"a": 1, "b": None}, {"a": 2, "b": b"\1"}]) == (
        "(SELECT 1 AS `a`, NULL AS `b` UNION ALL SELECT 2, x'01')"
    )
    assert micros(None) == 0
    assert micros(1.5) == 1_500_000
    assert micros(1e300) == FOR_EVER_US


def test_every_statement_of_a_migration_can_be_repeated() -> None:
    """They commit one by one: what was cut short is begun again."""
    for migration in migrations("mysql"):
        for statement in statements(migration):
            assert "IF NOT EXISTS" in statement or "ON DUPLICATE KEY" in statement
