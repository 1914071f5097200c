"""Run statements on the caller's connection, of whatever library.

DB-API        any connection whose module has a `paramstyle`: sqlite3, psycopg, psycopg2, PyMySQL,
              mysqlclient, mysql.connector, oracledb, …
SQLAlchemy    `Connection`, `Session`, `scoped_session`
Django        `connection`, `connections[alias]`, or the alias

Nothing here begins, commits or rolls back: the caller does. No library is imported: one that made a
connection is imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Any

from oncekey._core.values import value
from oncekey.errors import Misuse
from oncekey.stores.transactions import connection_behind, is_of

DIALECTS = {
    "sqlite3": "sqlite",
    "sqlite": "sqlite",
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "pg8000": "postgresql",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "mysql": "mysql",
    "mariadb": "mysql",
}
"""The dialect by driver name, or by SQLAlchemy's or Django's name of the database."""
_STYLES = ("qmark", "format", "pyformat", "numeric", "numeric_dollar", "named")
"""The parameter styles of DB-API, and SQLAlchemy's name for asyncpg's."""


@value
class SqlConnection:
    """Runs statements that have a `?` for each parameter."""

    dialect: str
    """sqlite, postgresql, mysql, or empty if unknown."""
    style: str
    run: Callable[[str, Any], Any]
    """Runs a statement with parameters in the driver's style; returns a cursor or the like."""

    def query(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        fetched: Sequence[Any] = self.execute(statement, *parameters).fetchall()
        # The caller's connection may return rows as mappings.
        return [tuple(row.values() if isinstance(row, Mapping) else row) for row in fetched]

    def execute(self, statement: str, *parameters: Any) -> Any:
        texts = statement.split("?")
        marks = [_placeholder(self.style, number) for number in range(1, len(texts))]
        text = "".join(text + mark for text, mark in zip(texts, [*marks, ""], strict=True))
        by_name = {f"p{n}": each for n, each in enumerate(parameters, start=1)}
        try:
            return self.run(text, by_name if self.style == "named" else parameters)
        except Exception as error:  # each driver has its own
            if hasattr(error, "hide_parameters"):  # SQLAlchemy's error shows them, keys included
                error.hide_parameters = True
            if _misses_table(error):
                raise Misuse(
                    "the journal's tables are missing: create them once with journal.create("
                    "within=connection), or with SqlJournal.schema(…) in your own migration"
                ) from error
            raise


def _misses_table(error: Exception) -> bool:
    """Whether an error of any driver or library means that a table is missing."""
    driver_error = (
        getattr(error, "orig", None) or error.__cause__ or error
    )  # SQLAlchemy's, Django's
    codes = [getattr(driver_error, name, None) for name in ("sqlstate", "pgcode")] + [
        *driver_error.args[:1]
    ]
    return "42P01" in codes or 1146 in codes or "no such table" in str(error)


def _placeholder(style: str, number: int) -> str:
    match style:
        case "qmark":
            return "?"
        case "numeric":
            return f":{number}"
        case "numeric_dollar":
            return f"${number}"
        case "named":
            return f":p{number}"
        case _:
            return "%s"


def as_sql_connection(connection: Any) -> SqlConnection:
    """Wrap the caller's connection; statements run in its open transaction."""
    connection = connection_behind(connection)
    if is_of(connection, "django.db.backends.base.base", "BaseDatabaseWrapper"):
        return SqlConnection(
            DIALECTS.get(connection.vendor, ""), "format", _through_cursor(connection)
        )
    if is_of(connection, "sqlalchemy", "Connection"):
        dialect = connection.dialect
        return SqlConnection(
            DIALECTS.get(dialect.name, ""),
            _known_style(dialect.paramstyle),
            connection.exec_driver_sql,
        )
    return _from_driver(connection)


def _from_driver(connection: Any) -> SqlConnection:
    commit = getattr(connection, "commit", None)  # asyncpg connections have cursors, but not this
    blocks = hasattr(connection, "cursor") and callable(commit) and not iscoroutinefunction(commit)
    for cls in type(connection).__mro__ if blocks else ():
        names = cls.__module__.split(".")
        for length in range(len(names), 0, -1):
            module = sys.modules.get(".".join(names[:length]))
            if style := getattr(module, "paramstyle", None):
                dialect = DIALECTS.get(names[0], "")
                return SqlConnection(dialect, _known_style(style), _through_cursor(connection))
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise Misuse(
        f"within={kind}: give a blocking connection of a DB-API driver, SQLAlchemy or Django. "
        "In an AsyncSession: await session.run_sync(lambda within: journal.key(…, within=within))"
    )


def _known_style(style: str) -> str:
    return style if style in _STYLES else "format"


def _through_cursor(connection: Any) -> Callable[[str, Any], Any]:
    def run(statement: str, parameters: Any) -> Any:
        cursor = connection.cursor()
        cursor.execute(statement, parameters)
        return cursor

    return run
