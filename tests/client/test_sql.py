"""Statements in every driver's parameter style."""

from __future__ import annotations

from typing import Any

import pytest

from oncekey.client._sql import SqlConnection, as_sql_connection
from oncekey.errors import Misuse


@pytest.mark.parametrize(
    ("style", "statement", "given"),
    [
        ("qmark", "a = ? AND b = ?", (1, 2)),
        ("format", "a = %s AND b = %s", (1, 2)),
        ("pyformat", "a = %s AND b = %s", (1, 2)),
        ("numeric", "a = :1 AND b = :2", (1, 2)),
        ("numeric_dollar", "a = $1 AND b = $2", (1, 2)),
        ("named", "a = :p1 AND b = :p2", {"p1": 1, "p2": 2}),
    ],
)
def test_parameters_are_written_as_the_driver_wants_them(
    style: str, statement: str, given: Any
) -> None:
    asked: list[tuple[str, Any]] = []

    SqlConnection("", style, lambda *question: asked.append(question)).execute(
        "a = ? AND b = ?", 1, 2
    )

    assert asked == [(statement, given)]


def test_a_connection_that_nobody_here_can_ask_is_told_the_way() -> None:
    """As asyncpg's own: it has cursors, and commits by other means."""

    class Connection:
        def cursor(self) -> None: ...

    with pytest.raises(Misuse, match="give a blocking connection"):
        as_sql_connection(Connection())
