"""Sealed records that were changed directly in the inner store: whatever does not open is
refused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oncekey._core import lifecycle
from oncekey._core.notice import KEYRING
from oncekey._core.op import run
from oncekey._core.record import Record, Step
from oncekey._core.verbs import (
    AppendStep,
    Done,
    Find,
    Found,
    Insert,
    Inserted,
    Refused,
    Requested,
    Scan,
    Steps,
)
from oncekey.errors import CorruptRecord, StoreUnavailable
from oncekey.stores.base import AGAIN
from oncekey.stores.batching import Gatherer
from oncekey.stores.memory import MemoryStore
from oncekey.stores.sealed.store import SealedStore
from oncekey.stores.sqlite.store import SqliteStore
from oncekey.testing.contract.subject import new_token
from tests.stores.sealed.kit import SECRET, ask
from tests.stores.sealed.world import claim, clock, inner, insert_completed, store

__all__ = ["clock", "inner", "store"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture
def raw(path: Path) -> Iterator[Callable[..., None]]:
    """Change stored records directly in the inner store."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA busy_timeout = 20000")

        def change(statement: str, *given: Any) -> None:
            assert db.execute(statement, given).rowcount

        yield change


TOUCHED = {
    "claims.id": "UPDATE oncekey_claims SET id = zeroblob(32) WHERE operation = 'POST /orders'",
    "claims.tenant": "UPDATE oncekey_claims SET tenant = 'acct_2'",
    "claims.operation": "UPDATE oncekey_claims SET operation = 'POST /refunds'",
    "claims.key": "UPDATE oncekey_claims SET key = 'b' || substr(key, 2)",
    "claims.key, plain": "UPDATE oncekey_claims SET key = 'order-17'",
    "claims.fingerprint": "UPDATE oncekey_claims SET fingerprint = zeroblob(60)",
    "claims.fingerprint, plain": "UPDATE oncekey_claims SET fingerprint = zeroblob(32)",
    "claims.fingerprint_version": "UPDATE oncekey_claims SET fingerprint_version = 2",
    "claims.recovery": "UPDATE oncekey_claims SET recovery = 'rerun'",
    "claims.schema_version": "UPDATE oncekey_claims SET schema_version = 2",
    "claims.token": "UPDATE oncekey_claims SET token = zeroblob(16)",
    "answers.status": "UPDATE oncekey_answers SET status = 200",
    "answers.resource_id": "UPDATE oncekey_answers SET resource_id = 'order_2'",
    "answers.headers": "UPDATE oncekey_answers SET headers = x'010001000000016162'",
    "answers.body": "UPDATE oncekey_answers SET body = substr(body, 1, length(body) - 1)",
    "answers.body, plain": "UPDATE oncekey_answers SET body = CAST('created' AS BLOB)",
    "answers.body, empty": "UPDATE oncekey_answers SET body = x''",
}


@pytest.mark.parametrize("field", TOUCHED)
def test_p12_whatever_was_changed_is_refused_and_not_run(
    path: Path, raw: Callable[..., None], field: str
) -> None:
    store = SealedStore(SqliteStore(path), [SECRET])
    claimed = insert_completed(store, recovery="block")
    statement = TOUCHED[field]
    where = " AND " if "WHERE" in statement else " WHERE "
    ours = f"n = (SELECT n FROM oncekey_claims WHERE operation <> '{KEYRING}')"
    raw(statement + where + ours)
    retry = Insert(replace(claimed, token=new_token()))
    if field == "claims.id":  # this removes the record, which cannot be detected
        assert isinstance(ask(store, retry)[0], Inserted)
        return
    with pytest.raises(CorruptRecord):
        ask(store, retry)
    with pytest.raises(CorruptRecord):
        ask(store, Find(claimed.id))


@pytest.mark.parametrize("column", ["name", "digest", "result"])
def test_p12_a_step_that_was_changed_is_not_taken_for_another(
    path: Path, raw: Callable[..., None], column: str
) -> None:
    store = SealedStore(SqliteStore(path), [SECRET])
    claimed = claim()
    ask(
        store,
        Insert(claimed),
        *(
            AppendStep(claimed.id, 1, claimed.token, Step(name, b"d", name.encode()))
            for name in ("pay", "mail")
        ),
    )
    other = f"(SELECT {column} || '' FROM oncekey_steps WHERE at = 2)"
    if column == "name":
        raw("UPDATE oncekey_steps SET name = 'x' WHERE at = 1")
    else:
        raw(f"UPDATE oncekey_steps SET {column} = CAST({other} AS BLOB) WHERE at = 1")
    with pytest.raises(CorruptRecord):
        ask(store, Steps(claimed.id))


def test_p12_a_request_that_was_changed_or_moved_is_not_run(
    path: Path, raw: Callable[..., None]
) -> None:
    store = SealedStore(SqliteStore(path), [SECRET])
    one, two = (claim(recovery="resume", request=name) for name in (b"one", b"two"))
    ask(store, Insert(one), Insert(two))
    raw(
        "UPDATE oncekey_requests SET request = (SELECT request FROM oncekey_requests WHERE n = 3) "
        "WHERE n = 2"
    )
    with pytest.raises(CorruptRecord):
        ask(store, Requested(one.id))
    assert ask(store, Requested(two.id)) == [b"two"]


def test_p12_an_answer_does_not_open_under_another_record(
    path: Path, raw: Callable[..., None]
) -> None:
    store = SealedStore(SqliteStore(path), [SECRET])
    one = insert_completed(store)
    insert_completed(store, token=one.token)
    raw(
        "UPDATE oncekey_answers SET body = (SELECT body FROM oncekey_answers WHERE n = 3) "
        "WHERE n = 2"
    )
    with pytest.raises(CorruptRecord, match="does not open"):
        ask(store, Find(one.id))


def test_what_does_not_open_fails_alone(path: Path, raw: Callable[..., None]) -> None:
    """Its neighbours in a batch succeed, and none of their verbs is repeated."""
    store = SealedStore(SqliteStore(path), [SECRET])
    bad, good, new = insert_completed(store), insert_completed(store), claim()
    raw("UPDATE oncekey_answers SET status = 500 WHERE n = 2")
    with closing(store.connect()) as connection:
        verbs = [Insert(replace(each, token=new_token())) for each in (bad, good, new)]
        first, second, third = run(store.perform(verbs), connection.ask)
    assert first is AGAIN
    assert isinstance(second, Found)
    assert isinstance(third, Inserted)
    with closing(Gatherer(store)) as gatherer, pytest.raises(CorruptRecord):
        gatherer.ask(verbs[0])


def test_p9_a_second_look_that_fails_denies_no_claim_of_its_batch() -> None:
    """If it said that nothing was sent, the handler could run a second time
    (`store_down="run"`).
    """

    class Busy(MemoryStore):
        def perform(self, verbs: Any) -> Any:
            if type(verbs[0]) is Requested:
                raise StoreUnavailable("busy", sent=False)
            return (yield from super().perform(verbs))

    store = SealedStore(Busy(), [SECRET])
    orphan, new = claim(recovery="resume", request=b"POST"), claim()
    ask(store, Insert(orphan))
    [[shown]] = ask(store, Scan(1))
    with closing(store.connect()) as connection:
        found, inserted = run(store.perform([Find(shown.id), Insert(new)]), connection.ask)
    assert found is AGAIN
    assert isinstance(inserted, Inserted)


def test_one_id_in_two_forms_is_changed_once_in_a_batch(store: SealedStore) -> None:
    claimed = claim()
    ask(store, Insert(claimed))
    [[shown]] = ask(store, Scan(1))
    held = [lifecycle.Held(given, 1, claimed.token) for given in (claimed.id, shown.id)]
    swaps = [lifecycle.release(each, no_effect=False, retention_s=600.0) for each in held]
    with closing(store.connect()) as connection:
        assert run(store.perform(swaps), connection.ask) == [Done(1), AGAIN]
        [refused] = run(store.perform([swaps[1]]), connection.ask)
    assert isinstance(refused, Refused)
    assert isinstance(refused.record, Record)
