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
            file = tmp_path / "keys.db"
            place = Place(f"sqlite:///{file}", lambda s: elapse.sqlite(file, s))
        case "postgres":
            url = request.getfixturevalue("postgres_url")
            place = Place(url, lambda s: elapse.postgres(url, s))
        case _:
            url = request.getfixturevalue("redis_url")
            place = Place(url, lambda s: elapse.redis(url, "oncekey", s))
    store = open_store(place.url)
    connection = store.connect()
    try:
        run(store.migrate(), connection.ask)
    finally:
        connection.close()
    return place
