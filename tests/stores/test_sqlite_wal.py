"""The write-ahead log beside a SQLite file."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncekey.core.verbs import Insert, Inserted
from oncekey.errors import StoreUnavailable
from oncekey.stores.gather import Gatherer
from oncekey.stores.sqlite import SqliteStore
from oncekey.stores.sqlite_wal import Wal
from tests.stores.sqlite_worker import claim


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture
def gatherer(path: Path) -> Iterator[Gatherer]:
    gatherer = Gatherer(SqliteStore(path))
    yield gatherer
    gatherer.close()


@pytest.fixture
def wal(path: Path) -> Iterator[Wal]:
    wal = Wal(os.fspath(path))
    yield wal
    wal.close()


def test_its_length_is_that_of_the_file_while_it_grows(
    path: Path, gatherer: Gatherer, wal: Wal
) -> None:
    assert wal.length() == 0
    lengths = []
    for number in range(3):
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
def test_that_its_files_are_gone_is_noticed(
    path: Path, gatherer: Gatherer, wal: Wal, replaced: bool
) -> None:
    """As when somebody removes `keys.db-*`, which look like leftovers."""
    gatherer.ask(Insert(claim("order-1")))
    assert wal.length() > 0
    for name in (f"{path}-wal", f"{path}-shm"):
        os.rename(name, f"{name}.away")
        if replaced:
            Path(name).touch()
    with pytest.raises(StoreUnavailable, match="removed or replaced") as caught:
        wal.length()
    assert caught.value.sent is False


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
