"""SQLite in a transaction of the caller's, whose connection has settings of its own."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncekey._core.record import Step
from oncekey._core.verbs import AppendStep, Done, Find, Refused, Steps, Verb
from oncekey.errors import Misuse
from oncekey.stores import transactions
from oncekey.stores.sqlite.store import SqliteStore
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import ANSWER, FACES
from tests.stores import elapse

ODD = {
    "case_sensitive_like": "ON",
    "cell_size_check": "ON",
    "defer_foreign_keys": "ON",
    "foreign_keys": "ON",
    "full_column_names": "ON",
    "ignore_check_constraints": "ON",
    "legacy_alter_table": "ON",
    "recursive_triggers": "ON",
    "reverse_unordered_selects": "ON",
    "secure_delete": "OFF",
    "short_column_names": "OFF",
    "trusted_schema": "OFF",
}


def perform_in_transaction(path: Path, *verbs: Verb, **how: Any) -> list[Any]:
    """What they come to in a transaction on a connection that has all of it."""
    with contextlib.closing(sqlite3.connect(path, **how)) as connection:
        for name, value in ODD.items():
            connection.execute(f"PRAGMA {name} = {value}").fetchall()
        connection.execute("BEGIN IMMEDIATE")
        outcomes = transactions.perform(SqliteStore(path), connection, verbs)
        connection.commit()
    return outcomes


@pytest.fixture
def case(tmp_path: Path) -> Any:
    store = SqliteStore(tmp_path / "keys.db")
    with contextlib.closing(FACES["sync"](store)) as face:
        yield Case(Subject(store, elapse=elapse.never), face)


def test_a_callers_connection_may_have_any_of_them(tmp_path: Path, case: Case) -> None:
    record = case.begin()
    steps = [Step(name, b"", b"x") for name in ("one", "two", "three")]
    appended = [AppendStep(record.id, record.fence, record.token, step) for step in steps]
    path = tmp_path / "keys.db"
    how = {"detect_types": sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES}
    verbs: list[Verb] = [*appended, Steps(record.id), Find(record.id), case.complete(record)]
    *done, listed, found, completed = perform_in_transaction(path, *verbs, **how)
    assert done == [Done(record.fence)] * 3
    assert listed == steps
    case.same(found, record)
    assert completed == Done(record.fence)
    assert case.find(record.id).answer == ANSWER
    [refused] = perform_in_transaction(path, case.renew(record))
    assert isinstance(refused, Refused)


@pytest.mark.parametrize("given", [bytes, bytearray])
def test_one_that_gives_texts_as_bytes_is_refused_by_name(
    tmp_path: Path, case: Case, given: Callable[[bytes], Any]
) -> None:
    record = case.begin()
    with contextlib.closing(sqlite3.connect(tmp_path / "keys.db")) as connection:
        connection.text_factory = given
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(Misuse, match="text_factory"):
            transactions.perform(case.subject.store, connection, [Find(record.id)])
