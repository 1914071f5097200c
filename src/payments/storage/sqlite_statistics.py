"""Statistics for SQLite's query planner: fixed estimates of the sizes of our tables.

SQLite does not count by itself. Without statistics it assumes an account has ten rows and reads
all of them instead of using the index of one customer. Fixed numbers also make stable plans:
https://sqlite.org/queryplanner-ng.html#fixed_results_of_analyze
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from payments.storage.tables import metadata

ROWS = 1_000_000
_ROWS_PER_VALUE = {"id": 1, "tenant": 100_000, "status": 100_000, "endpoint": 10_000}
"""How many rows share a value of this column."""
_ROWS_PER_OTHER_VALUE = 10
_PARTIAL_ROWS = 100
"""The rows in a partial index."""

_SELECT = sa.text("SELECT tbl, idx, stat FROM sqlite_stat1")
_INSERT = sa.text("INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES (:tbl, :idx, :stat)")
_DELETE = sa.text("DELETE FROM sqlite_stat1 WHERE tbl = :tbl")


def write(connection: Connection) -> None:
    """Write the estimates into the file, for all later connections."""
    wanted = dict(_estimates())
    tables = sorted({table for table, _ in wanted})
    if not sa.inspect(connection).has_table("sqlite_stat1"):
        connection.exec_driver_sql("PRAGMA analysis_limit = 1")
        connection.exec_driver_sql(f"ANALYZE {tables[0]}")  # creates the table
    rows = connection.execute(_SELECT).all()
    if {(row.tbl, row.idx): row.stat for row in rows if row.tbl in tables} != wanted:
        connection.execute(_DELETE, [{"tbl": table} for table in tables])
        made = [{"tbl": tbl, "idx": idx, "stat": stat} for (tbl, idx), stat in wanted.items()]
        connection.execute(_INSERT, made)
        connection.exec_driver_sql("ANALYZE sqlite_schema")  # reads them anew


def _estimates() -> Iterator[tuple[tuple[str, str], str]]:
    """Yield an estimate per table and index; a primary key's index is named like its table."""
    for table in metadata.tables.values():
        if "tenant" not in table.primary_key.columns:
            continue
        yield (table.name, table.name), _estimate(ROWS, table.primary_key.columns.keys())
        for index in table.indexes:
            partial = index.dialect_options["sqlite"]["where"] is not None
            rows = _PARTIAL_ROWS if partial else ROWS
            yield (table.name, str(index.name)), _estimate(rows, index.columns.keys())


def _estimate(rows: int, columns: list[str]) -> str:
    """Return the number of rows, and how many share the first column, the first two, …"""
    numbers = [rows]
    for column in columns:
        numbers.append(min(numbers[-1], _ROWS_PER_VALUE.get(column, _ROWS_PER_OTHER_VALUE)))
    return " ".join(map(str, numbers))
