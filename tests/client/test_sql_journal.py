"""A journal in the caller's own database and transactions, on every kind of connection."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from oncekey._core.http_dates import http_date
from oncekey._core.profiles import PROFILES
from oncekey._system import probes
from oncekey._system.clock import FakeClock
from oncekey.client import Client, Retries, SqlJournal
from oncekey.client import _sql_journal as sql_journal
from oncekey.client._intent import NOTE_CHARS_MAX
from oncekey.client._retention import RETENTION_S
from oncekey.client._sql import as_sql_connection
from oncekey.errors import Misuse, Unknown
from tests.client.scripted_server import ScriptedServer, scripted_server
from tests.client.sql_connections import CONNECTIONS, Open, drivers_own, way_of

pytestmark = pytest.mark.slow
T = TypeVar("T")
PAY = "order-42/pay"
API = "https://api.test"
BESIDE = "https://beside.test"
NAMES = (PAY, "a", "b", "c", "Order", "order", "order ", "öl ☂")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000.0)


@pytest.fixture
def journal(clock: FakeClock) -> SqlJournal:
    return SqlJournal(clock=clock)


def _open(way: str, request: pytest.FixtureRequest, path: Path) -> Open:
    begin = way_of(way, request, path)
    with begin() as within:
        SqlJournal().create(within=within)
    with begin() as within:
        SqlJournal().create(within=within)  # again, as every start of a service does
        SqlJournal().settle(*NAMES, within=within)
    return begin


@pytest.fixture(params=CONNECTIONS)
def begin(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return _open(request.param, request, tmp_path / "shop.db")


@pytest.fixture(params=["sqlite sqlite3", "postgres psycopg", "mariadb pymysql"])
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """One for each database, where it is the database that matters."""
    return _open(request.param, request, tmp_path / "shop.db")


@pytest.fixture(params=["postgres psycopg", "mariadb pymysql"])
def begin_beside(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Databases with more than one writer at a time."""
    return _open(request.param, request, tmp_path)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as served:
        yield served


def _rolled_back(begin: Open, work: Callable[[Any], T]) -> T:
    """What was done in a transaction that failed in the end."""
    done: list[T] = []
    with contextlib.suppress(ZeroDivisionError), begin() as within:
        done.append(work(within))
        raise ZeroDivisionError
    return done[0]


def test_an_intent_exists_if_and_only_if_its_transaction_commits(
    journal: SqlJournal, begin: Open
) -> None:
    lost = _rolled_back(begin, lambda within: journal.key(PAY, within=within))
    with begin() as within:
        assert journal.unsettled(within=within) == []
        key = journal.key(PAY, within=within, origin=f"{API}/charges", note="100 € ☂")
        assert key != lost
    with begin() as within:
        assert journal.key(PAY, within=within) == key
        [found] = journal.unsettled(within=within)
        assert (found.name, found.key, found.note) == (PAY, key, "100 € ☂")
        assert (found.origin, found.begun) == (f"{API}:443", 1_700_000_000.0)

    _rolled_back(begin, lambda within: journal.settle(PAY, within=within))
    with begin() as within:
        assert journal.key(PAY, within=within) == key, "what was not committed is not settled"
        journal.settle(PAY, within=within)
    with begin() as within:
        assert journal.key(PAY, within=within) != key


def test_two_that_begin_one_intent_at_once_get_one_key(journal: SqlJournal, driver: Open) -> None:
    """The second looked before the first had committed, and writes after."""
    looked, keys = threading.Event(), []

    def second() -> None:
        with driver() as within:
            keys.append(journal.key(PAY, within=within))

    with driver() as within:
        keys.append(journal.key(PAY, within=within))
        probes.arm("before_intent", looked.set)
        thread = threading.Thread(target=second)
        thread.start()
        assert looked.wait(30)
    probes.disarm()
    thread.join(30)

    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_intents_at_one_server_do_not_wait_for_each_other(
    journal: SqlJournal, begin_beside: Open
) -> None:
    """What is known of the server is read by both, and locked by none."""
    with begin_beside() as within:
        journal.learn(BESIDE, RETENTION_S, within=within)
    done = threading.Event()

    def second() -> None:
        with begin_beside() as within:
            journal.key("b", within=within, origin=BESIDE, retention_s=RETENTION_S)
        done.set()

    with begin_beside() as within:
        journal.key("a", within=within, origin=BESIDE, retention_s=RETENTION_S)
        thread = threading.Thread(target=second, daemon=True)
        thread.start()
        assert done.wait(30)
    thread.join(30)


def test_a_late_settling_does_not_touch_what_was_begun_anew(
    journal: SqlJournal, driver: Open
) -> None:
    with driver() as within:
        key = journal.key(PAY, within=within)
    with driver() as within:
        journal.settle(PAY, within=within)  # by somebody else who worked on it
        anew = journal.key(PAY, within=within)
    with driver() as within:
        journal.settle(PAY, within=within, key=key)
    with driver() as within:
        assert [each.key for each in journal.unsettled(within=within)] == [anew]
        journal.settle(PAY, within=within, key=anew)
        assert journal.unsettled(within=within) == []
        with pytest.raises(Misuse, match="one key belongs to one intent"):
            journal.settle("a", "b", within=within, key=key)


def test_names_that_a_database_may_take_for_the_same_are_different(
    journal: SqlJournal, driver: Open
) -> None:
    with driver() as within:
        keys = [journal.key(name, within=within) for name in NAMES]

    assert len(set(keys)) == len(NAMES)


def test_all_are_found_one_after_the_other(journal: SqlJournal, driver: Open) -> None:
    """Those that began at the same moment, and have names that some databases take for one."""
    with driver() as within:
        keys = {journal.key(name, within=within) for name in NAMES}
        page = journal.unsettled(within=within, limit=1)
        found = []
        while page:
            found += page
            page = journal.unsettled(within=within, limit=1, after=page[-1])

    assert len(found) == len(NAMES)
    assert {each.key for each in found} == keys


def test_the_oldest_come_first_and_only_so_many(
    journal: SqlJournal, driver: Open, clock: FakeClock
) -> None:
    with driver() as within:
        for name in "bca":
            journal.key(name, within=within, note="☂" * NOTE_CHARS_MAX)
            clock.advance(1.0)
        journal.settle("c", "never begun", within=within)

        assert [each.name for each in journal.unsettled(within=within)] == ["b", "a"]
        [oldest] = journal.unsettled(within=within, limit=1)

    assert (oldest.name, oldest.note) == ("b", "☂" * NOTE_CHARS_MAX)


# ------------------------------------------------------------------------------------- growing old


def test_a_key_that_the_server_has_forgotten_is_refused(
    journal: SqlJournal, driver: Open, clock: FakeClock
) -> None:
    with driver() as within:
        journal.key(PAY, within=within)
        clock.advance(RETENTION_S - 121)
        journal.key(PAY, within=within)
        clock.advance(1)
        with pytest.raises(Unknown, match=r"over 24.0 hours ago.*could do it twice"):
            journal.key(PAY, within=within)


@pytest.mark.parametrize("profile", PROFILES)
def test_what_is_known_of_a_provider_counts_until_it_says_otherwise(
    journal: SqlJournal, clock: FakeClock, tmp_path: Path, profile: str
) -> None:
    begin = drivers_own(lambda: sqlite3.connect(tmp_path / "shop.db"))
    with begin() as within:
        journal.create(within=within)
        known = PROFILES[profile].relied_s
        key = journal.key(PAY, within=within, origin=API, retention_s=known)
        clock.advance(known * 0.89)
        if known - known * 0.89 > 120:
            assert journal.key(PAY, within=within) == key
        clock.advance(known * 0.11)
        with pytest.raises(Unknown, match="could do it twice"):
            journal.key(PAY, within=within)
        journal.learn(API, known * 10, within=within)
        assert journal.key(PAY, within=within) == key
        journal.key("later", within=within, origin=API, retention_s=known)
        clock.advance(known * 2)
        assert journal.key("later", within=within), "its own word is not forgotten"


def test_of_what_a_server_says_the_shortest_counts(
    journal: SqlJournal, driver: Open, clock: FakeClock
) -> None:
    with driver() as within:
        journal.key(PAY, within=within, origin=API, retention_s=RETENTION_S)
        for told_s in (600.0, RETENTION_S):
            journal.learn(API, told_s, within=within)
        [found] = journal.unsettled(within=within)
        within.cursor().execute("DELETE FROM oncekey_journal_servers")

    assert found.until == found.begun + 540


def test_one_s_own_setting_goes_before_what_is_known_of_a_provider(
    clock: FakeClock, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as within:
        journal = SqlJournal(clock=clock, retention_s=10_000.0)
        journal.create(within=within)
        key = journal.key(PAY, within=within, origin=API, retention_s=600.0)
        clock.advance(9_000)
        assert journal.key(PAY, within=within) == key


def test_who_lists_them_without_the_setting_counts_on_the_same(
    driver: Open, clock: FakeClock
) -> None:
    with driver() as within:
        SqlJournal(clock=clock, retention_s=600.0).key(PAY, within=within, origin="")
    with driver() as within:
        [found] = SqlJournal(clock=clock).unsettled(within=within)
        within.cursor().execute("DELETE FROM oncekey_journal_servers")

    assert found.until == found.begun + 540


def test_settling_with_an_answer_learns_what_its_server_says(
    journal: SqlJournal, driver: Open, clock: FakeClock, server: ScriptedServer
) -> None:
    expires = {"Idempotency-Expires": http_date(clock.wall() + 600).decode()}
    server.script = ["drop", (201, expires)]
    retries = Retries(backoff_s=0.001)
    with Client(base_url=server.url, clock=clock, retries=retries) as api:
        with driver() as within:
            key = journal.key("a", within=within, origin=server.url)
            journal.key("b", within=within, origin=server.url)
        answer = api.post("/charges", json={"amount": 1}, key=key)
        with driver() as within:
            journal.settle("a", within=within, answer=answer)
        with driver() as within:
            [left] = journal.unsettled(within=within)

    assert (left.name, left.until) == ("b", left.begun + 600 - 60)
    assert server.keys == [key, key]


# ---------------------------------------------------------------------------------------- misuse


def test_tables_that_are_missing_are_told_with_how_to_make_them(
    journal: SqlJournal, begin: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = sql_journal._FIND.replace("FROM oncekey_journal j", "FROM oncekey_nowhere j")
    monkeypatch.setattr(sql_journal, "_FIND", elsewhere)
    with (
        pytest.raises(Misuse, match=r"tables are missing: .* journal\.create\(within="),
        begin() as it,
    ):
        journal.key(PAY, within=it)


def test_any_other_error_is_the_drivers_own(journal: SqlJournal, driver: Open) -> None:
    with pytest.raises(Exception, match=r"(?i)syntax") as told, driver() as within:
        as_sql_connection(within).execute("SELECTED")
    assert not isinstance(told.value, Misuse)


def test_p12_no_error_of_sqlalchemy_shows_a_key(journal: SqlJournal, tmp_path: Path) -> None:
    """By itself it shows the parameters of what failed."""
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", connect_args={"timeout": 0})
    with engine.begin() as within:
        journal.create(within=within)
        key = journal.key(PAY, within=within)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OperationalError) as told, engine.begin() as within:
            journal.settle(PAY, within=within, key=key)
    engine.dispose()

    assert "database is locked" in str(told.value)
    assert key not in f"{told.value} {told.value!r}"


class Odd:
    """No connection at all."""


def test_what_is_no_connection_is_refused(journal: SqlJournal) -> None:
    with pytest.raises(Misuse, match=r"Odd: give a blocking connection of a DB-API driver"):
        journal.key(PAY, within=Odd())


def test_p12_a_url_in_place_of_a_connection_is_refused_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = "postgresql://shop:hunter2@db.internal/shop"
    for _ in ("with Django", "without"):
        with pytest.raises(Misuse, match="hand over the connection itself") as refused:
            SqlJournal().create(within=url)
        assert "hunter2" not in str(refused.value)
        monkeypatch.delitem(sys.modules, "django.db", raising=False)


async def test_async_connections_are_told_the_way(journal: SqlJournal, tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    async with engine.begin() as connection:
        with pytest.raises(Misuse, match="run_sync"):
            journal.key(PAY, within=connection)
        await connection.run_sync(lambda within: journal.create(within=within))
        key = await connection.run_sync(lambda within: journal.key(PAY, within=within))
    async with engine.begin() as connection:
        assert await connection.run_sync(lambda within: journal.key(PAY, within=within)) == key
    await engine.dispose()


@pytest.mark.parametrize(
    ("database", "driver"),
    [("postgres", "asyncpg"), ("postgres", "psycopg"), ("mariadb", "asyncmy")],
)
async def test_sessions_of_async_drivers(
    journal: SqlJournal, database: str, driver: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{database}_url")
    dialect = "postgresql" if database == "postgres" else "mysql"
    engine = create_async_engine(f"{dialect}+{driver}:{url.partition(':')[2]}")
    name = f"{driver}/{uuid.uuid4()}"
    keys = []
    for _ in range(2):
        async with AsyncSession(engine) as session, session.begin():
            await session.run_sync(lambda within: journal.create(within=within))
            begun = await session.run_sync(lambda within: journal.begin(name, within=within))
            keys.append(begun.key)
    assert len(set(keys)) == 1
    async with AsyncSession(engine) as session, session.begin():
        await session.run_sync(lambda within: journal.settle(name, within=within, key=keys[0]))
        assert await session.run_sync(lambda within: journal.find(name, within=within)) is None
        left = await session.run_sync(lambda within: journal.unsettled(within=within, after=begun))
        assert name not in {each.name for each in left}
    await engine.dispose()


@pytest.mark.parametrize(("name", "note"), [("", ""), ("n" * 513, ""), ("n", "x" * 65_537)])
def test_names_and_notes_are_bounded(journal: SqlJournal, name: str, note: str) -> None:
    with pytest.raises(Misuse, match="1 to 512 characters"):
        journal.key(name, note=note, within=None)


def test_a_schema_has_what_its_database_needs_by_any_of_its_names() -> None:
    assert SqlJournal.schema("mariadb") == SqlJournal.schema("mysql")
    assert "MEDIUMTEXT" in SqlJournal.schema("mariadb")[0]
    assert SqlJournal.schema("postgres") == SqlJournal.schema("postgresql")


@pytest.mark.parametrize("dialect", ["oracle", "", "PostgreSQL"])
def test_a_database_that_no_schema_is_known_for_is_answered_with_the_choice(dialect: str) -> None:
    with pytest.raises(Misuse, match="choose from postgresql, mysql, mariadb, sqlite"):
        SqlJournal.schema(dialect)
