"""Which names mean the same records."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncekey._engine.registry import registry_of
from oncekey.stores.identity import identity_of
from oncekey.stores.memory import MemoryStore
from oncekey.stores.sqlite.store import SqliteStore
from oncekey.stores.urls import open_store

SECRETS = ["a secret of more than thirty-two letters for tests"]

SAME = [
    ("postgresql://u:p@host/db", "postgres://u:p@HOST:5432/db"),
    ("postgresql://u:p@host/db", "postgresql://v:q@host/db?application_name=x&timeout_s=1"),
    ("postgresql://u:p@host/db?timeout_s=1&pgbouncer=true", "postgresql://u:p@host/db"),
    ("postgresql://u:p@127.0.0.1/db", "postgresql://u:p@localhost/db"),
    ("postgresql://u:p@[::1]:5432/db", "postgresql://u:p@localhost/db"),
    ("postgresql://u:p@/db?host=/run&port=5433", "postgresql://u:p@/db?port=5433&host=/run"),
    ("postgresql://u:p@a:1,b:2/db", "postgresql://u:p@b:2,a:1/db"),
    ("postgresql://u:p@host", "postgresql://u:p@host/u"),
    ("mysql://u:p@host/db", "mariadb://u:p@HOST:3306/db?timeout_s=1"),
    ("mysql://u:p@localhost/db", "mysql://u:p@127.0.0.1/db"),
    ("redis://host", "redis://HOST:6379/0"),
    ("redis://host/0?prefix=oncekey&timeout_s=2", "valkey://u:p@host"),
    ("redis://localhost", "redis://127.0.0.1:6379"),
    ("unix:///run/redis.sock", "unix:///run/redis.sock?db=0"),
    ("dynamodb://table?region=r&timeout_s=1", "dynamodb://a:b@table?region=r"),
    ("tiered+postgresql://u:p@host/db?cache=redis://a", "postgresql://u:p@host/db"),
]
OTHERS = [
    ("postgresql://u:p@host/db", "postgresql://u:p@host/other"),
    ("postgresql://u:p@host/db", "postgresql://u:p@host:5433/db"),
    ("postgresql://u:p@host/db", "postgresql://u:p@host/db?options=-csearch_path%3Dshop"),
    ("mysql://u:p@host/db", "mysql://u:p@host/other"),
    ("redis://host/0", "redis://host/1"),
    ("redis://host/0", "redis://host/0?prefix=shop"),
    ("redis+cluster://a:1,b:2", "redis+sentinel://a:1,b:2/main"),
    ("redis+sentinel://a:1/main", "redis+sentinel://a:1/other"),
    ("dynamodb://table?region=r", "dynamodb://table?region=s"),
    ("memory://", "memory://"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_two_names_of_the_same_records(one: str, other: str) -> None:
    assert identity_of(open_store(one)) == identity_of(open_store(other))
    assert registry_of(one) is registry_of(other)


@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_names_of_other_records(one: str, other: str) -> None:
    first, second = open_store(one), open_store(other)
    assert identity_of(first) != identity_of(second)


def test_a_file_is_the_same_by_every_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.db").symlink_to(tmp_path / "keys.db")
    (tmp_path / "here").symlink_to(tmp_path)
    names = ["keys.db", "./keys.db", f"{tmp_path}/keys.db", "here/keys.db", "link.db"]
    kept = registry_of(SqliteStore(tmp_path / "keys.db", synchronous="NORMAL"))
    for name in names:
        assert registry_of(f"sqlite:///{name}") is kept
        assert registry_of(SqliteStore(name)) is kept
    assert registry_of("sqlite:///keys.db?timeout_s=1") is kept
    assert registry_of("sqlite:///other.db") is not kept


def test_what_is_sealed_has_other_ids(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    sealed = identity_of(open_store(url, secrets=SECRETS))
    assert sealed == identity_of(open_store(url, secrets=SECRETS))
    assert sealed != identity_of(open_store(url))


def test_a_store_of_your_own_is_itself() -> None:
    class Mine(MemoryStore):
        name = "postgres"

    mine = Mine()
    assert identity_of(mine) == identity_of(mine) != identity_of(Mine())
