"""Joining a caller's transaction in MySQL or MariaDB: what its snapshot may not know yet."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import asyncmy
import pymysql
import pytest

from oncekey._core.record import Record, State, Step
from oncekey._core.verbs import AppendStep, Done, Refused, Steps
from oncekey.stores import transactions
from oncekey.stores.mysql import transactions as mysql_transactions
from oncekey.stores.mysql.statements import Question
from oncekey.stores.mysql.transactions import CallersServer, ajoin, join
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import SyncFace
from tests.servers.mariadb import mysql_connection
from tests.stores.joining import by_asyncmy

SNAPSHOT = ("SET SESSION innodb_snapshot_isolation = ON", "SELECT COUNT(*) FROM oncekey_claims")
"""As MariaDB has it since 11.6; and a transaction that has begun to look."""


@pytest.fixture
def case(mariadb: Subject) -> Iterator[Case]:
    with closing(SyncFace(mariadb.store)) as face:
        yield Case(mariadb, face)


@pytest.mark.slow
def test_p6_a_renewal_beside_the_callers_transaction_does_not_undo_it(
    case: Case, mariadb_url: str
) -> None:
    record = case.begin()
    step = AppendStep(record.id, record.fence, record.token, Step("charge", b"d", b"r"))
    with mysql_connection(mariadb_url, autocommit=False) as db:
        _look(db)
        case.done(case.renew(record))
        for verb in (step, case.complete(record)):
            assert transactions.perform(case.subject.store, db, [verb]) == [Done(record.fence)]
        db.commit()
    assert case.find(record.id).state is State.COMPLETED
    assert case.ask(Steps(record.id)) == [step.step]


@pytest.mark.slow
async def test_p6_nor_one_of_asyncmy(case: Case, mariadb_url: str) -> None:
    record = case.begin()
    async with by_asyncmy(mariadb_url) as joinable:
        connection: asyncmy.Connection = joinable.connection
        async with connection.cursor() as cursor:
            for statement in SNAPSHOT:
                await cursor.execute(statement)
        case.done(case.renew(record))
        verbs = [case.complete(record)]
        assert await transactions.aperform(case.subject.store, connection, verbs) == [
            Done(record.fence)
        ]
        await connection.commit()
    assert case.find(record.id).state is State.COMPLETED


@pytest.mark.slow
def test_p2_a_take_over_beside_the_callers_transaction_refuses_it(
    case: Case, mariadb_url: str
) -> None:
    record = case.begin()
    with mysql_connection(mariadb_url, autocommit=False) as db:
        _look(db)
        case.lapse()
        taken = case.done(case.take(case.find(record.id)))
        [refused] = transactions.perform(case.subject.store, db, [case.complete(record)])
        assert isinstance(refused, Refused)
        assert refused.record is not None
        assert refused.record.token == taken.token
        db.rollback()


@pytest.mark.slow
def test_p11_a_step_in_an_open_transaction_holds_up_no_step_of_another(
    case: Case, mariadb_url: str
) -> None:
    """Neither in another caller's transaction nor beside it, be the table ever so empty."""
    store, (mine, theirs, others) = case.subject.store, (case.begin() for _ in range(3))

    def step(record: Record, name: str) -> AppendStep:
        return AppendStep(record.id, record.fence, record.token, Step(name, b"d", b"r"))

    with (
        mysql_connection(mariadb_url, autocommit=False) as one,
        mysql_connection(mariadb_url, autocommit=False) as two,
    ):
        for db in (one, two):
            db.cursor().execute("SET SESSION innodb_lock_wait_timeout = 5")
        for name in ("first", "again"):
            for db, record in ((one, mine), (two, theirs)):
                assert transactions.perform(store, db, [step(record, name)]) == [Done(record.fence)]
            assert case.ask(step(others, name)) == Done(others.fence)
        one.commit()
        two.commit()
    for record in (mine, theirs, others):
        assert [kept.name for kept in case.ask(Steps(record.id))] == ["first", "again"]


@pytest.mark.slow
def test_the_callers_own_statements_are_judged_as_ever(case: Case, mariadb_url: str) -> None:
    record = case.begin()
    with mysql_connection(mariadb_url, autocommit=False) as db:
        _look(db)
        case.done(case.renew(record))
        transactions.perform(case.subject.store, db, [case.renew(record)])
        db.rollback()
        _look(db)
        case.done(case.renew(record))
        with db.cursor() as cursor, pytest.raises(pymysql.MySQLError, match="has changed since"):
            cursor.execute("UPDATE oncekey_claims SET beat = beat + 1")


def _look(db: Any) -> None:
    with db.cursor() as cursor:
        for statement in SNAPSHOT:
            cursor.execute(statement)


@pytest.mark.parametrize(
    ("version", "knows"),
    [
        ("8.0.36", False),
        ("9.1.0-commercial", False),
        ("5.5.5-10.6.17-MariaDB", False),
        ("5.5.5-10.6.18-MariaDB-log", True),
        ("10.9.8-MariaDB", False),
        ("5.5.5-10.11.7-MariaDB", False),
        ("5.5.5-10.11.19-MariaDB-0+deb12u1", True),
        ("11.3.2-MariaDB", False),
        ("11.8.2-MariaDB", True),
        ("12.1.0-MariaDB", True),
    ],
)
def test_only_servers_that_have_the_setting_are_told(version: str, knows: bool) -> None:
    [statement] = CallersServer(version).statements(Question(("SELECT 1",)))
    assert ("innodb_snapshot_isolation" in statement) is knows


IMPATIENT = Question(
    ("SAVEPOINT here", "INSERT INTO oncekey_held (id) VALUES (x'00')"), at_once=True
)


def test_mariadb_is_told_with_the_statement_to_wait_for_nobody() -> None:
    server = CallersServer("10.6.4-MariaDB")
    savepoint, insert = server.statements(IMPATIENT)
    assert savepoint == "SAVEPOINT here"
    assert insert.startswith("SET STATEMENT innodb_lock_wait_timeout = 0 FOR INSERT")
    assert server.around(IMPATIENT) == ([], [])


def test_mysql_is_told_before_and_gets_back_what_its_session_had() -> None:
    server = CallersServer("9.7.4")
    assert server.statements(IMPATIENT) == list(IMPATIENT.statements)
    [before], [after] = server.around(IMPATIENT)
    assert "@oncekey_wait_s = @@SESSION.innodb_lock_wait_timeout" in before
    assert after == "SET SESSION innodb_lock_wait_timeout = @oncekey_wait_s"
    assert server.around(Question(("SELECT 1",))) == ([], [])


SLOW = Question(("SELECT SLEEP(20)",), at_once=True)


@pytest.mark.slow
async def test_who_is_cancelled_in_a_hurry_hears_that_and_nothing_else(
    mariadb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver closes such a connection: it has no settings to get back."""
    monkeypatch.setattr(mysql_transactions, "CallersServer", lambda version: CallersServer("9.7.4"))
    async with by_asyncmy(mariadb_url) as joinable:
        ask = ajoin(None, joinable.connection)
        assert ask is not None
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(SLOW), 0.2)


@pytest.mark.slow
def test_who_loses_its_connection_in_a_hurry_hears_why(
    mariadb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_transactions, "CallersServer", lambda version: CallersServer("9.7.4"))
    with mysql_connection(mariadb_url) as other, mysql_connection(mariadb_url) as db:
        db.begin()
        ask = join(None, db)
        assert ask is not None
        kill = threading.Timer(0.2, other.cursor().execute, [f"KILL {db.thread_id()}"])
        kill.start()
        with pytest.raises(pymysql.MySQLError, match=r"Lost connection|was killed"):
            ask(SLOW)
        kill.join()
