"""The statements of the SQLite store: what they read through, and how rows are cut into pieces."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from oncekey._core.op import run
from oncekey._core.verbs import Insert, Inserted
from oncekey.stores.sqlite import statements
from oncekey.stores.sqlite.store import SqliteStore
from tests.stores.sqlite.worker import claim

ID, STEP = "sqlite_autoindex_oncekey_claims_1", "sqlite_autoindex_oncekey_steps_1"
RANGES = {"oncekey_claims_running", "oncekey_claims_ended"}

PLANS = {
    "due": (statements.DUE, RANGES),
    "abandoned": (statements.ABANDONED, {"oncekey_claims_running"}),
    "requested": (statements.REQUESTED, {ID}),
    "keep request": (statements.KEEP_REQUEST, {ID}),
    "expired": (statements.EXPIRED, RANGES),
    "purgeable": (statements.PURGEABLE, {"oncekey_claims_purgeable"}),
    "scan": (statements.SCAN, {ID}),
    "peek": (statements.PEEK, {ID}),
    "steps": (statements.STEPS, {ID, STEP}),
    "find one": (statements.find(1), {ID}),
    "find many": (statements.find(64), {ID}),
    "swap one": (statements.SWAP, {ID}),
    "swap two": (statements.plain_swaps(2), {ID}),
    "swap many": (statements.plain_swaps(64), {ID}),
    "answers": (statements.keep_answers(64), {ID}),
    "tally": (statements.tally(64), {ID}),
}


Explain = Callable[[Path, str, Any], list[str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with one record."""
    path = tmp_path / "keys.db"
    store = SqliteStore(path)
    connection = store.connect()
    run(store.prepare(), connection.ask)
    assert run(store.perform([Insert(claim("order-1"))]), connection.ask) == [Inserted(1)]
    connection.close()
    return path


def _by_python(path: Path, statement: str, told: Any) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return [row[3] for row in db.execute(statement, told)]


def _by_the_newest(path: Path, statement: str, told: Any) -> list[str]:
    db = apsw.Connection(str(path))
    try:
        return [str(row[3]) for row in db.execute(statement, told)]
    finally:
        db.close()


@pytest.fixture(params=[_by_python, _by_the_newest], ids=["python", "newest"])
def explain(request: pytest.FixtureRequest) -> Explain:
    """Asks an SQLite: the one that Python came with, or the newest there is."""
    asks: Explain = request.param
    return asks


def check_plan(explain: Explain, path: Path, name: str) -> None:
    statement, indices = PLANS[name]
    named = dict.fromkeys(("boot", "now", "wall", "limit"), 1)
    told = named if ":boot" in statement else [1] * statement.count("?")
    plan = explain(path, f"EXPLAIN QUERY PLAN {statement}", told)
    touched = [line for line in plan if "oncekey_claims" in line or "oncekey_steps" in line]
    for line in touched:
        assert any(index in line for index in indices), plan
    for index in indices:
        assert any(index in line for line in touched), plan
    assert not any(line.startswith("SCAN") and ID in line for line in plan), plan
    assert not any("AUTOMATIC" in line for line in plan), plan


@pytest.mark.parametrize("name", PLANS)
def test_p11_no_verb_reads_through_the_table(explain: Explain, path: Path, name: str) -> None:
    check_plan(explain, path, name)


@pytest.mark.parametrize("rows", [1, 1000])
@pytest.mark.parametrize("name", PLANS)
def test_p11_an_application_may_analyze_the_file_while_little_is_in_it(
    explain: Explain, path: Path, name: str, rows: int
) -> None:
    """How much there is at that moment, or runs, says nothing about how much there will be."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("ANALYZE")
        count = "UPDATE sqlite_stat1 SET stat = ? WHERE idx = ?"
        db.execute(count, (f"{rows} 1", ID))
        assert db.execute(count, ("1 1 1", "oncekey_claims_running")).rowcount == 1
    check_plan(explain, path, name)


@pytest.mark.parametrize("count", range(200))
def test_rows_are_cut_into_a_few_lengths(count: int) -> None:
    rows = list(range(count))
    pieces = list(statements.pieces(rows))
    assert [row for piece in pieces for row in piece] == rows
    assert {len(piece) for piece in pieces} <= {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}
    assert len(pieces) <= count // 64 + 3
