"""PostgreSQL whose role or database has settings that change how SQL is read or values are written.

Old applications need some of them. Our connections send their own. A pooler passes none on, so none
may matter there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from oncekey._core.op import run
from oncekey._core.verbs import Sweep
from oncekey.errors import Misuse
from oncekey.messaging import Outbox
from oncekey.stores.checks import Finding, Level
from oncekey.stores.postgres.layouts import PARTITIONED, move
from oncekey.stores.postgres.store import open_url
from oncekey.testing.contract import (
    BatchContract,
    RequestContract,
    StoreContract,
    Subject,
)
from oncekey.testing.contract.subject import FACES
from tests.stores import elapse
from tests.stores.postgres.kit import TABLES, ignore_progress, migrated_database

ODD = {
    # How SQL is read.
    "backslash_quote": "off",
    "escape_string_warning": "off",
    "transform_null_equals": "on",
    "plpgsql.variable_conflict": "use_variable",
    "plpgsql.extra_errors": "all",
    # How values are written and read.
    "array_nulls": "off",
    "bytea_output": "escape",
    "client_encoding": "LATIN1",
    "datestyle": "SQL, YMD",
    "extra_float_digits": "-15",
    "intervalstyle": "sql_standard",
    "lc_messages": "C",
    "quote_all_identifiers": "on",
    "timezone": "Pacific/Apia",
    # How it is carried out.
    "constraint_exclusion": "off",
    "default_transaction_deferrable": "on",
    "enable_indexscan": "off",
    "from_collapse_limit": "1",
    "jit": "on",
    "join_collapse_limit": "1",
    "plan_cache_mode": "force_custom_plan",
    "row_security": "off",
    "session_replication_role": "replica",
}
"""Of all that a role or a database can have set for it, whatever could matter."""
OLD = {"standard_conforming_strings": "off"}
"""As applications from before PostgreSQL 9.1 need it."""


@contextlib.contextmanager
def _with(server: str, settings: dict[str, str]) -> Iterator[str]:
    """The URL of a database with these settings."""
    with migrated_database(server) as url, psycopg.connect(url, autocommit=True) as db:
        for setting, value in settings.items():
            name = urlsplit(url).path[1:]
            db.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'".encode())
        yield url


@pytest.fixture(scope="module")
def odd_url(postgres_url: str) -> Iterator[str]:
    with _with(postgres_url, ODD | OLD) as url:
        yield url


@pytest.fixture(scope="module")
def pooled_url(odd_url: str, pgbouncer_url: str) -> str:
    """The same, by way of a pooler, to which no settings can be sent."""
    return urlsplit(pgbouncer_url)._replace(path=urlsplit(odd_url).path).geturl()


@pytest.fixture(params=["direct", "pooled"])
def subject(request: pytest.FixtureRequest, odd_url: str, pooled_url: str) -> Subject:
    with psycopg.connect(odd_url, autocommit=True) as db:
        for table in TABLES:
            db.execute(f"DELETE FROM {table}".encode())
    url = odd_url if request.param == "direct" else f"{pooled_url}"
    pooler = "" if request.param == "direct" else "&pgbouncer=true"
    store = open_url(f"{url}?allow=unsafe-durability{pooler}")
    return Subject(store, elapse=partial(elapse.postgres, odd_url))


@pytest.mark.long
class TestOdd(StoreContract):
    """All of it."""


@pytest.mark.slow
class TestOddBatches(BatchContract, RequestContract):
    """The part in which values travel in arrays."""


# ---------------------------------------------------------------------------- what can be seen


def _settings(url: str) -> Finding:
    with contextlib.closing(open_url(url).connect()) as connection:
        examination = run(open_url(url).examine(), connection.ask)
    [found] = [each for each in examination.findings if each.what == "settings"]
    return found


def test_doctor_names_the_settings_that_a_connection_of_ours_has(odd_url: str) -> None:
    found = _settings(odd_url)
    assert found.level is Level.FINE
    assert "standard_conforming_strings = on, array_nulls = on" in found.seen


def test_doctor_names_what_a_pooler_leaves_as_the_role_has_it(pooled_url: str) -> None:
    found = _settings(f"{pooled_url}?pgbouncer=true")
    assert found.level is Level.ADVICE
    assert found.seen == (
        "standard_conforming_strings = off, array_nulls = off, quote_all_identifiers = on, "
        "datestyle = SQL, YMD"
    )
    assert "SET standard_conforming_strings = 'on'" in found.do


# ------------------------------------------------------------------------------------ by the day


@pytest.mark.slow
@pytest.mark.parametrize("way", ["direct", "pooled"])
def test_days_are_made_and_dropped(postgres_url: str, pgbouncer_url: str, way: str) -> None:
    """By a function, which runs under the settings of whoever sweeps."""
    with _with(postgres_url, ODD | OLD) as url, psycopg.connect(url, autocommit=True) as db:
        direct = open_url(f"{url}?allow=unsafe-durability")
        move(direct, PARTITIONED, ignore_progress)
        parts = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'oncekey_answers'::regclass"
        [made] = db.execute(parts).fetchone() or ()
        assert made == 4  # three days, and the others
        db.execute(
            "CREATE TABLE oncekey_answers_20200101 PARTITION OF oncekey_answers "
            "FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')"
        )
        pooled = urlsplit(pgbouncer_url)._replace(path=urlsplit(url).path).geturl()
        through = open_url(f"{pooled}?allow=unsafe-durability&pgbouncer=true")
        store = direct if way == "direct" else through
        with contextlib.closing(FACES["sync"](store)) as face:
            assert face.ask(Sweep(10)) == 0
        assert db.execute(parts).fetchone() == (made,)


# --------------------------------------------------------------- in a transaction of the caller's


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_a_callers_session_may_have_any_of_them(odd_url: str, driver: str) -> None:
    """And another time zone than ours, as Django sets one: it is the same database."""
    elsewhere = "SET timezone = 'Asia/Tokyo'"
    outbox = Outbox(f"{odd_url}?allow=unsafe-durability")
    payload = b"\\x00 NULL \xff"

    async def put() -> None:
        if driver == "psycopg":
            with psycopg.connect(odd_url) as connection:
                connection.execute(elsewhere)
                outbox.put_sync(connection, "orders", payload, key="NULL")
            return
        awaited = await asyncpg.connect(odd_url)
        await awaited.execute(elsewhere)
        async with awaited.transaction():
            await outbox.put(awaited, "orders", payload, key="NULL")
        await awaited.close()

    asyncio.run(put())
    with psycopg.connect(odd_url) as db:
        rows = db.execute("DELETE FROM oncekey_outbox RETURNING key, payload").fetchall()
    assert rows == [("NULL", payload)]


def test_a_callers_session_that_gives_texts_as_bytes_is_refused_by_name(postgres_url: str) -> None:
    """As on a database in SQL_ASCII, unless the caller says otherwise."""
    with migrated_database(postgres_url) as url:
        outbox = Outbox(f"{url}?allow=unsafe-durability")
        with psycopg.connect(url, client_encoding="sql_ascii") as connection:
            with pytest.raises(Misuse, match="client_encoding=utf8"):
                outbox.put_sync(connection, "orders", b"")
            connection.rollback()
