"""The stores on which several processes can meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncekey import open_store
from oncekey.core.op import run
from tests.crash.test_kill import Place
from tests.stores import elapse


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A store with nothing in it that concerns the test: keys are random."""
    match request.param:
        case "sqlite":
            url = f"sqlite:///{tmp_path / 'keys.db'}"
        case "postgres":
            url = request.getfixturevalue("postgres_url")
        case _:
            url = request.getfixturevalue("redis_url")
    store = open_store(url)
    connection = store.connect()
    try:
        run(store.migrate(), connection.ask)
    finally:
        connection.close()
    return Place(url, lambda seconds: elapse.by_url(url, seconds))
