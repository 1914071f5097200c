"""What SQLite is told of the tables: all that there is, once."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from payments.settings import Settings
from payments.storage import sqlite_statistics
from payments.storage.database import Database
from payments.storage.tables import charges, metadata


def test_every_index_of_what_accounts_have_is_told_and_stays(tmp_path: Path) -> None:
    with closing(Database(Settings(data=tmp_path))) as database:
        database.create_tables()
        with database.begin() as connection:
            rows = connection.exec_driver_sql("SELECT idx FROM sqlite_stat1").all()
            told = sorted(name for (name,) in rows)
            ours = [
                table
                for table in metadata.tables.values()
                if {"tenant", "id"} <= set(table.c.keys())
            ]
            names = [str(index.name) for table in ours for index in table.indexes]
            assert told == sorted([*names, *(table.name for table in ours)])

            driver = connection.connection.driver_connection
            assert driver is not None
            before = driver.total_changes
            sqlite_statistics.write(connection)
            assert driver.total_changes == before


def test_what_somebody_else_counted_is_replaced(tmp_path: Path) -> None:
    with closing(Database(Settings(data=tmp_path))) as database:
        database.create_tables()
        with database.begin() as connection:
            connection.execute(sa.text("UPDATE sqlite_stat1 SET stat = '1 1 1'"))
        database.create_tables()
        with database.begin() as connection:
            stat = "SELECT stat FROM sqlite_stat1 WHERE idx = 'charges_of_customer'"
            assert connection.exec_driver_sql(stat).scalar_one() == "1000000 100000 10 1"
            mine = charges.select().where(charges.c.tenant == "a", charges.c.customer == "b")
            plan = f"EXPLAIN QUERY PLAN {mine.compile(connection)}"
            assert "charges_of_customer" in str(connection.exec_driver_sql(plan, ("a", "b")).all())
