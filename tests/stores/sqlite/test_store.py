"""The SQLite store: its URLs and refusals, what a batch costs, what remains of what is purged."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncekey._core import lifecycle
from oncekey._core.op import run
from oncekey._core.record import Answer, Record, State, Step
from oncekey._core.verbs import (
    AppendStep,
    Count,
    Done,
    Due,
    Find,
    Found,
    Insert,
    Inserted,
    Peek,
    Purge,
    Scan,
    Steps,
    Sweep,
    Verb,
)
from oncekey.errors import Misuse, StoreUnavailable, StoreUnfit
from oncekey.stores import sql
from oncekey.stores.batching import Gatherer
from oncekey.stores.sqlite import verbs as sqlite_verbs
from oncekey.stores.sqlite.connection import SqliteConnection
from oncekey.stores.sqlite.store import SqliteStore, open_url
from tests.stores import elapse
from tests.stores.sqlite.worker import HOUR_S, claim

ANSWER = Answer(201, ((b"content-type", b"text/plain"),), b"created")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture
def store(path: Path) -> SqliteStore:
    return SqliteStore(path)


@pytest.fixture
def connection(store: SqliteStore) -> Iterator[SqliteConnection]:
    connection = store.connect()
    run(store.prepare(), connection.ask)
    yield connection
    connection.close()


@pytest.fixture
def gatherer(store: SqliteStore) -> Iterator[Gatherer]:
    gatherer = Gatherer(store)
    yield gatherer
    gatherer.close()


def held_by(attempt: Any) -> lifecycle.Held:
    return lifecycle.Held(attempt.id, 1, attempt.token)


def complete(attempt: Any, answer: Answer = ANSWER, **more: Any) -> Verb:
    return lifecycle.complete(held_by(attempt), answer, retention_s=HOUR_S, **more)


def commits(path: Path) -> int:
    """How many commits the write-ahead log holds: frames that tell the size of the database."""
    log = Path(f"{path}-wal").read_bytes()
    salt, page = log[16:24], struct.unpack_from(">I", log, 8)[0]
    frames = range(32, len(log), 24 + page)
    return sum(log[at + 8 : at + 16] == salt and log[at + 4 : at + 8] != bytes(4) for at in frames)


# ------------------------------------------------------------------------ a batch is a commit


def test_a_batch_is_one_commit(
    path: Path, store: SqliteStore, connection: SqliteConnection
) -> None:
    first, second, *others = [claim(f"order-{number}") for number in range(40)]
    run(store.perform([Insert(first), Insert(second)]), connection.ask)
    before = commits(path)
    step = AppendStep(second.id, 1, second.token, Step("charge", b"d", b"ok"))
    verbs = [Insert(first), complete(first), step, Sweep(10), *map(Insert, others)]
    outcomes = run(store.perform(verbs), connection.ask)
    assert isinstance(outcomes[0], Found)
    assert outcomes[1:4] == [Done(1), Done(1), 0]
    assert outcomes[4:] == [Inserted(1)] * 38
    assert commits(path) == before + 1


@pytest.fixture
def written(path: Path) -> Iterator[Any]:
    """A function that tells all traces which a write would leave."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:

        def traces() -> Any:
            [version] = other.execute("PRAGMA data_version").fetchone()
            files = [path.read_bytes(), Path(f"{path}-wal").read_bytes()]
            return version, files

        yield traces


def test_replays_and_looks_write_nothing(
    store: SqliteStore, connection: SqliteConnection, written: Any
) -> None:
    attempts = [claim(f"order-{number}") for number in range(20)]
    run(store.perform([*map(Insert, attempts)]), connection.ask)
    run(store.perform([*map(complete, attempts)]), connection.ask)
    before = written()
    replays = [Insert(claim(f"order-{number}")) for number in range(20)]
    one = attempts[0].id
    looks: list[Verb] = [Find(one), Peek(one), Steps(one), Due(5), Scan(5), Count()]
    outcomes = run(store.perform([*replays, *looks]), connection.ask)
    assert [outcome.record.answer for outcome in outcomes[:20]] == [ANSWER] * 20
    assert written() == before


def test_replays_do_not_wait_for_a_writer(
    path: Path, store: SqliteStore, connection: SqliteConnection
) -> None:
    """They take no write lock: somebody else holds it all the while."""
    attempt = claim("order-1")
    run(store.perform([Insert(attempt)]), connection.ask)
    run(store.perform([complete(attempt)]), connection.ask)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        [outcome] = run(store.perform([Insert(claim("order-1"))]), connection.ask)
    assert isinstance(outcome, Found)
    assert outcome.record.answer == ANSWER


def test_an_insert_that_finds_nothing_among_replays_is_carried_out(
    store: SqliteStore, connection: SqliteConnection
) -> None:
    run(store.perform([Insert(claim("order-1"))]), connection.ask)
    verbs: list[Verb] = [Insert(claim("order-1")), Insert(claim("order-2"))]
    verbs.append(Find(claim("order-3").id))
    found, inserted, nothing = run(store.perform(verbs), connection.ask)
    assert isinstance(found, Found)
    assert (inserted, nothing) == (Inserted(1), None)


def test_a_sweep_and_an_insert_of_what_it_removes_share_a_batch(
    path: Path, store: SqliteStore, connection: SqliteConnection
) -> None:
    """The insert looks first, and finds what expired; the next one finds a higher fence."""
    run(store.perform([Insert(claim("order-1")), Insert(claim("order-2"))]), connection.ask)
    elapse.sqlite(path, 3 * HOUR_S)
    verbs: list[Verb] = [Sweep(10), Insert(claim("order-1"))]
    swept, found = run(store.perform(verbs), connection.ask)
    assert swept == 2
    assert found.record.expired
    assert run(store.perform([Insert(claim("order-1"))]), connection.ask) == [Inserted(2)]


# ------------------------------------------------------------------------ what is purged is gone

SECRET = "4242-4242-4242-4242"


def traces_of_secret(path: Path) -> list[str]:
    return [file.name for file in path.parent.iterdir() if SECRET.encode() in file.read_bytes()]


@pytest.mark.parametrize("body_bytes", [100, 3_000, 200_000])
def test_p12_nothing_of_what_was_purged_is_left_in_any_file(
    path: Path, gatherer: Gatherer, body_bytes: int
) -> None:
    """Long answers fill pages of their own, and every page went through the write-ahead log."""
    attempt = claim(f"order-{SECRET}", tenant="leaving")
    others = [claim(f"other-{number}") for number in range(50)]
    for each in (*others, attempt):
        gatherer.ask(Insert(each))
    gatherer.ask(AppendStep(attempt.id, 1, attempt.token, Step("pay", b"d", SECRET.encode())))
    body = SECRET.encode() * (body_bytes // len(SECRET))
    answer = Answer(201, ((b"x-card", SECRET.encode()),), body)
    assert gatherer.ask(complete(attempt, answer, resource_id=SECRET)) == Done(1)
    assert traces_of_secret(path)
    assert gatherer.ask(Purge("leaving", 10)) == 1
    assert traces_of_secret(path) == []
    assert gatherer.ask(Find(attempt.id)).state is State.COMPLETED


def test_p12_what_was_swept_is_not_left_in_the_file(path: Path, gatherer: Gatherer) -> None:
    attempt = claim(f"order-{SECRET}")
    gatherer.ask(Insert(attempt))
    gatherer.ask(complete(attempt, Answer(200, (), SECRET.encode() * 1000)))
    elapse.sqlite(path, 3 * HOUR_S)
    assert gatherer.ask(Sweep(10)) == 1
    gatherer.close()
    assert traces_of_secret(path) == []


@pytest.mark.parametrize("erase", [Sweep(100), Purge("acct_1", 100)], ids=["sweep", "purge"])
def test_p11_long_answers_are_erased_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch, path: Path, gatherer: Gatherer, erase: Verb
) -> None:
    """Others wait while they are written over; even one that is longer than the limit goes."""
    monkeypatch.setattr(sqlite_verbs, "ERASE_BYTES_MAX", 100_000)
    for number, length in enumerate([40_000, 40_000, 40_000, 200_000, 10, 10]):
        attempt = claim(f"order-{number}")
        gatherer.ask(Insert(attempt))
        gatherer.ask(complete(attempt, Answer(200, (), b"x" * length)))
    if isinstance(erase, Sweep):
        elapse.sqlite(path, 3 * HOUR_S)
    assert [gatherer.ask(erase) for _ in range(5)] == [2, 1, 1, 2, 0]


# ------------------------------------------------------------------------ schema


def test_a_new_file_is_migrated_by_itself_and_only_once(path: Path, store: SqliteStore) -> None:
    connection = store.connect()
    assert run(store.migrate(), connection.ask) == [
        migration.name for migration in sql.migrations("sqlite")
    ]
    assert run(store.migrate(), connection.ask) == []
    run(store.prepare(), connection.ask)
    connection.close()


def test_tables_of_an_application_in_the_same_file_are_left_alone(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        db.execute("INSERT INTO orders VALUES (7)")
    gatherer = Gatherer(SqliteStore(path))
    assert gatherer.ask(Insert(claim("order-1"))) == Inserted(1)
    gatherer.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT * FROM orders").fetchall() == [(7,)]


def test_a_file_keeps_the_pages_that_it_was_made_with(path: Path) -> None:
    """Larger ones waste less of the disk on long answers: see docs/stores.md."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA page_size = 16384")
        db.execute("VACUUM")
    gatherer, attempt = Gatherer(SqliteStore(path)), claim("order-1")
    assert gatherer.ask(Insert(attempt)) == Inserted(1)
    assert gatherer.ask(complete(attempt)) == Done(1)
    gatherer.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA page_size").fetchone() == (16384,)


@pytest.mark.parametrize(("oldest_reader", "fits"), [(1, True), (99, False)])
def test_a_newer_schema_is_used_only_if_it_allows_that(
    path: Path, gatherer: Gatherer, oldest_reader: int, fits: bool
) -> None:
    gatherer.ask(Insert(claim("order-1")))
    gatherer.close()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO oncekey_schema VALUES (99, 'later', ?)", (oldest_reader,))
    if fits:
        assert isinstance(gatherer.ask(Insert(claim("order-1"))), Found)
        return
    with pytest.raises(StoreUnfit, match="Upgrade oncekey here"):
        gatherer.ask(Insert(claim("order-1")))


def test_a_migration_that_fails_leaves_the_file_as_it_was(
    monkeypatch: pytest.MonkeyPatch, path: Path, gatherer: Gatherer
) -> None:
    gatherer.ask(Insert(claim("order-1")))
    gatherer.close()
    broken = sql.Migration(99, "broken", 1, "CREATE TABLE half (a);\nCREATE TABLE half (a);\n")
    known = sql.migrations("sqlite")
    monkeypatch.setattr("oncekey.stores.sqlite.store.migrations", lambda engine: [*known, broken])
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        gatherer.ask(Find(claim("order-1").id))
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT name FROM sqlite_master WHERE name = 'half'").fetchall() == []
        newest = db.execute("SELECT max(number) FROM oncekey_schema").fetchall()
        assert newest == [(known[-1].number,)]


def test_p11_who_writes_keeps_nobody_from_opening_a_file_that_is_up_to_date(
    path: Path, gatherer: Gatherer
) -> None:
    gatherer.ask(Insert(claim("order-1")))
    gatherer.close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        with contextlib.closing(Gatherer(SqliteStore(path, timeout_s=0.01))) as another:
            assert another.ask(Find(claim("order-1").id)) is not None


def test_a_file_in_which_a_table_has_our_name_says_what_to_do(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE oncekey_claims (mine)")
    with (
        contextlib.closing(Gatherer(SqliteStore(path))) as gatherer,
        pytest.raises(StoreUnfit, match=r"oncekey_claims already exists: name another file"),
    ):
        gatherer.ask(Insert(claim("order-1")))


def test_a_file_that_lost_a_table_says_so(path: Path, gatherer: Gatherer) -> None:
    gatherer.ask(Insert(claim("order-1")))
    gatherer.close()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TABLE oncekey_answers")
    with pytest.raises(StoreUnfit, match=r"no such table.* restore it from a backup"):
        gatherer.ask(Find(claim("order-1").id))


# ------------------------------------------------------------------------ URLs and options


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("sqlite:///keys.db", "{cwd}/keys.db"),
        ("sqlite:///data/keys.db", "{cwd}/data/keys.db"),
        ("sqlite:////var/lib/keys.db", "/var/lib/keys.db"),
        ("sqlite:///with%20space%3F.db", "{cwd}/with space?.db"),
        ("SQLITE:///keys.db", "{cwd}/keys.db"),
    ],
)
def test_a_url_names_a_file(url: str, name: str) -> None:
    assert repr(open_url(url)) == f"SqliteStore('{name.format(cwd=os.getcwd())}')"


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///", "name a file"),
        ("sqlite://keys.db", "sqlite:///keys.db"),
        ("sqlite:keys.db", "sqlite:///keys.db"),
        ("sqlite:///keys.db?timeout=3", "timeout_s"),
        ("sqlite:///keys.db?synchronous=EXTRA", "FULL"),
        ("sqlite:///keys.db?allow=everything", "network-file-system, unsafe-durability"),
        ("sqlite:///keys.db?timeout_s=soon", "seconds"),
        ("sqlite:///keys.db?timeout_s=-1", "seconds"),
    ],
)
def test_what_cannot_be_meant_is_answered_with_what_to_write(url: str, advice: str) -> None:
    with pytest.raises(Misuse, match=advice):
        open_url(url)


def test_names_that_mean_something_in_a_url_are_just_names(tmp_path: Path) -> None:
    path = tmp_path / "50% off? #1.db"
    gatherer = Gatherer(SqliteStore(path))
    gatherer.ask(Insert(claim("order-1")))
    gatherer.close()
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_less_than_full_durability_is_declared(path: Path) -> None:
    usual, loose = SqliteStore(path), open_url(f"sqlite:///{path}?synchronous=NORMAL")
    assert usual.durability.power_loss
    assert not loose.durability.power_loss
    assert loose.durability.store_crash
    for store, level in ((usual, 2), (loose, 1)):
        connection = store.connect()
        assert connection.ask(_synchronous) == level
        connection.close()


def _synchronous(file: Any) -> int:
    level: int = file.read(lambda execute: execute("PRAGMA synchronous").fetchone())[0]
    return level


def test_a_relative_path_is_the_same_file_after_a_change_of_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    gatherer = Gatherer(SqliteStore("keys.db"))
    gatherer.ask(Insert(claim("order-1")))
    monkeypatch.chdir("/")
    gatherer.close()
    assert isinstance(gatherer.ask(Find(claim("order-1").id)), Record)
    gatherer.close()


# ------------------------------------------------------------------------ who holds the file


def test_a_writer_that_does_not_end_makes_the_store_unavailable_not_stuck(path: Path) -> None:
    gatherer = Gatherer(SqliteStore(path, timeout_s=0.05))
    gatherer.ask(Insert(claim("order-1")))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="transaction that stays open") as caught:
            gatherer.ask(Insert(claim("order-2")))
    assert caught.value.sent is False
    assert gatherer.ask(Find(claim("order-2").id)) is None
    assert gatherer.ask(Insert(claim("order-2"))) == Inserted(1)
    gatherer.close()


def test_long_reads_do_not_hold_up_the_others(store: SqliteStore) -> None:
    writes = [Insert(claim("a")), complete(claim("a")), Sweep(1), Purge("a", 1), Due(1)]
    assert len({store.group(verb) for verb in writes}) == 1
    assert {store.group(Scan(1)), store.group(Count())}.isdisjoint({store.group(writes[0])})
