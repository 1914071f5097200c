"""What an inline row of PostgreSQL leaves out is read as it was given, and stays so on the way."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from oncekey._core import lifecycle
from oncekey._core.lifecycle import Held
from oncekey._core.op import run
from oncekey._core.record import Claim, Record
from oncekey._core.verbs import Find, Insert, Purge, Scan
from oncekey.stores.postgres import transactions
from oncekey.stores.postgres.layouts import INLINE, LAYOUTS, SEPARATE, move
from oncekey.testing.contract import Case
from oncekey.testing.contract.subject import ANSWER, FACES, timeless
from tests.stores.postgres.kit import TABLES, Connection, ignore_progress, migrated_database
from tests.stores.postgres.layouts import db, subject_of

__all__ = ["db"]

pytestmark = pytest.mark.slow
UUID = "8e03978e-40d5-43e8-bc93-6894a57f9324"
KEYS = [UUID, UUID.upper(), f"{{{UUID}}}", UUID.replace("-", ""), f"{UUID}\n", f"{UUID}0"]
USUAL: dict[str, Any] = {"lease_s": 30.0, "retention_s": 86_400.0, "fingerprint_version": 1}
UNUSUAL: dict[str, Any] = {"lease_s": 29.5, "retention_s": 86_401.0, "fingerprint_version": 2}


@pytest.fixture(scope="module")
def url(postgres_url: str) -> Iterator[str]:
    with migrated_database(postgres_url) as url:
        yield url


@pytest.fixture
def case(url: str, db: Connection) -> Iterator[Case]:
    subject = subject_of(url)
    db.execute(f"TRUNCATE {', '.join(TABLES)}".encode())
    move(subject.store, INLINE, ignore_progress)
    with closing(FACES["sync"](subject.store)) as face:
        yield Case(subject, face)


def claims(case: Case) -> list[Claim]:
    return [
        case.claim(key=key, tenant="leaving", **given) for key in KEYS for given in (USUAL, UNUSUAL)
    ]


def as_given(record: Record, claim: Claim) -> bool:
    names = ("key", "tenant", *USUAL)
    return all(getattr(record, name) == getattr(claim, name) for name in names)


def left_out(db: Connection) -> int:
    rows = db.execute(
        "SELECT count(*) FROM oncekey_claims WHERE (key, lease_s, retention_s, "
        "fingerprint_version, beat) IS NULL"
    ).fetchone()
    assert rows is not None
    return int(rows[0])


def test_p5_every_claim_is_read_as_it_was_given(case: Case, db: Connection) -> None:
    for claim in claims(case):
        case.ask(Insert(claim))
        assert as_given(case.find(claim.id), claim), claim
        assert case.find(claim.id).beat == 0
        assert case.done(case.complete(case.find(claim.id))).beat == 1
        assert as_given(case.find(claim.id), claim), claim
    assert left_out(db) == 1, "of one the key is a UUID as UUIDs are written, and all as usual"
    assert {record.key for record in case.ask(Scan(100))} == set(KEYS)


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != INLINE])
def test_a_move_says_all_and_leaves_it_out_again(case: Case, db: Connection, layout: str) -> None:
    for claim in claims(case):
        case.ask(Insert(claim))
    for record in case.ask(Scan(5)):
        case.done(case.complete(record))
    case.done(case.renew(case.ask(Scan(100))[-1]))
    kept = {record.id: timeless(record) for record in case.ask(Scan(100))}
    shorter = left_out(db)
    move(case.subject.store, layout, ignore_progress)
    assert {record.id: timeless(record) for record in case.ask(Scan(100))} == kept
    said = "key, lease_s, retention_s, fingerprint_version, beat, recovery, attempt"
    whole = f"SELECT count(*) FROM oncekey_claims WHERE ({said}) IS NOT NULL AND key_uuid IS NULL"
    assert db.execute(whole.encode()).fetchone() == (len(kept),), "as an older release needs it"
    move(case.subject.store, INLINE, ignore_progress)
    assert {record.id: timeless(record) for record in case.ask(Scan(100))} == kept
    assert left_out(db) <= shorter


def test_a_beat_that_was_left_out_is_counted(case: Case) -> None:
    """Completed, a record has had one; whoever runs it again goes on from there."""
    begun = case.begin(case.claim(key=UUID, schema_version=1))
    done = case.done(case.complete(begun))
    assert done.beat == 1
    again = case.done(case.take(done, schema_version=2))
    assert again.beat == 2
    case.done(case.renew(again))
    assert case.find(begun.id).beat == 3


def test_a_key_that_another_claim_brings_replaces_it(case: Case) -> None:
    record = case.begin(case.claim(key=UUID, **USUAL))
    case.lapse()
    taken = case.done(case.take(record, key="other", lease_s=7.0, retention_s=9.0))
    assert (taken.key, taken.lease_s, taken.retention_s) == ("other", 7.0, 9.0)


def test_p8_a_lease_that_was_left_out_is_shortened_where_it_is_too_long(
    case: Case, db: Connection
) -> None:
    record = case.begin(case.claim(key=UUID, **USUAL))
    db.execute("UPDATE oncekey_claims SET lease_until = lease_until + interval '1 hour'")
    assert case.done(lifecycle.shorten(case.find(record.id))).lease_left_s <= 30.0


def test_p12_a_purge_blanks_a_key_that_is_a_uuid(case: Case, db: Connection) -> None:
    for claim in claims(case):
        case.done(case.complete(case.begin(claim)))
    assert case.ask(Purge("leaving", 100)) == len(KEYS) * 2
    assert {record.key for record in case.ask(Scan(100))} == {""}
    left = "SELECT count(*) FROM oncekey_claims WHERE key <> '' OR key_uuid IS NOT NULL"
    assert db.execute(left).fetchone() == (0,)
    assert case.ask(Purge("leaving", 100)) == 0


@pytest.mark.parametrize("layout", [INLINE, SEPARATE])
def test_atomic_mode_leaves_out_the_same(case: Case, db: Connection, url: str, layout: str) -> None:
    move(case.subject.store, layout, ignore_progress)
    for claim in claims(case):
        complete = lifecycle.complete(Held(claim.id, 0, claim.token), ANSWER, retention_s=60.0)
        with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as caller:

            def ask(asked: Any, caller: Any = caller) -> Any:
                return caller.execute(asked.sql.encode(), asked.args).fetchall()

            assert run(transactions.hold(claim), ask).ours
            assert run(transactions.insert_completed(claim, complete), ask)
        assert as_given(case.ask(Find(claim.id)), claim)
        assert case.ask(Find(claim.id)).beat == 0
    numbers = "SELECT count(*) FROM oncekey_claims WHERE key_uuid IS NOT NULL"
    assert db.execute(numbers).fetchone() == (2 if layout == INLINE else 0,)


def test_a_usual_record_takes_little_room(case: Case, db: Connection) -> None:
    """Its answer and headers aside: row and line pointer, rounded up."""
    claim = dataclasses.replace(case.claim(key=str(uuid.uuid4()), **USUAL), tenant="single")
    case.ask(Insert(dataclasses.replace(claim, operation="POST /orders")))
    case.done(case.complete(case.find(claim.id), retention_s=86_400.0, resource_id=None))
    room = "SELECT pg_column_size(c.*) - length(headers) - length(body) FROM oncekey_claims c"
    [(taken,)] = db.execute(room).fetchall()
    assert taken <= 200
