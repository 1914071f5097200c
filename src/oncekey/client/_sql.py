"""A connection of the caller's, whichever library made it, as one way to ask.

DB-API        any connection whose module says how parameters are written (`paramstyle`): sqlite3,
              psycopg, psycopg2, PyMySQL, mysqlclient, mysql.connector, oracledb, …
SQLAlchemy    `Connection`, `Session`, `scoped_session`
Django        `connection`, `connections[alias]`, or the alias

Nothing here begins, commits or rolls back: that is the caller's. Nothing is imported either: a
connection can only be of a library that somebody has imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Any

from oncekey._core.values import value
from oncekey.errors import Misuse
from oncekey.stores.callers import connection_behind, is_of

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
"""By the name of a driver, or what SQLAlchemy and Django call a database."""
_STYLES = ("qmark", "format", "pyformat", "numeric", "numeric_dollar", "named")
"""Those of DB-API, and what SQLAlchemy calls that of asyncpg."""


@value
class Asker:
    """How to ask: statements have a `?` for each parameter."""

    dialect: str
    """sqlite, postgresql, mysql, or a name that nothing is known about."""
    style: str
    run: Callable[[str, Any], Any]
    """Statement and parameters, as the driver wants them; its cursor, or what is like one."""

    def rows(self, statement: str, *given: Any) -> list[tuple[Any, ...]]:
        fetched: Sequence[Any] = self.do(statement, *given).fetchall()
        # Callers may have their connection give rows as mappings.
        return [tuple(row.values() if isinstance(row, Mapping) else row) for row in fetched]

    def do(self, statement: str, *given: Any) -> Any:
        texts = statement.split("?")
        marks = [_mark(self.style, number) for number in range(1, len(texts))]
        written = "".join(text + mark for text, mark in zip(texts, [*marks, ""], strict=True))
        named = {f"p{n}": each for n, each in enumerate(given, start=1)}
        try:
            return self.run(written, named if self.style == "named" else given)
        except Exception as error:  # each driver has its own
            if hasattr(error, "hide_parameters"):  # SQLAlchemy's shows them, and keys among them
                error.hide_parameters = True
            if _misses_table(error):
                raise Misuse(
                    "the journal's tables are missing: make them once, by journal.create(within="
                    "connection), or by SqlJournal.schema(…) in a migration of yours"
                ) from error
            raise


def _misses_table(error: Exception) -> bool:
    """Whether a database says that there is no such table, by whichever driver or library."""
    told = getattr(error, "orig", None) or error.__cause__ or error  # SQLAlchemy's, Django's
    codes = [getattr(told, name, None) for name in ("sqlstate", "pgcode")] + [*told.args[:1]]
    return "42P01" in codes or 1146 in codes or "no such table" in str(error)


def _mark(style: str, number: int) -> str:
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


def asker(connection: Any) -> Asker:
    """How to ask on this connection, in the transaction that it has open."""
    connection = connection_behind(connection)
    if is_of(connection, "django.db.backends.base.base", "BaseDatabaseWrapper"):
        return Asker(DIALECTS.get(connection.vendor, ""), "format", _through_cursor(connection))
    if is_of(connection, "sqlalchemy", "Connection"):
        dialect = connection.dialect
        return Asker(
            DIALECTS.get(dialect.name, ""), _known(dialect.paramstyle), connection.exec_driver_sql
        )
    return _by_driver(connection)


def _by_driver(connection: Any) -> Asker:
    commit = getattr(connection, "commit", None)  # asyncpg's has cursors, and no such word
    blocks = hasattr(connection, "cursor") and callable(commit) and not iscoroutinefunction(commit)
    for cls in type(connection).__mro__ if blocks else ():
        names = cls.__module__.split(".")
        for length in range(len(names), 0, -1):
            module = sys.modules.get(".".join(names[:length]))
            if style := getattr(module, "paramstyle", None):
                dialect = DIALECTS.get(names[0], "")
                return Asker(dialect, _known(style), _through_cursor(connection))
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise Misuse(
        f"within={kind}: give a connection of a DB-API driver, SQLAlchemy or Django that blocks. "
        "In an AsyncSession: await session.run_sync(lambda within: journal.key(…, within=within))"
    )


def _known(style: str) -> str:
    return style if style in _STYLES else "format"


def _through_cursor(connection: Any) -> Callable[[str, Any], Any]:
    def run(statement: str, given: Any) -> Any:
        cursor = connection.cursor()
        cursor.execute(statement, given)
        return cursor

    return run
