"""Migrate: a store is brought up to date from code."""

from __future__ import annotations

from pathlib import Path

import pytest

import oncekey


def test_what_was_applied_is_named_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    assert oncekey.migrate(url)
    assert oncekey.migrate(oncekey.open_store(url)) == []


def test_a_store_that_is_not_there() -> None:
    with pytest.raises(oncekey.StoreUnavailable):
        oncekey.migrate("postgresql://nobody@127.0.0.1:1/none")
