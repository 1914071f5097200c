"""Statements for MySQL and MariaDB as plain text, with the values in it. Pure.

Neither driver can send values apart from the text. So that no character set, `sql_mode` or rule of
escaping has a say in what they mean, every value goes as a number or in hexadecimal digits: what
was given can neither end a literal nor begin one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from oncekey._core.policy import SECONDS_MAX
from oncekey._core.values import value

Value = None | bool | int | float | bytes | str

CLOCK = "SYSDATE(6)"
"""The server's clock at the moment of evaluation: once a row is locked, not before waiting for it.
Our sessions are in UTC.
"""
CLOCK_OF_ANY_SESSION = "UTC_TIMESTAMP(6)"
"""The clock when the statement began, whatever the session's time zone is."""
LONG_BYTES_MIN = 16_384
"""From here on a value is sent with its own verb only: where rows are made into a table, both
servers choose the columns' types, and may cut what is longer without a word.
"""
FOR_EVER_US = 3 * SECONDS_MAX * 1_000_000
"""A lease, a retention and a tombstone, each as long as can be. A DATETIME can hold that date."""


@value
class Question:
    """Statements that are sent in one go, each answered with a `Reply`."""

    statements: tuple[str, ...]
    atomic: bool = False
    """All of them or none: as one transaction."""
    after: tuple[str, ...] = ()
    """What is looked up once they are committed."""
    flushed: bool = False
    """Once they are committed, they are on disk, and all that was committed before: `mysql_flush`.
    Not in a caller's transaction, whose commit is its own.
    """
    chore: bool = False
    """May take as long as housekeeping takes: `CHORE_TIMEOUT_S` instead of `timeout_s`."""
    at_once: bool = False
    """In a caller's transaction: who holds a row is not waited for, or as shortly as can be."""


@value
class Reply:
    """What one statement was answered."""

    rows: Sequence[Sequence[Any]]
    affected: int


def literal(given: Value) -> str:
    """A value as it stands in a statement. A text stands as the bytes of its UTF-8."""
    if given is None:
        return "NULL"
    if isinstance(given, bool):
        return "1" if given else "0"
    if isinstance(given, int):
        return str(given)
    if isinstance(given, float):
        if not math.isfinite(given):
            raise ValueError(f"{given} cannot be kept")
        text = repr(given)
        return text if "e" in text else f"{text}e0"  # without an exponent it would be a DECIMAL
    return f"x'{(given.encode() if isinstance(given, str) else given).hex()}'"


def micros(seconds: float | None) -> int:
    return min(round((seconds or 0) * 1_000_000), FOR_EVER_US)


def later(by_us: str) -> str:
    """The moment that is so many microseconds after now."""
    return f"{CLOCK} + INTERVAL {by_us} MICROSECOND"


def among(ids: Sequence[bytes]) -> str:
    """The right side of `IN`."""
    return f"({', '.join(map(literal, ids))})"


def is_long(row: Mapping[str, Value]) -> bool:
    """Whether a row must not be made part of a `table`."""
    return any(isinstance(v, bytes | str) and len(v) >= LONG_BYTES_MIN for v in row.values())


def names(rows: Sequence[Mapping[str, Value]]) -> dict[str, str]:
    """How an expression refers to the values of rows: where there is only one, as themselves."""
    if len(rows) == 1:
        return {name: literal(given) for name, given in rows[0].items()}
    return {name: f"a.`{name}`" for name in rows[0]}


def table(rows: Sequence[Mapping[str, Value]]) -> str:
    """Rows as a table for FROM. Both servers know no other spelling of it."""
    first, *others = rows
    selects = [", ".join(f"{literal(given)} AS `{name}`" for name, given in first.items())]
    selects += [", ".join(map(literal, row.values())) for row in others]
    return f"(SELECT {' UNION ALL SELECT '.join(selects)})"
