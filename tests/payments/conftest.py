"""One running application for all; tests that race, die or count everything make their own."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.payments.api_client import Api, start_api


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """On SQLite."""
    with start_api(tmp_path_factory.mktemp("payments")) as api:
        yield api


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """An empty database: the embedded one, or PostgreSQL."""
    if request.param == "sqlite":
        return ""
    url: str = request.getfixturevalue("postgres_url")
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
            " AND tablename <> 'oncekey_schema'"
        ).fetchall()
        for (name,) in found:
            connection.execute(f'TRUNCATE "{name}"'.encode())
    return f"{url}?allow=unsafe-durability"


@pytest.fixture
def fresh(database_url: str, tmp_path: Path) -> Iterator[Api]:
    """A new one, on SQLite and on PostgreSQL."""
    with start_api(tmp_path, database_url) as api:
        yield api
