"""The statements of the SQLite store.

One statement serves as many rows as possible, because the interpreter's lock is released and taken
again around every step of a statement. Statements for several rows are functions of their number.
`pieces` cuts rows into a few sizes only, so that few prepared statements serve batches of any size.

Statements that write several rows say OR ROLLBACK: they are never undone alone, so SQLite keeps no
copies of the changed pages in a temporary file.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TypeVar

from oncekey.stores.sql import COLUMNS

T = TypeVar("T")

ROWS_MAX = 64


def pieces(rows: list[T]) -> Iterator[list[T]]:
    """Cut rows into lists of at most `ROWS_MAX`, whose lengths have at most two leading bits."""
    at = 0
    while left := min(len(rows) - at, ROWS_MAX):
        zeros = max(left.bit_length() - 2, 0)
        length = left >> zeros << zeros
        yield rows[at : at + length]
        at += length


def _values(columns: int, rows: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"VALUES {', '.join([row] * rows)}"


# ---------------------------------------------------------------------------------- reading

KEPT_AS = {"age_s": "created", "lease_left_s": "lease_until", "expires_in_s": "expires"}
"""The columns of a record that are stored as moments."""
_WHOLE = ", ".join([*(KEPT_AS.get(name, name) for name in COLUMNS), "boot"])
_BODILESS = _WHOLE.replace(", body,", ", NULL,")
_ANSWERS = "LEFT JOIN oncekey_answers USING (n)"
# Name the index. Otherwise SQLite may scan the table, if an application ran ANALYZE in the file
# while the table was almost empty. CROSS keeps the order of a join.
_BY_ID = "oncekey_claims INDEXED BY sqlite_autoindex_oncekey_claims_1"
_RUNNING = "oncekey_claims INDEXED BY oncekey_claims_running"
_ENDED = "oncekey_claims INDEXED BY oncekey_claims_ended"


@functools.cache
def find(ids: int) -> str:
    if ids == 1:
        return f"SELECT {_WHOLE} FROM {_BY_ID} {_ANSWERS} WHERE id = ?"  # noqa: S608
    given = f"({_values(1, ids)})"
    return f"SELECT {_WHOLE} FROM {given} CROSS JOIN {_BY_ID} ON id = column1 {_ANSWERS}"  # noqa: S608


SCAN = f"""
    SELECT {_BODILESS} FROM oncekey_claims {_ANSWERS}
    WHERE id > ? AND (? IS NULL OR state = ?) AND (? IS NULL OR tenant = ?) ORDER BY id LIMIT ?
"""  # noqa: S608
PEEK = "SELECT state, fence, boot, lease_until FROM oncekey_claims WHERE id = ?"
STEPS = """
    SELECT name, digest, result FROM oncekey_steps
    WHERE n = (SELECT n FROM oncekey_claims WHERE id = ?) ORDER BY at
"""
REQUESTED = """
    SELECT request FROM oncekey_requests WHERE n = (SELECT n FROM oncekey_claims WHERE id = ?)
"""
# Ranges of two indices, each cut to the limit; then the longest overdue first. What ran when the
# machine went down is the oldest of all.
_LAPSED = f"""
        SELECT * FROM (SELECT id, 1e18 AS overdue_s FROM {_RUNNING}
            WHERE state = 'running' AND boot < :boot {{only}} LIMIT :limit)
        UNION ALL SELECT * FROM (SELECT id, 1e18 FROM {_RUNNING}
            WHERE state = 'running' AND boot > :boot {{only}} LIMIT :limit)
        UNION ALL SELECT * FROM (SELECT id, :now - lease_until FROM {_RUNNING}
            WHERE state = 'running' AND boot = :boot AND lease_until <= :now {{only}}
            ORDER BY lease_until LIMIT :limit)
"""  # noqa: S608
DUE = f"""
    SELECT id FROM ({_LAPSED.format(only="")}
        UNION ALL SELECT * FROM (SELECT id, :wall - expires FROM {_ENDED}
            WHERE state <> 'running' AND expires <= :wall ORDER BY expires LIMIT :limit)
    ) ORDER BY overdue_s DESC LIMIT :limit
"""  # noqa: S608
ABANDONED = f"""
    SELECT id FROM ({_LAPSED.format(only="AND recovery <> 'rerun'")})
    ORDER BY overdue_s DESC LIMIT :limit
"""  # noqa: S608
COUNT = "SELECT state, count(*) FROM oncekey_claims GROUP BY state"

# ---------------------------------------------------------------------------------- writing

_OWNED = ("id", "token", "boot", "lease_until", "expires", "created")
_REQUEST = (
    *("lease_s", "retention_s", "schema_version", "fingerprint_version", "fingerprint"),
    *("recovery", "tenant", "operation", "key", "field_digests"),
)
_INSERTED = ("fence", *_OWNED, *_REQUEST)
FENCE_FLOOR = "SELECT fence_floor FROM oncekey_meta"

INSERT = f"""
    INSERT INTO oncekey_claims ({", ".join(_INSERTED)})
    VALUES (({FENCE_FLOOR}) + 1, {", ".join("?" * (len(_INSERTED) - 1))})
    ON CONFLICT (id) DO NOTHING RETURNING fence
"""  # noqa: S608


@functools.cache
def insert(rows: int) -> str:
    return f"""
        INSERT OR ROLLBACK INTO oncekey_claims ({", ".join(_INSERTED)})
        {_values(len(_INSERTED), rows)}
        ON CONFLICT (id) DO NOTHING
    """


RECLAIM = f"""
    UPDATE oncekey_claims SET {", ".join(f"{name} = ?" for name in _REQUEST)} WHERE id = ?
"""  # noqa: S608

SWAP = f"""
    UPDATE OR ROLLBACK {_BY_ID} SET
        state = ?, fence = fence + ?, token = ?, boot = ?, lease_until = ?, expires = ?,
        beat = beat + 1, attempt = coalesce(?, attempt), lapses = coalesce(?, lapses), no_effect = ?
    WHERE id = ? AND state = ? AND fence = ? AND token = ?
"""  # noqa: S608


def _change(rows: int, columns: int, condition: str, changes: dict[str, str]) -> str:
    """Change the records of the given rows, each of which begins with an id.

    This is an upsert that never inserts: an UPDATE that takes rows cannot make them the outer loop
    of the join. SQLite 3.46 and later were seen to scan the table instead.
    """
    kept = {name: name for name in _INSERTED} | changes
    return f"""
        INSERT OR ROLLBACK INTO oncekey_claims ({", ".join(kept)})
        SELECT {", ".join(kept.values())}
        FROM ({_values(columns, rows)}) CROSS JOIN {_BY_ID} ON id = column1
        WHERE {condition}
        ON CONFLICT (id) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in changes)}
    """  # noqa: S608


@functools.cache
def plain_swaps(rows: int) -> str:
    """Swap without changing fence and token. The parameters: the boot, then the rows, each with the
    expected id, state, fence and token, the new state and both deadlines.
    """
    changes = {"state": "column5", "boot": "?", "lease_until": "column6", "expires": "column7"}
    changes |= {"beat": "beat + 1", "no_effect": "0"}
    return _change(rows, 7, "state = column2 AND fence = column3 AND token = column4", changes)


@functools.cache
def keep_answers(rows: int) -> str:
    return f"""
        INSERT OR REPLACE INTO oncekey_answers (n, status, headers, body, resource_id)
        SELECT n, column2, column3, column4, column5
        FROM ({_values(5, rows)}) CROSS JOIN {_BY_ID} ON id = column1
    """  # noqa: S608


KEEP_REQUEST = """
    INSERT INTO oncekey_requests (n, request) SELECT n, ? FROM oncekey_claims WHERE id = ?
"""
FORGET_BEGUN = """
    DELETE FROM oncekey_steps
    WHERE n = (SELECT n FROM oncekey_claims WHERE id = ?) AND result IS NULL
"""
KEEP_STEP = """
    INSERT INTO oncekey_steps (n, name, digest, result)
    SELECT n, ?, ?, ? FROM oncekey_claims
    WHERE id = ? AND state = 'running' AND fence = ? AND token = ?
    ON CONFLICT (n, name) DO UPDATE
        SET digest = excluded.digest, result = coalesce(excluded.result, result)
"""


@functools.cache
def tally(rows: int) -> str:
    changes = {"replays": "replays + column2", "conflicts": "conflicts + column3"}
    return _change(rows, 3, "true", changes)


BEGIN_ANEW = "UPDATE oncekey_claims SET created = ?, replays = 0, conflicts = 0 WHERE n = ?"

# ----------------------------------------------------------------------- erasing and removing

EXPIRED = f"""
    SELECT n, coalesce(length(body), 0), fence FROM (
        SELECT * FROM (SELECT n, fence FROM {_ENDED}
            WHERE state <> 'running' AND expires <= ? ORDER BY expires LIMIT ?)
        UNION ALL SELECT n, fence FROM {_RUNNING}
            WHERE state = 'running' AND expires <= ? AND (boot <> ? OR lease_until <= ?)
        LIMIT ?
    ) LEFT JOIN oncekey_answers USING (n)
"""  # noqa: S608
PURGEABLE = """
    SELECT n, coalesce(length(body), 0) FROM oncekey_claims LEFT JOIN oncekey_answers USING (n)
    WHERE tenant = ? AND state <> 'running' AND key <> '' LIMIT ?
"""
BLANK_CLAIM = "UPDATE oncekey_claims SET key = '', field_digests = NULL WHERE n = ?"
BLANK_ANSWER = """
    UPDATE oncekey_answers SET headers = ?, body = NULL, resource_id = NULL WHERE n = ?
"""
BLANK_STEPS = "UPDATE oncekey_steps SET result = NULL WHERE n = ?"
REMOVE_CLAIM = "DELETE FROM oncekey_claims WHERE n = ?"
REMOVE_ANSWER = "DELETE FROM oncekey_answers WHERE n = ?"
REMOVE_STEPS = "DELETE FROM oncekey_steps WHERE n = ?"
