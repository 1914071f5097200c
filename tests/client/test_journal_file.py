"""The file of a journal: shared, full, read-only, broken, and open while a process forks."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncekey._system import probes
from oncekey.client import Journal
from oncekey.client import _journal as journals
from oncekey.errors import Misuse, StoreUnavailable

PAY = "order-42/pay"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "intents.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    with Journal(path) as opened:
        yield opened
    probes.disarm()


@pytest.mark.slow
def test_what_was_settled_last_is_written_when_the_process_ends(path: Path) -> None:
    """Or a script that runs once a week would find it unsettled, and too old to be sent."""
    lines = (
        "import sys",
        "from oncekey.client import Journal",
        "journal = Journal(sys.argv[1])",
        "journal.key('a'), journal.settle('a'), journal.key('b')",
        "journal.settle('b')",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines), str(path)], check=True, timeout=60)

    with Journal(path) as journal:
        assert journal.unsettled() == []


def test_threads_and_journals_that_race_agree(path: Path) -> None:
    journals = [Journal(path) for _ in range(4)]
    barrier = threading.Barrier(8)
    keys: list[str] = []

    def ask(journal: Journal) -> None:
        barrier.wait()
        keys.extend(journal.key(f"order-{number}") for number in range(10))

    threads = [threading.Thread(target=ask, args=(journals[n % 4],)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (len(keys), len(set(keys))) == (80, 10)
    for journal in journals:
        journal.close()


def test_nothing_is_given_out_that_could_not_be_written(path: Path, journal: Journal) -> None:
    journal.key("opened")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA query_only = 0")
    writer.execute("DROP TABLE oncekey_intents")
    with pytest.raises(StoreUnavailable, match="Nothing was sent"):
        journal.key(PAY)
    writer.close()


def test_what_could_not_be_committed_is_not_given_out_later(
    path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads keeps it from being committed, and it must not stay half-written."""
    monkeypatch.setattr(journals, "BUSY_S_MAX", 0.01)
    journal.close()
    journal.key("opened")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM oncekey_intents").fetchone() == (1,)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match=r"locked\. Nothing was sent"):
                journal.key(PAY)
        reader.execute("COMMIT")

    key = journal.key(PAY)
    with Journal(path) as other:
        assert {intent.name: intent.key for intent in other.unsettled()}[PAY] == key


def test_who_is_interrupted_while_it_writes_holds_the_file_no_longer(
    path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "BUSY_S_MAX", 0.01)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(journal, "_write_assumption", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.key(PAY)

    with Journal(path) as other:
        assert other.unsettled() == []
        assert other.key(PAY) == journal.key(PAY)


def test_a_full_disk_is_told_and_forgotten_when_there_is_room_again(
    path: Path, journal: Journal
) -> None:
    journal.key("opened")
    full = journal._open_db()
    pages = full.execute("PRAGMA page_count").fetchone()[0]
    full.execute(f"PRAGMA max_page_count = {pages}").fetchone()

    with pytest.raises(StoreUnavailable, match=r"disk is full\. Nothing was sent"):
        journal.key(PAY, note="x" * 60_000)

    assert [intent.name for intent in journal.unsettled()] == ["opened"]
    journal.key(PAY, note="x" * 60_000)


def test_a_disk_that_cannot_be_written_still_gives_the_keys_that_are_on_it(
    path: Path, journal: Journal
) -> None:
    key = journal.key(PAY)
    journal.close()
    asked = Journal(path)
    asked._open_db().execute("PRAGMA query_only = 1")

    assert asked.key(PAY) == key
    with pytest.raises(StoreUnavailable, match=r"readonly database\. Nothing was sent"):
        asked.key("another")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_while_another_thread_writes_neither_hangs_nor_spoils(journal: Journal) -> None:
    """The child has no copy of the open file, nor of the thread that held it."""
    writing, forked = threading.Event(), threading.Event()

    def half_way() -> None:
        writing.set()
        forked.wait(0.1)

    probes.arm("before_intent", half_way)
    thread = threading.Thread(target=journal.key, args=(PAY,))
    thread.start()
    assert writing.wait(30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that is the point
        child = os.fork()
    if child == 0:
        signal.alarm(30)
        with contextlib.suppress(BaseException):
            os._exit(0 if journal.key("in the child") and journal.key(PAY) else 1)
        os._exit(2)
    forked.set()
    thread.join(30)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert {intent.name for intent in journal.unsettled()} == {PAY, "in the child"}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_what_was_settled_before_a_fork_is_written_all_the_same(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or another process that begins it anew would get the old key, and the old answer."""
    monkeypatch.setattr(journals, "FLUSH_AFTER_S", 0.2)
    written = threading.Event()
    probes.arm("after_settle", written.set)
    journal.key(PAY)
    journal.key("in the child")
    journal.settle(PAY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        with contextlib.suppress(BaseException):
            journal.settle("in the child")
            os._exit(0 if written.wait(30) else 1)
        os._exit(2)

    assert written.wait(30)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with contextlib.closing(sqlite3.connect(journal.path)) as file:
        assert file.execute("SELECT name FROM oncekey_intents").fetchall() == []


def test_what_was_settled_while_the_file_was_held_is_written_later(
    path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "BUSY_S_MAX", 0.01)
    monkeypatch.setattr(journals, "FLUSH_AFTER_S", 0.01)
    tried, written = threading.Event(), threading.Event()
    probes.arm("after_settle", written.set)
    journal.key(PAY)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        journal.settle(PAY)
        monkeypatch.setattr(journals._log, "warning", lambda *_: tried.set())
        assert tried.wait(30)
        assert not written.is_set()

    assert written.wait(30)
    assert journal.unsettled() == []


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database at all, but long enough to be looked at " * 100)

    with pytest.raises(StoreUnavailable, match="cannot be used"):
        Journal(tmp_path / "text").key(PAY)
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        Journal(tmp_path / "no" / "such" / "folder").key(PAY)


def test_only_its_owner_reads_it(path: Path, journal: Journal) -> None:
    journal.key(PAY)

    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


@pytest.mark.parametrize(("name", "note"), [("", ""), ("n" * 513, ""), ("n", "x" * 65_537)])
def test_names_and_notes_are_bounded(journal: Journal, name: str, note: str) -> None:
    with pytest.raises(Misuse, match="1 to 512 characters"):
        journal.key(name, note=note)


def test_a_retention_of_nothing_is_refused(path: Path) -> None:
    for seconds in (0, float("inf"), float("nan")):
        with pytest.raises(Misuse, match="retention_s"):
            Journal(path, retention_s=seconds)
