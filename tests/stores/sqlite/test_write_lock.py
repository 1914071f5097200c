"""The one writer of a SQLite file: its time is over whatever it is doing."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sqlite3
import threading
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncekey.stores.sqlite.write_lock import Exclusive, Overdue


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that has written and not committed."""
    db = sqlite3.connect(tmp_path / "keys.db", check_same_thread=False, isolation_level=None)
    db.execute("CREATE TABLE oncekey_meta (fence_floor)")
    db.execute("CREATE TABLE orders (n)")
    db.execute("BEGIN IMMEDIATE")
    db.executemany("INSERT INTO orders VALUES (?)", [(1,), (2,), (3,)])
    yield db
    db.close()


def others_find(folder: Path) -> list[Any]:
    """What somebody else finds, who can write at once."""
    with contextlib.closing(sqlite3.connect(folder / "keys.db", timeout=0)) as other:
        other.execute("BEGIN IMMEDIATE")
        return other.execute("SELECT n FROM orders").fetchall()


@contextlib.contextmanager
def soon(exclusive: Exclusive) -> Iterator[None]:
    """The thread that watches ends it while this one is busy."""
    watching = threading.Timer(0.1, exclusive.expire)
    watching.start()
    yield
    watching.join()


def test_p11_who_is_late_is_rolled_back(writer: sqlite3.Connection, tmp_path: Path) -> None:
    exclusive = Exclusive(writer, 60.0)
    exclusive.expire()
    with pytest.raises(Overdue):
        exclusive.check()
    assert others_find(tmp_path) == []
    exclusive.free()
    assert writer.execute("SELECT n FROM orders").fetchall() == []


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[Callable[[], sqlite3.Connection]]:
    """Connections that write, each to a file of its own."""
    with contextlib.ExitStack() as opened:

        def begin() -> sqlite3.Connection:
            path = tmp_path / f"{uuid.uuid4()}.db"
            db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            opened.enter_context(contextlib.closing(db))
            db.execute("CREATE TABLE oncekey_meta (fence_floor)")
            db.execute("BEGIN IMMEDIATE")
            return db

        yield begin


def test_p11_each_of_several_is_rolled_back_in_its_time(
    writers: Callable[[], sqlite3.Connection],
) -> None:
    """There is one writer per file, and a process may have many files."""
    patient, late, later = (Exclusive(writers(), seconds) for seconds in (60.0, 0.2, 0.01))
    for each in (later, late):
        assert each._ended.wait(30)
        with pytest.raises(Overdue):
            each.check()
    patient.check()
    with patient.may_end():
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_p11_who_is_late_in_a_forked_child_is_rolled_back(
    writers: Callable[[], sqlite3.Connection],
) -> None:
    """The thread that watches is its parent's."""
    first = Exclusive(writers(), 60.0)
    with first.may_end():
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that is the point
        child = os.fork()
    if child == 0:
        signal.alarm(30)
        with contextlib.suppress(BaseException):
            os._exit(0 if Exclusive(writers(), 0.01)._ended.wait(20) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_p11_who_has_not_read_to_the_end_is_rolled_back(
    writer: sqlite3.Connection, tmp_path: Path
) -> None:
    exclusive = Exclusive(writer, 60.0)
    rows = writer.execute("SELECT n FROM orders")
    assert rows.fetchone() == (1,)
    exclusive.expire()
    assert others_find(tmp_path) == []
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        rows.fetchall()
    exclusive.free()


@pytest.mark.parametrize("writes", ["", "INSERT INTO orders "])
@pytest.mark.parametrize("number", ["n", "same(n)"])
def test_p11_a_statement_without_an_end_is_ended(
    writer: sqlite3.Connection, tmp_path: Path, number: str, writes: str
) -> None:
    """Also one that calls Python, which the thread that watches must not keep to itself."""
    writer.create_function("same", 1, lambda n: n)
    exclusive = Exclusive(writer, 60.0)
    endless = f"WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT {number} FROM c) "
    with soon(exclusive), pytest.raises(sqlite3.OperationalError, match="interrupted"):
        writer.execute(f"{endless}{writes}SELECT max(n) FROM c")
    assert others_find(tmp_path) == []
    exclusive.free()


def test_p11_who_prepares_one_statement_after_the_other_is_stopped(
    writer: sqlite3.Connection, tmp_path: Path
) -> None:
    exclusive = Exclusive(writer, 60.0)
    write = "INSERT INTO orders SELECT {0} WHERE {0} IN (SELECT n FROM orders)".format
    with soon(exclusive), pytest.raises(sqlite3.Error):
        deque(map(writer.execute, map(write, itertools.count())), maxlen=0)
    assert others_find(tmp_path) == []
    exclusive.free()


def test_p2_what_was_prepared_before_writes_nothing_after(
    writer: sqlite3.Connection, tmp_path: Path
) -> None:
    exclusive, write = Exclusive(writer, 60.0), "INSERT INTO orders VALUES (4)"
    writer.execute(write)
    exclusive.expire()
    for _ in range(2):
        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            writer.execute(write)
    assert others_find(tmp_path) == []
    exclusive.free()


def test_p11_who_closes_the_connection_holds_nothing_after_its_time(
    writer: sqlite3.Connection, tmp_path: Path
) -> None:
    exclusive = Exclusive(writer, 60.0)
    writer.close()
    exclusive.expire()
    assert others_find(tmp_path) == []
    exclusive.free()


def test_p11_who_leaves_with_rows_unread_holds_nothing(
    writer: sqlite3.Connection, tmp_path: Path
) -> None:
    exclusive = Exclusive(writer, 60.0)
    rows = writer.execute("SELECT n FROM orders")
    assert rows.fetchone() == (1,)
    exclusive.leave()
    writer.close()
    assert others_find(tmp_path) == []
    exclusive.expire()  # nobody is there
    exclusive.free()


def test_a_handler_may_use_savepoints_and_drop_tables(
    writer: sqlite3.Connection, tmp_path: Path
) -> None:
    exclusive = Exclusive(writer, 60.0)
    writer.execute("SAVEPOINT part")
    writer.execute("CREATE TABLE part (n)")
    writer.execute("DROP TABLE part")
    writer.execute("RELEASE part")
    with exclusive.may_end():
        writer.execute("COMMIT")
    exclusive.free()
    assert others_find(tmp_path) == [(1,), (2,), (3,)]
