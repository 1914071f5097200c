"""The write-ahead log beside a SQLite file."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oncekey._core.op import run
from oncekey._core.verbs import Find, Insert, Inserted
from oncekey.errors import StoreUnavailable
from oncekey.stores.batching import Gatherer
from oncekey.stores.sqlite.connection import UNCHECKED_MAX, WAL_BYTES
from oncekey.stores.sqlite.store import SqliteStore
from oncekey.stores.sqlite.wal import Wal
from tests.stores.sqlite.worker import claim


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture
def gatherer(path: Path) -> Iterator[Gatherer]:
    gatherer = Gatherer(SqliteStore(path))
    yield gatherer
    gatherer.close()


@pytest.fixture
def wal(path: Path, gatherer: Gatherer) -> Iterator[Wal]:
    """The log of a file with one record."""
    gatherer.ask(Insert(claim("order-1")))
    wal = Wal(os.fspath(path))
    yield wal
    wal.close()


def test_its_length_is_that_of_the_file_while_it_grows(
    path: Path, gatherer: Gatherer, wal: Wal
) -> None:
    lengths = []
    for number in range(2, 5):
        gatherer.ask(Insert(claim(f"order-{number}")))
        lengths.append(wal.length())
        assert lengths[-1] == Path(f"{path}-wal").stat().st_size
    assert sorted(set(lengths)) == lengths


def test_one_that_is_forgotten_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch, path: Path, gatherer: Gatherer
) -> None:
    gatherer.ask(Insert(claim("order-1")))
    real, opened, closed = (os.open, os.close), [], []

    def open_(*told: Any) -> int:
        opened.append(real[0](*told))
        return opened[-1]

    def close(descriptor: int) -> None:
        closed.append(descriptor)
        real[1](descriptor)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "close", close)
    wal = Wal(os.fspath(path))
    assert wal.length() > 0
    [descriptor] = opened
    assert descriptor not in closed
    del wal
    gc.collect()
    assert descriptor in closed


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
@pytest.mark.parametrize("which", [["-wal", "-shm"], ["-wal"], ["-shm"], [""]], ids="".join)
@pytest.mark.parametrize("look", [Wal.length, Wal.check], ids=["length", "check"])
def test_that_its_files_are_gone_is_noticed(
    path: Path, wal: Wal, look: Callable[[Wal], object], which: list[str], replaced: bool
) -> None:
    """As when somebody removes `keys.db-*`, which look like leftovers, or puts a backup back."""
    settle(path.parent)
    assert wal.length() > 0
    wal.check()
    for name in (f"{path}{suffix}" for suffix in which):
        os.rename(name, f"{name}.away")
        if replaced:
            Path(name).touch()
    with pytest.raises(StoreUnavailable, match="removed or replaced") as caught:
        look(wal)
    assert caught.value.sent is False


def settle(folder: Path) -> None:
    """As if nothing had happened in the folder for a long time."""
    long_ago = folder.stat().st_mtime_ns - 10**12
    os.utime(folder, ns=(long_ago, long_ago))


def test_what_happens_around_it_is_nothing_to_it(path: Path, wal: Wal) -> None:
    settle(path.parent)
    assert wal.length() > 0
    path.with_name("other.txt").touch()
    wal.check()
    path.with_name("other.txt").unlink()
    wal.check()
    assert wal.length() > 0


def test_what_happens_within_one_tick_of_a_coarse_clock_is_noticed(path: Path, wal: Wal) -> None:
    folder = path.parent
    path.with_name("other.txt").touch()
    now = folder.stat().st_mtime_ns
    assert wal.length() > 0
    os.rename(f"{path}-shm", f"{path}-shm.away")
    os.utime(folder, ns=(now, now))
    with pytest.raises(StoreUnavailable, match="removed or replaced"):
        wal.check()


def test_a_look_around_is_all_as_long_as_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, path: Path, wal: Wal
) -> None:
    settle(path.parent)
    assert wal.length() > 0

    def never(wal: Wal) -> Any:
        raise AssertionError("looked at each file")

    monkeypatch.setattr(Wal, "_find", never)
    wal.check()


def test_that_it_alone_is_gone_is_noticed_where_the_system_does_not_tell_names(
    monkeypatch: pytest.MonkeyPatch, path: Path, gatherer: Gatherer
) -> None:
    def not_here(path: Any) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "readlink", not_here)
    gatherer.ask(Insert(claim("order-1")))
    gatherer.ask(Insert(claim("order-2")))
    os.rename(f"{path}-wal", f"{path}-wal.away")
    later = [Insert(claim(f"later-{number}")) for number in range(UNCHECKED_MAX + 1)]
    with pytest.raises(StoreUnavailable, match="removed or replaced"):
        [*map(gatherer.ask, later)]


def test_that_it_is_gone_is_noticed_by_whoever_has_only_read(path: Path, wal: Wal) -> None:
    """As after a fork, where nobody checks the schema again."""
    store = SqliteStore(path)
    with closing(store.connect()) as connection:
        [found] = run(store.perform([Find(claim("order-1").id)]), connection.ask)
        assert found is not None
        os.rename(f"{path}-wal", f"{path}-wal.away")
        with pytest.raises(StoreUnavailable, match="removed or replaced"):
            run(store.perform([Insert(claim("order-2"))]), connection.ask)


def test_that_it_cannot_be_opened_is_an_outage(
    monkeypatch: pytest.MonkeyPatch, path: Path, gatherer: Gatherer
) -> None:
    """Not an error of the caller's, which would be answered with 500."""
    real = os.open

    def full(name: Any, *told: Any) -> int:
        if os.fspath(name) == f"{path}-wal":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(name, *told)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(StoreUnavailable, match="Too many open files") as caught:
        gatherer.ask(Insert(claim("order-1")))
    assert caught.value.sent is False


def test_that_of_a_file_behind_a_link_is_kept_short_too(path: Path) -> None:
    """SQLite names its files after what the link points to."""
    path.touch()
    link = path.with_name("link.db")
    link.symlink_to(path)
    gatherer = Gatherer(SqliteStore(link))
    for number in range(24):
        gatherer.ask(Insert(replace(claim(f"order-{number}"), request=bytes(500_000))))
    assert Path(f"{path}-wal").stat().st_size < 2 * WAL_BYTES
    gatherer.close()


AT_EXIT = """
import atexit, sys
from oncekey._core.verbs import Insert
from oncekey.stores.batching import Gatherer
from oncekey.stores.sqlite.store import SqliteStore
from tests.stores.sqlite.worker import claim

atexit.register(lambda: print(gatherer.ask(Insert(claim("order-2")))))
gatherer = Gatherer(SqliteStore(sys.argv[1]))
gatherer.ask(Insert(claim("order-1")))
"""


def test_a_process_can_write_until_its_end(path: Path) -> None:
    told = [sys.executable, "-c", AT_EXIT, os.fspath(path)]
    said = subprocess.run(told, check=True, capture_output=True, text=True)
    assert (said.stdout, said.stderr) == ("Inserted(fence=1)\n", "")


def test_writing_never_asks_when_it_was_written(
    monkeypatch: pytest.MonkeyPatch, gatherer: Gatherer
) -> None:
    """Else the file system has to keep an exact time with every commit, and to sync it too."""
    gatherer.ask(Insert(claim("order-1")))
    real, asked = os.stat, []

    def stat(path: Any, *more: Any, **options: Any) -> os.stat_result:
        asked.append(os.fspath(path))
        return real(path, *more, **options)

    monkeypatch.setattr(os, "stat", stat)
    for number in range(2, 5):
        assert gatherer.ask(Insert(claim(f"order-{number}"))) == Inserted(1)
    assert asked
    assert not [name for name in asked if name.endswith("-wal")]
