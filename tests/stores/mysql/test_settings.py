"""MariaDB whose settings change how SQL is read, and how much of an answer is given."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import asyncmy
import pymysql
import pytest

from oncekey._core.op import run
from oncekey._core.record import Step
from oncekey._core.verbs import AppendStep, Done, Find, Refused, Steps, Verb
from oncekey.errors import StoreUnfit
from oncekey.messaging import Outbox
from oncekey.stores import transactions
from oncekey.stores.base import Store
from oncekey.stores.checks import Level
from oncekey.stores.mysql.store import MySQLStore, open_url
from oncekey.testing.contract import BatchContract, Case, StepContract, StoreContract, Subject
from oncekey.testing.contract.subject import ANSWER, FACES
from tests.servers import MariaDB, start_mariadb
from tests.servers.mariadb import mysql_connection
from tests.servers.skipping import or_skip
from tests.stores import elapse
from tests.stores.mysql.kit import migrate
from tests.stores.postgres.kit import both_faces, start

pytestmark = pytest.mark.slow

ODD = {
    # How SQL is read, and values are written.
    "sql_mode": "ANSI,ORACLE,NO_BACKSLASH_ESCAPES,EMPTY_STRING_IS_NULL,SIMULTANEOUS_ASSIGNMENT,"
    "HIGH_NOT_PRECEDENCE,IGNORE_SPACE,NO_UNSIGNED_SUBTRACTION,PAD_CHAR_TO_FULL_LENGTH,"
    "TIME_ROUND_FRACTIONAL,NO_ZERO_DATE",
    "character_set_server": "utf16",
    "collation_server": "utf16_turkish_ci",
    "time_zone": "+13:00",
    "div_precision_increment": 0,
    "sql_auto_is_null": 1,
    # How much is given, and how it is carried out.
    "group_concat_max_len": 4,
    "sql_select_limit": 1,
    "max_join_size": 1,
    "sql_safe_updates": 1,
    "max_sort_length": 8,
    "tx_isolation": "SERIALIZABLE",
    "completion_type": "CHAIN",
    "autocommit": 0,
    "unique_checks": 0,
    "lock_wait_timeout": 1,
}
"""Of all that a server can have set for every session, what could matter."""


@pytest.fixture(scope="module")
def odd() -> Iterator[MariaDB]:
    with or_skip(), start_mariadb() as server:
        with mysql_connection(server.url) as admin, admin.cursor() as cursor:
            for name, value in ODD.items():
                cursor.execute(f"SET GLOBAL {name} = %s", (value,))
        yield server


@pytest.fixture
def subject(odd: MariaDB) -> Subject:
    store = open_url(f"{odd.url}?allow=unsafe-durability")
    migrate(store)
    with mysql_connection(odd.url) as db, db.cursor() as cursor:
        for table in ("claims", "steps"):
            cursor.execute(f"DELETE FROM oncekey_{table}")
    return Subject(store, elapse=partial(elapse.mysql, odd.url))


@pytest.mark.long
class TestOdd(StoreContract):
    """All of it."""


class TestOddBatches(BatchContract, StepContract):
    """The part in which much is asked at once."""


# ---------------------------------------------------------------------------- what can be seen


def test_doctor_names_the_settings_that_a_session_of_ours_has(subject: Subject) -> None:
    store = subject.store
    assert isinstance(store, MySQLStore)
    with contextlib.closing(store.connect()) as connection:
        findings = run(store.examine(), connection.ask).findings
    [found] = [each for each in findings if each.what == "settings"]
    assert found.level is Level.FINE
    assert "sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'" in found.seen
    assert "sql_select_limit = 18446744073709551615" in found.seen


@both_faces
def test_p3_a_server_whose_statements_do_not_see_time_pass_is_refused(face: str) -> None:
    with or_skip(), start_mariadb(settings={"sysdate-is-now": "1"}) as server:
        store = open_url(f"{server.url}?allow=unsafe-durability")
        migrate(store)
        with pytest.raises(StoreUnfit, match="Take sysdate-is-now out of"):
            start(store, face)


# --------------------------------------------------------------- in a transaction of the caller's


BIG = "SET sql_big_selects = 1"
"""Else the server refuses what reads two rows, and says so."""


@contextlib.asynccontextmanager
async def session(odd: MariaDB, driver: str) -> AsyncIterator[Any]:
    """One with all of it, and a transaction that is committed."""
    address = urlsplit(odd.url)
    where = {"host": address.hostname, "port": address.port, "user": address.username}
    where["password"] = address.password
    if driver == "PyMySQL":
        given = {**where, "database": "oncekey", "ssl_disabled": True}
        blocking = cast(Any, pymysql.connect(**given))
        with blocking:
            blocking.query(BIG)
            blocking.query("START TRANSACTION")  # BEGIN is no word of Oracle's
            yield blocking
            blocking.commit()
        return
    connection: Any = await asyncmy.connect(**where, db="oncekey")
    await connection.query(BIG)
    await connection.query("START TRANSACTION")
    yield connection
    await connection.commit()
    connection.close()


def perform_in_session(odd: MariaDB, driver: str, store: Store, *verbs: Verb) -> list[Any]:
    async def ask() -> list[Any]:
        async with session(odd, driver) as connection:
            if driver == "PyMySQL":
                return transactions.perform(store, connection, verbs)
            return await transactions.aperform(store, connection, verbs)

    return asyncio.run(ask())


@pytest.mark.parametrize("driver", ["PyMySQL", "asyncmy"])
def test_a_callers_session_may_have_any_of_them(
    odd: MariaDB, subject: Subject, driver: str
) -> None:
    with contextlib.closing(FACES["sync"](subject.store)) as face:
        case = Case(subject, face)
        record = case.begin(case.claim(tenant="", key="'"))
        steps = [Step(name, b"", b"\\'") for name in ("one", "two", "three")]
        ours = (record.id, record.fence, record.token)
        appended = [AppendStep(*ours, step) for step in steps]
        verbs: list[Verb] = [*appended, Steps(record.id), Find(record.id), case.complete(record)]
        *done, listed, found, completed = perform_in_session(odd, driver, subject.store, *verbs)
        assert done == [Done(record.fence)] * 3
        assert listed == steps
        case.same(found, record)
        assert completed == Done(record.fence)
        assert case.find(record.id).answer == ANSWER
        [refused] = perform_in_session(odd, driver, subject.store, case.renew(record))
        assert isinstance(refused, Refused)
        assert refused.record is not None
        assert refused.record.answer == ANSWER


@pytest.mark.parametrize("driver", ["PyMySQL", "asyncmy"])
def test_and_puts_messages(odd: MariaDB, subject: Subject, driver: str) -> None:
    outbox = Outbox(subject.store)
    payload = b"\\' \x00\xff"

    async def put() -> None:
        async with session(odd, driver) as connection:
            if driver == "PyMySQL":
                outbox.put_sync(connection, "orders", payload, key="'")
            else:
                await outbox.put(connection, "orders", payload, key="'")

    asyncio.run(put())
    with mysql_connection(odd.url) as db, db.cursor() as cursor:
        cursor.execute("SELECT `key`, payload FROM oncekey_outbox")
        rows = cursor.fetchall()
        cursor.execute("DELETE FROM oncekey_outbox")
    assert rows == ((b"'", payload),)
