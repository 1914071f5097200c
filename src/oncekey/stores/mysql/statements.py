"""Statements for MySQL and MariaDB as plain text, with the values in it. Pure.

Neither driver can send values apart from the text. So every value goes as a number or in
hexadecimal digits, whose meaning depends on no character set, `sql_mode` or escaping rule: no value
can end a literal or begin one.
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
"""From this length on a value goes with its own verb only: in a table made of rows, both servers
choose the types of columns, and may truncate longer values silently.
"""
FOR_EVER_US = 3 * SECONDS_MAX * 1_000_000
"""The longest lease, retention and tombstone together. A DATETIME can hold that date."""


@value
class Question:
    """Statements that are sent together, each answered with a `Reply`."""

    statements: tuple[str, ...]
    atomic: bool = False
    """Run them as one transaction."""
    after: tuple[str, ...] = ()
    """Queries to run once they are committed."""
    flushed: bool = False
    """After the commit, they and all earlier commits are on disk: see `durability`. Not in a
    caller's transaction, which the caller commits.
    """
    chore: bool = False
    """Housekeeping: `CHORE_TIMEOUT_S` applies instead of `timeout_s`."""
    at_once: bool = False
    """In a caller's transaction: do not wait for a locked row, or as shortly as possible."""


@value
class Reply:
    """The answer to one statement."""

    rows: Sequence[Sequence[Any]]
    affected: int


def literal(given: Value) -> str:
    """Write a value as a literal. A text is written as its UTF-8 bytes."""
    if given is None:
        return "NULL"
    if isinstance(given, bool):
        return "1" if given else "0"
    if isinstance(given, int):
        return str(given)
    if isinstance(given, float):
        if not math.isfinite(given):
            raise ValueError(f"{given} cannot be stored")
        text = repr(given)
        return text if "e" in text else f"{text}e0"  # without an exponent it would be a DECIMAL
    return f"x'{(given.encode() if isinstance(given, str) else given).hex()}'"


def micros(seconds: float | None) -> int:
    return min(round((seconds or 0) * 1_000_000), FOR_EVER_US)


def later(by_us: str) -> str:
    """Return the moment that many microseconds from now."""
    return f"{CLOCK} + INTERVAL {by_us} MICROSECOND"


def among(ids: Sequence[bytes]) -> str:
    """Return the right side of `IN`."""
    return f"({', '.join(map(literal, ids))})"


def is_long(row: Mapping[str, Value]) -> bool:
    """Whether a row must not be made part of a `table`."""
    return any(isinstance(v, bytes | str) and len(v) >= LONG_BYTES_MIN for v in row.values())


def names(rows: Sequence[Mapping[str, Value]]) -> dict[str, str]:
    """Return how an expression refers to the values of rows: a single row's are literals."""
    if len(rows) == 1:
        return {name: literal(given) for name, given in rows[0].items()}
    return {name: f"a.`{name}`" for name in rows[0]}


def table(rows: Sequence[Mapping[str, Value]]) -> str:
    """Return rows as a table for FROM, in the only syntax that both servers know."""
    first, *others = rows
    selects = [", ".join(f"{literal(given)} AS `{name}`" for name, given in first.items())]
    selects += [", ".join(map(literal, row.values())) for row in others]
    return f"(SELECT {' UNION ALL SELECT '.join(selects)})"
