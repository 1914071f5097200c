"""Tables and indexes, and who waits for whom."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from payments.money.reconcile import read_file
from payments.settings import Settings
from payments.storage import ids
from payments.storage.database import Database
from payments.storage.tables import deliveries, events, metadata, tokens
from tests.payments.api_client import start_api
from tests.payments.serve_command import until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["50% ü%41", "a?b", "a#b"])
def test_all_that_is_embedded_is_in_its_folder_whatever_its_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    with start_api(folder) as api:
        charge = api.charge(900)
        api.create("customers", {"name": "in one transaction with its record"})
        with closing(sqlite3.connect(folder / "network.db")) as book:
            api.network.file.backup(book)
        lines = list(read_file(folder / "network.db"))
    assert [line.reference for line in lines] == [charge["id"]] * 2
    assert [path.name for path in tmp_path.iterdir()] == [name]


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


def test_p12_what_goes_wrong_is_told_without_what_was_to_be_written(
    database_url: str, tmp_path: Path
) -> None:
    """Errors of the database are logged."""
    card = {"number": "4242424242424242"}
    row = {"tenant": "acct_1/test", "id": ids.new("tok"), "created": 1, "card": card}
    with closing(Database(Settings(data=tmp_path, database_url=database_url))) as database:
        database.create_tables()
        with database.begin() as connection:
            connection.execute(sa.text("DROP TABLE tokens"))
        with pytest.raises(sa.exc.DBAPIError, match="tokens") as raised, database.begin() as writes:
            writes.execute(tokens.insert(), row)
    assert card["number"] not in str(raised.value)


def test_an_index_that_is_built_and_a_server_that_writes_never_wait_for_each_other(
    postgres_url: str, tmp_path: Path
) -> None:
    """The courier of a running server writes to deliveries first, and to events after that."""
    delivery = {"id": ids.new("dlv"), "event": "evt_0", "endpoint": "we_1", "due": 1.0}
    event = {"id": ids.new("evt"), "type": "webhook_endpoint.disabled", "data": {}}
    both = {"tenant": "acct_1/test", "created": 1}
    with closing(Database(Settings(data=tmp_path, database_url=postgres_url))) as database:
        database.create_tables()
        with database.begin() as connection:
            connection.execute(sa.text("DROP INDEX events_by_age, deliveries_by_age"))
        migrating = threading.Thread(target=database.create_tables)
        with database.begin() as connection:
            connection.execute(deliveries.insert(), both | delivery)
            migrating.start()
            until(lambda: waits_for_a_table(database), "the migration to wait for the courier")
            connection.execute(events.insert(), both | event)
        migrating.join()
        with database.read() as connection:
            there = sa.inspect(connection).get_multi_indexes().values()
        assert {"events_by_age", "deliveries_by_age"} <= {
            index["name"] for of_table in there for index in of_table
        }


def waits_for_a_table(database: Database) -> bool:
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event_type = 'Lock' AND query LIKE 'CREATE INDEX%'"
    )
    with database.read() as connection:
        return bool(connection.execute(sa.text(query)).scalar_one())
