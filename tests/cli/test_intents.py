"""`oncekey intents`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from oncekey._core.key import short_hash
from oncekey._system.clock import SystemClock
from oncekey.client import Intent, Journal, SqlJournal
from oncekey.client._intent import LIST_MAX
from tests.cli.conftest import HourAgo, Oncekey
from tests.servers.mariadb import mysql_connection


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "intents.db")


@pytest.fixture
def journal(path: str) -> Iterator[Journal]:
    with Journal(path) as opened:
        yield opened


def test_what_is_not_settled_is_listed(oncekey: Oncekey, path: str, journal: Journal) -> None:
    key = journal.key("order-42/pay", origin="https://api.test:443", note="resend")
    journal.key("order-43/pay")
    journal.settle("order-43/pay")
    journal.flush()

    ran = oncekey("intents", path)

    assert ran.code == 0
    header, line = ran.out.splitlines()
    assert header.split() == ["INTENT", "KEY", "HASH", "BEGUN", "MAY", "BE", "SENT", "TO"]
    assert short_hash(key) in line
    assert line.endswith("https://api.test:443")
    assert key not in ran.out
    assert key in oncekey("intents", "--show-keys", path).out

    [told] = oncekey("intents", "--json", path).json["intents"]
    assert (told["name"], told["note"], told["may_be_sent"]) == ("order-42/pay", "resend", True)
    assert (told["key_hash"], "key" in told) == (short_hash(key), False)


def test_what_is_too_old_to_be_sent_is_marked(oncekey: Oncekey, path: str) -> None:
    with Journal(path, clock=HourAgo()) as journal:
        journal.key("order-42/pay", origin="https://api.test:443")
        journal.learn("https://api.test:443", 600)

    assert "no: too old" in oncekey("intents", path).out
    assert not oncekey("intents", "--json", path).json["intents"][0]["may_be_sent"]


def test_an_operator_settles_what_was_found_out(
    oncekey: Oncekey, path: str, journal: Journal
) -> None:
    key = journal.key("order-42/pay")

    ran = oncekey("intents", path, "--settle", "order-42/pay")

    assert (ran.code, "new key" in ran.out) == (0, True)
    assert journal.key("order-42/pay") != key
    assert oncekey("intents", path, "--settle", "order-42/pay", "--json").json == {
        "settled": "order-42/pay"
    }
    again = oncekey("intents", path, "--settle", "order-42/pay")
    assert (again.code, again.err) == (1, "no unsettled intent is called 'order-42/pay'\n")


def test_an_intent_is_settled_however_many_are_older(
    oncekey: Oncekey, path: str, journal: Journal
) -> None:
    journal.key("the newest")
    older = [(f"old-{number}", "key", 0.0, "", "") for number in range(LIST_MAX)]
    with closing(sqlite3.connect(path)) as db, db:
        db.executemany("INSERT INTO oncekey_intents VALUES (?, ?, ?, ?, ?)", older)

    assert oncekey("intents", "--settle", "the newest", path).code == 0
    assert journal.find("the newest") is None


def test_nothing_to_do(oncekey: Oncekey, path: str, journal: Journal) -> None:
    journal.unsettled()

    ran = oncekey("intents", path)

    assert (ran.code, ran.out, ran.err) == (1, "", "every intent is settled\n")


def test_whose_move_it_is_stands_below_the_list(
    oncekey: Oncekey, path: str, journal: Journal
) -> None:
    journal.key("order-42/pay")
    with Journal(path, clock=HourAgo(), retention_s=600.0) as old:
        old.key("order-7/pay", origin="https://slow.test")
        old.learn("https://slow.test", 600.0)

    ran = oncekey("intents", path)

    assert "1 can be sent again, with the same key" in ran.err
    assert "1 cannot: the server has forgotten the key" in ran.err


# ------------------------------------------------------------------------------------------ resume

resumed: list[Intent] = []


def resume(intent: Intent) -> None:
    resumed.append(intent)
    if intent.name == "order-43/pay":
        raise ConnectionError("no route\nto host")


async def resume_async(intent: Intent) -> None:
    resumed.append(intent)


def test_what_may_be_sent_is_resumed_and_settled(
    oncekey: Oncekey, path: str, journal: Journal
) -> None:
    with Journal(path, clock=HourAgo()) as old:
        old.key("order-7/pay", origin="https://slow.test")
        old.learn("https://slow.test", 600.0)
    keys = [journal.key(f"order-{number}/pay", note=str(number)) for number in (42, 43)]
    resumed.clear()

    ran = oncekey("intents", path, "--resume", f"{__name__}:resume")

    assert ran.code == 2
    assert ran.out.splitlines() == [
        "order-42/pay: resumed and settled",
        "order-43/pay: failed, stays in the journal: ConnectionError: no route to host",
    ]
    assert "1 too old to send" in ran.err
    assert [(intent.key, intent.note) for intent in resumed] == [(keys[0], "42"), (keys[1], "43")]
    assert [intent.name for intent in journal.unsettled()] == ["order-7/pay", "order-43/pay"]

    again = oncekey("intents", path, "--json", "--resume", f"{__name__}:resume_async")
    assert (again.code, again.json) == (0, {"resumed": 1, "failed": 0, "too_old": 1})
    assert oncekey("intents", path, "--resume", f"{__name__}:resume").code == 1


@pytest.mark.parametrize("kind", ["file", "SQL"])
def test_what_may_be_sent_is_resumed_however_much_is_too_old(
    kind: str, oncekey: Oncekey, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncekey.cli.intents.LIST_MAX", 2)
    clock, names = HourAgo(), [f"old-{number}" for number in range(4)]
    if kind == "file":
        with Journal(path, clock=clock) as journal:
            for name in names:
                journal.key(name, origin="https://slow.test")
            journal.learn("https://slow.test", 600.0)
        with Journal(path) as journal:
            journal.key("new")
    else:
        with closing(sqlite3.connect(path)) as db, db:
            journals = SqlJournal(clock=clock), SqlJournal()
            journals[0].create(within=db)
            for name in names:
                journals[0].key(name, within=db, origin="https://slow.test")
            journals[0].learn("https://slow.test", 600.0, within=db)
            journals[1].key("new", within=db)
    resumed.clear()

    ran = oncekey("intents", path, "--json", "--resume", f"{__name__}:resume")

    assert ran.json == {"resumed": 1, "failed": 0, "too_old": 4}
    assert [intent.name for intent in resumed] == ["new"]


def test_an_intent_cannot_speak_to_the_terminal(
    oncekey: Oncekey, path: str, journal: Journal
) -> None:
    journal.key("order\x1b[31m\n-1/pay")

    assert "\x1b" not in oncekey("intents", path).out
    ran = oncekey("intents", path, "--resume", f"{__name__}:resume_async")
    assert ran.out == "order\\x1b[31m\\n-1/pay: resumed and settled\n"


def test_what_grows_too_old_or_is_begun_anew_meanwhile_is_left_alone(
    oncekey: Oncekey, path: str, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SystemClock.wall()
    for number in (42, 43):
        journal.key(f"order-{number}/pay")

    def slowly(intent: Intent) -> None:
        journal.settle(intent.name)  # the application was at it too
        journal.key(intent.name)
        monkeypatch.setattr(SystemClock, "wall", lambda: now + 86_400.0)

    monkeypatch.setattr(f"{__name__}.resume", slowly)
    ran = oncekey("intents", path, "--resume", f"{__name__}:resume")

    assert ran.out.splitlines() == ["order-42/pay: resumed and settled"]
    assert "1 too old to send" in ran.err
    assert [intent.name for intent in journal.unsettled()] == ["order-43/pay", "order-42/pay"]


def test_a_function_that_is_not_there_is_said(
    oncekey: Oncekey, path: str, journal: Journal
) -> None:
    journal.key("order-42/pay")

    ran = oncekey("intents", path, "--resume", "no_such_module:f")

    assert (ran.code, "no module no_such_module" in ran.err) == (2, True)


# --------------------------------------------------------------------------------------- databases


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgres", "mariadb"])
def test_a_journal_in_a_database_of_the_application_s(
    oncekey: Oncekey, path: str, database: str, request: pytest.FixtureRequest
) -> None:
    where = path if database == "sqlite" else request.getfixturevalue(f"{database}_url")
    name = f"{database}-{short_hash(path)}/pay"
    with closing(_connect(database, where)) as within:
        SqlJournal().create(within=within)
        SqlJournal().key(name, within=within, note="resend")
        within.commit()

        assert name in oncekey("intents", where).out
        assert oncekey("intents", where, "--settle", name).code == 0
        within.rollback()
        assert name not in {each.name for each in SqlJournal().unsettled(within=within)}


def _connect(database: str, where: str) -> Any:
    if database == "sqlite":
        return sqlite3.connect(where)
    if database == "postgres":
        return psycopg.connect(where)
    connection = mysql_connection(where)
    connection.autocommit(False)
    return connection


def test_a_database_that_does_not_answer_is_said_without_its_password(oncekey: Oncekey) -> None:
    for url in ("postgresql://u:secret@127.0.0.1:1/x", "mysql://u:secret@127.0.0.1:1/x"):
        ran = oncekey("intents", url)

        assert ran.code == 2
        assert ":1" in ran.err
        assert "secret" not in ran.err


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:the secret@127.0.0.1:1/x",
        "postgresql://u:secret%ZZ@127.0.0.1:1/x",
        "mysql://u:secret/2@127.0.0.1:1/x",
        "mysql://u:secret@[::1/x",
    ],
)
def test_p12_an_address_that_cannot_be_read_is_one_line_without_its_password(
    oncekey: Oncekey, url: str
) -> None:
    """It is the password that mostly makes it so."""
    ran = oncekey("intents", url)

    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "secret" not in ran.err


def test_a_database_in_a_file_that_cannot_be_used_is_one_line(oncekey: Oncekey, path: str) -> None:
    with closing(sqlite3.connect(path)) as within:
        SqlJournal().create(within=within)
        within.execute("DROP TABLE oncekey_journal_servers")

    ran = oncekey("intents", path)

    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "the journal's tables are missing: create them once with journal.create(" in ran.err


def test_an_address_of_something_else_is_refused(oncekey: Oncekey, tmp_path: Path) -> None:
    assert "mysql://" in oncekey("intents", "redis://localhost/0").err
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE t (a)")
    ran = oncekey("intents", str(tmp_path / "other.db"))
    assert (ran.code, "holds no intents" in ran.err) == (2, True)


def test_a_file_that_is_not_there_is_not_made(oncekey: Oncekey, path: str) -> None:
    ran = oncekey("intents", path)

    assert (ran.code, "there is no file" in ran.err) == (2, True)
    assert not Path(path).exists()
