"""Tables and indexes, and who waits for whom."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from payments.database import Database
from payments.settings import Settings
from payments.tables import metadata

pytestmark = pytest.mark.slow


def test_what_a_newer_release_brings_to_old_tables_is_created(
    database_url: str, tmp_path: Path
) -> None:
    with closing(Database(Settings(data=tmp_path, database_url=database_url))) as database:
        database.create_tables()
        with database.begin() as connection:
            connection.execute(sa.text("DROP INDEX events_by_age"))
            connection.execute(sa.text("DROP TABLE refunds"))

        for _ in range(2):
            database.create_tables()

        with database.read() as connection:
            there = sa.inspect(connection).get_multi_indexes().values()
        names = {index["name"] for of_table in there for index in of_table}
        assert {index.name for each in metadata.tables.values() for index in each.indexes} <= names
