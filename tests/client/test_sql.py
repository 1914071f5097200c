"""Statements for whichever driver asks them."""

from __future__ import annotations

from typing import Any

import pytest

from oncekey.client.sql import Asker


@pytest.mark.parametrize(
    ("style", "statement", "given"),
    [
        ("qmark", "a = ? AND b = ?", (1, 2)),
        ("format", "a = %s AND b = %s", (1, 2)),
        ("pyformat", "a = %s AND b = %s", (1, 2)),
        ("numeric", "a = :1 AND b = :2", (1, 2)),
        ("named", "a = :p1 AND b = :p2", {"p1": 1, "p2": 2}),
    ],
)
def test_parameters_are_written_as_the_driver_wants_them(
    style: str, statement: str, given: Any
) -> None:
    asked: list[tuple[str, Any]] = []

    Asker("", style, lambda *question: asked.append(question)).do("a = ? AND b = ?", 1, 2)

    assert asked == [(statement, given)]
