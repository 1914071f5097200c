"""Estimates: what SQLite is told of the sizes of our tables, once and for all.

It counts nothing by itself. Not told, it takes the rows of an account for ten, and reads all of
them rather than use an index that leads to those of one customer. Numbers that stay also make
plans that stay: https://sqlite.org/queryplanner-ng.html#fixed_results_of_analyze
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from payments.storage.tables import metadata

ROWS = 1_000_000
_ALIKE = {"id": 1, "tenant": 100_000, "status": 100_000, "endpoint": 10_000}
"""How many rows have the same in a column."""
_ALIKE_ELSEWHERE = 10
_UNFINISHED = 100
"""Rows of which an index holds only a few."""

_TOLD = sa.text("SELECT tbl, idx, stat FROM sqlite_stat1")
_TELL = sa.text("INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES (:tbl, :idx, :stat)")
_FORGET = sa.text("DELETE FROM sqlite_stat1 WHERE tbl = :tbl")


def tell(connection: Connection) -> None:
    """Write them down, for all who open the file from now on."""
    wanted = dict(_estimates())
    tables = sorted({table for table, _ in wanted})
    if not sa.inspect(connection).has_table("sqlite_stat1"):
        connection.exec_driver_sql("PRAGMA analysis_limit = 1")
        connection.exec_driver_sql(f"ANALYZE {tables[0]}")  # makes the place for them
    rows = connection.execute(_TOLD).all()
    if {(row.tbl, row.idx): row.stat for row in rows if row.tbl in tables} != wanted:
        connection.execute(_FORGET, [{"tbl": table} for table in tables])
        made = [{"tbl": tbl, "idx": idx, "stat": stat} for (tbl, idx), stat in wanted.items()]
        connection.execute(_TELL, made)
        connection.exec_driver_sql("ANALYZE sqlite_schema")  # reads them anew


def _estimates() -> Iterator[tuple[tuple[str, str], str]]:
    """By table and index; the primary key's has the name of its table."""
    for table in metadata.tables.values():
        if "tenant" not in table.primary_key.columns:
            continue
        yield (table.name, table.name), _estimate(ROWS, table.primary_key.columns.keys())
        for index in table.indexes:
            partial = index.dialect_options["sqlite"]["where"] is not None
            rows = _UNFINISHED if partial else ROWS
            yield (table.name, str(index.name)), _estimate(rows, index.columns.keys())


def _estimate(rows: int, columns: list[str]) -> str:
    """All rows, and how many of them are alike in the first column, in the first two, …"""
    numbers = [rows]
    for column in columns:
        numbers.append(min(numbers[-1], _ALIKE.get(column, _ALIKE_ELSEWHERE)))
    return " ".join(map(str, numbers))
