"""One SQLite file under processes, forks, kills, full disks and careless hands."""

from __future__ import annotations

import contextlib
import os
import resource
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncekey._core import lifecycle
from oncekey._core.record import Answer, Claim
from oncekey._core.verbs import Done, Find, Found, Insert, Inserted, Swap
from oncekey.errors import StoreUnavailable, StoreUnfit
from oncekey.stores.batching import Gatherer
from oncekey.stores.sqlite import connection
from oncekey.stores.sqlite.connection import UNCHECKED_MAX, WAL_BYTES, File, Place
from oncekey.stores.sqlite.store import SqliteStore
from tests.stores.sqlite.worker import HOUR_S, claim

ROOT = Path(__file__).parents[3]
NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture
def gatherer(path: Path) -> Iterator[Gatherer]:
    gatherer = Gatherer(SqliteStore(path))
    yield gatherer
    gatherer.close()


def start(*words: object) -> subprocess.Popen[str]:
    """Another process, at work on a file."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.stores.sqlite.worker", *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def output(process: subprocess.Popen[str], told: str | None = None) -> list[str]:
    """All that it says until it ends, which it must do well."""
    said, _ = process.communicate(told, timeout=50)
    assert process.returncode == 0
    return said.splitlines()


def check_integrity(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


# ------------------------------------------------------------------------ the file


def test_p12_files_are_for_their_owner_only(path: Path, gatherer: Gatherer) -> None:
    gatherer.ask(Insert(claim("order-1")))
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"keys.db": 0o600, "keys.db-wal": 0o600, "keys.db-shm": 0o600}


def test_the_permissions_of_a_file_that_is_there_are_kept(path: Path, gatherer: Gatherer) -> None:
    path.touch()
    path.chmod(0o640)
    gatherer.ask(Insert(claim("order-1")))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def refusal(path: Path) -> str:
    gatherer = Gatherer(SqliteStore(path))
    with pytest.raises(StoreUnfit) as caught:
        gatherer.ask(Insert(claim("order-1")))
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "it must be a file" in refusal(tmp_path)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert "its folder must exist" in refusal(tmp_path / "missing" / "keys.db")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_text("Dear diary, " * 100)
    assert "name another file" in refusal(path)
    assert path.read_text() == "Dear diary, " * 100


def test_a_damaged_database_is_refused(path: Path, gatherer: Gatherer) -> None:
    gatherer.ask(Insert(claim("order-1")))
    gatherer.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    assert "restore it from a backup" in refusal(path)


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """A folder of root's, and a user without any rights where the tests run as root."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        os.seteuid(os.getuid())
        folder.chmod(0o755)


def drop_rights() -> None:
    if os.getuid() == 0:
        os.seteuid(NOBODY)


def test_a_folder_without_the_right_to_write_is_refused(as_nobody: Path) -> None:
    as_nobody.chmod(0o555)
    drop_rights()
    assert "allowed to write" in refusal(as_nobody / "keys.db")


def test_a_file_without_the_right_to_write_is_refused_before_it_is_used(as_nobody: Path) -> None:
    path = as_nobody / "keys.db"
    gatherer = Gatherer(SqliteStore(path))
    gatherer.ask(Insert(claim("order-1")))
    gatherer.close()
    path.chmod(0o444)
    as_nobody.chmod(0o777)  # only the file's own rights are in the way
    drop_rights()
    gatherer = Gatherer(SqliteStore(path))
    with pytest.raises(StoreUnfit, match="this user may write"):
        gatherer.ask(Find(claim("order-1").id))


@pytest.mark.parametrize("left", [0, 1, 2])
def test_who_has_too_many_files_open_is_told_so(gatherer: Gatherer, path: Path, left: int) -> None:
    """Another file may be opened later: the store is fit."""
    gatherer.ask(Find(claim("order-1").id))
    limits, held = resource.getrlimit(resource.RLIMIT_NOFILE), list[int]()
    highest = max(map(int, os.listdir("/dev/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        for _ in range(left):
            os.close(held.pop())
        with pytest.raises(StoreUnavailable, match=r"[Tt]oo many (open files|files open)"):
            File(Place(str(path), 0.0, "FULL"))
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_a_file_that_is_taken_away_is_not_written_to(
    path: Path, gatherer: Gatherer, replaced: bool
) -> None:
    """Whoever came later would not find it: this is no acknowledgement, and no fresh start."""
    gatherer.ask(Insert(claim("order-1")))
    for file in path.parent.iterdir():
        file.rename(f"{file}.away")
    if replaced:
        other = Gatherer(SqliteStore(path))
        other.ask(Insert(claim("order-2")))
    with pytest.raises(StoreUnavailable, match="removed or replaced") as caught:
        gatherer.ask(Insert(claim("order-3")))
    assert caught.value.sent is False
    if replaced:
        assert gatherer.ask(Insert(claim("order-3"))) == Inserted(1)
        assert other.ask(Find(claim("order-3").id)) is not None
        other.close()
        return
    with pytest.raises(StoreUnfit, match="put it back"):
        gatherer.ask(Insert(claim("order-3")))
    assert not path.exists()


def test_an_old_sqlite_is_refused(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    with pytest.raises(StoreUnfit, match=r"needs 3\.37"):
        SqliteStore(path).connect()


# ------------------------------------------------------------------------ several processes


@pytest.mark.slow
def test_p1_of_several_processes_that_open_a_new_file_at_once_one_wins_each(path: Path) -> None:
    processes = [start("insert_all", path, 100, who) for who in range(6)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    won = [int(number) for process in processes for number in output(process)]
    assert sorted(won) == list(range(100))
    check_integrity(path)


@pytest.mark.slow
def test_p4_what_was_acknowledged_survives_the_death_of_the_process(
    path: Path, gatherer: Gatherer
) -> None:
    """Killed in the middle of writing, again and again, while another one goes on."""
    survivor = start("insert_for_ever", path, "survivor")
    said = []
    for life in range(4):
        process = start("insert_for_ever", path, f"life-{life}")
        assert process.stdout is not None
        said += [process.stdout.readline().strip() for _ in range(20 + life)]
        process.kill()
        said += [line.strip() for line in process.stdout if line.endswith("\n")]
        process.communicate()
    survivor.kill()
    said += survivor.communicate()[0].split("\n")[:-1]
    assert len(said) > 80
    for name in said:
        assert gatherer.ask(Find(claim(name).id)) is not None, name
    check_integrity(path)


def test_a_file_that_was_open_over_a_fork_is_safe_on_both_sides(
    path: Path, gatherer: Gatherer
) -> None:
    count = 200
    assert output(start("insert_over_forks", path, count)) == ["done"]
    names = ["before", "after"]
    names += [f"parent-{number}" for number in range(count)]
    names += [f"child-{child}-{number}" for child in range(3) for number in range(count)]
    missing = [name for name in names if gatherer.ask(Find(claim(name).id)) is None]
    assert missing == []
    check_integrity(path)


# ------------------------------------------------------------------------ a disk that fills up


def test_p4_a_write_without_room_is_not_acknowledged_and_loses_nothing(path: Path) -> None:
    [said] = output(start("insert_without_room", path, "order"))
    failures, sent = said.split(" ", 1)
    assert int(failures) > 20
    assert sent == "[True]"
    check_integrity(path)


def test_a_commit_that_fails_leaves_no_transaction_open(path: Path) -> None:
    """SQLite keeps the transaction open when COMMIT fails; here a deferred constraint makes it."""
    place = Place(str(path), 1.0, "FULL")
    place.create()
    file = File(place)

    def prepare(execute: Any) -> None:
        execute("CREATE TABLE parent (n INTEGER PRIMARY KEY)")
        execute("CREATE TABLE child (n REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")

    def orphan(execute: Any) -> str:
        execute("INSERT INTO child VALUES (1)")
        return "acknowledged"

    file.write(prepare)
    file._db.execute("PRAGMA foreign_keys = ON")
    with pytest.raises(sqlite3.IntegrityError):
        file.write(orphan)
    assert file.write(lambda execute: execute("SELECT count(*) FROM child").fetchone()) == (0,)
    file.close()


# ------------------------------------------------------------------------ the write-ahead log


def complete(attempt: Claim, body: bytes) -> Swap:
    held = lifecycle.Held(attempt.id, 1, attempt.token)
    return lifecycle.complete(held, Answer(200, (), body), retention_s=HOUR_S)


def test_p11_the_write_ahead_log_stays_short(path: Path, gatherer: Gatherer) -> None:
    wal, body, longest = Path(f"{path}-wal"), b"x" * 500_000, 0
    for number in range(40):
        attempt = claim(f"order-{number}")
        gatherer.ask(Insert(attempt))
        assert gatherer.ask(complete(attempt, body)) == Done(1)
        longest = max(longest, wal.stat().st_size)
    assert path.stat().st_size > 3 * WAL_BYTES
    assert WAL_BYTES < longest < WAL_BYTES + 2 * len(body)


def test_p11_a_reader_that_stays_holds_the_log_only_while_it_stays(
    path: Path, gatherer: Gatherer
) -> None:
    wal, body = Path(f"{path}-wal"), b"x" * 500_000

    def write(prefix: str) -> None:
        for number in range(20):
            attempt = claim(f"{prefix}-{number}")
            gatherer.ask(Insert(attempt))
            gatherer.ask(complete(attempt, body))

    write("first")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM oncekey_claims").fetchone()
        write("second")
        assert wal.stat().st_size > 2 * WAL_BYTES
    write("third")
    assert wal.stat().st_size < WAL_BYTES + 2 * len(body)


def test_nobody_makes_a_checkpoint_without_the_write_lock(
    path: Path, gatherer: Gatherer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else SQLite before 3.51.3 could lose what was committed meanwhile."""
    monkeypatch.setattr(connection, "WAL_BYTES", 50_000)
    real, made = File._checkpoint, []

    def checkpoint(file: File, execute: Any) -> None:
        with (
            contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            other.execute("BEGIN IMMEDIATE")
        made.append(os.stat(f"{path}-wal").st_size)
        real(file, execute)

    monkeypatch.setattr(File, "_checkpoint", checkpoint)
    for number in range(5 * UNCHECKED_MAX):
        gatherer.ask(Insert(claim(f"order-{number}")))
    assert len(made) > 3
    file = File(Place(str(path), 1.0, "FULL"))
    assert file.read(lambda execute: execute("PRAGMA wal_autocheckpoint").fetchone()) == (0,)
    file.close()


def test_p11_a_replay_does_not_wait_until_a_checkpoint_can_be_made(
    path: Path, gatherer: Gatherer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gatherer.ask(Insert(claim("order-1")))
    monkeypatch.setattr(connection, "WAL_BYTES", 1)

    def never(seconds: float) -> None:
        raise AssertionError("waited for a writer")

    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(time, "sleep", never)
        for _ in range(2 * UNCHECKED_MAX):
            assert isinstance(gatherer.ask(Insert(claim("order-1"))), Found)


def test_what_cannot_be_erased_leaves_nobody_waiting_within_sqlite(path: Path) -> None:
    """There the time is not ours to bound."""
    migrated = Gatherer(SqliteStore(path))
    migrated.ask(Insert(claim("order-1")))
    file = File(Place(str(path), 5.0, "FULL"))

    class Broken:
        def __init__(self, db: sqlite3.Connection) -> None:
            self.real = db

        def execute(self, statement: str, *told: Any) -> sqlite3.Cursor:
            if "checkpoint" in statement:
                raise sqlite3.OperationalError("disk I/O error")
            return self.real.execute(statement, *told)

    real = file._db
    file._db = Broken(real)  # type: ignore[assignment]
    file.erase_wal()
    file._db = real
    assert real.execute("PRAGMA busy_timeout").fetchone() == (0,)
    file.close()
    migrated.close()
