"""Rows of a real MariaDB that somebody holds, and deadlocks: who waits, for what, and how long."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from oncekey._core.op import run
from oncekey._core.record import Record, State, Step
from oncekey._core.verbs import AppendStep, Done, Find, Found, Insert, Inserted, Purge, Steps, Sweep
from oncekey.errors import StoreUnavailable
from oncekey.stores.base import AGAIN
from oncekey.stores.sql_batch import RowHeld
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import FACES
from tests.servers.mariadb import mysql_connection
from tests.stores.mysql.kit import LOCK_WAIT, case_of, lock_rows, until
from tests.stores.mysql.test_store import case, db, patient_url
from tests.stores.postgres.kit import both_faces

__all__ = ["case", "db", "patient_url"]

pytestmark = pytest.mark.slow


def begin_with_steps(case: Case, *results: bytes | None, **claim: Any) -> Record:
    """A running record with these steps."""
    record = case.begin(case.claim(**claim))
    for number, result in enumerate(results):
        step = Step(f"step {number}", b"", result)
        assert isinstance(case.ask(AppendStep(record.id, record.fence, record.token, step)), Done)
    return record


@both_faces
def test_p11_a_row_that_stays_held_is_given_up(
    mariadb: Subject, mariadb_url: str, face: str
) -> None:
    """F12: 1205 undoes a statement only; alone it is asked `TRIES_MAX` times, then told."""
    with contextlib.closing(FACES[face](mariadb.store)) as asked:
        case = Case(mariadb, asked)
        record = case.begin()
        append = AppendStep(record.id, record.fence, record.token, Step("pay", b"", b"paid"))
        with lock_rows(mariadb_url, record.id):
            with pytest.raises(StoreUnavailable, match="holds the record"):
                case.ask(case.complete(record))
            with pytest.raises(StoreUnavailable, match="holds the record"):
                case.ask(append)
            found = case.ask(Insert(case.rival(record)))
            assert isinstance(found, Found)  # whoever only looks does not wait
        assert case.ask(Steps(record.id)) == []
        assert case.ask(case.complete(record)) == Done(record.fence)


def test_a_batch_waits_for_no_row_and_writes_the_others(
    mariadb: Subject, mariadb_url: str, case: Case
) -> None:
    store = mariadb.store
    records = sorted((case.begin() for _ in range(4)), key=lambda record: record.id)
    with contextlib.closing(store.connect()) as connection, lock_rows(mariadb_url, records[1].id):
        verbs = [
            case.complete(records[0]),
            case.complete(records[1]),
            case.release(records[2]),
            case.complete(records[3]),
        ]
        outcomes = run(store.perform(verbs), connection.ask)
        step = Step("pay", b"", b"paid")
        running = [case.begin(), case.begin(), records[1]]
        appends = [AppendStep(each.id, each.fence, each.token, step) for each in running]
        kept = run(store.perform(appends), connection.ask)
    fences = [record.fence for record in records]
    assert outcomes == [Done(fences[0]), AGAIN, Done(fences[2]), Done(fences[3])]
    assert [type(each) for each in kept] == [Done, Done, type(AGAIN)]
    states = [case.find(record.id).state for record in records]
    assert states == [State.COMPLETED, State.RUNNING, State.RELEASED, State.COMPLETED]
    assert case.ask(Steps(records[1].id)) == []


def test_a_batch_of_claims_falls_apart_where_one_of_them_is_being_made(
    mariadb: Subject, mariadb_url: str, case: Case
) -> None:
    """Somebody inserts the same id and has not committed: only that one waits."""
    store = mariadb.store
    claims = sorted((case.claim() for _ in range(3)), key=lambda claim: claim.id)
    with contextlib.closing(store.connect()) as ours, contextlib.closing(store.connect()) as other:
        [question, *_] = _questions(store.perform([Insert(claims[1])]))
        rival = mysql_connection(mariadb_url, autocommit=False)
        with contextlib.closing(rival), rival.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor.execute(question.statements[1])
            outcomes = run(store.perform([Insert(claim) for claim in claims]), ours.ask)
            assert outcomes == [AGAIN] * 3
            alone = [run(store.perform([Insert(claims[at])]), ours.ask)[0] for at in (0, 2)]
            assert [type(outcome) for outcome in alone] == [Inserted, Inserted]
            with pytest.raises(RowHeld):
                run(store.perform([Insert(claims[1])]), other.ask)
            rival.rollback()
        [outcome] = run(store.perform([Insert(claims[1])]), other.ask)
        assert isinstance(outcome, Inserted)


def _questions(op: Any) -> list[Any]:
    question = next(op)
    op.close()
    return [question]


@pytest.mark.parametrize("count", [1, 100])
def test_p11_who_resolves_waits_for_no_step_of_another_record(
    mariadb: Subject, mariadb_url: str, case: Case, count: int
) -> None:
    """Of a table that is not much longer a server would rather read the whole."""
    other, *records = (begin_with_steps(case, b"paid", None) for _ in range(count + 1))
    case.lapse()
    unknown = [case.done(case.doubt(case.find(record.id))) for record in records]
    verbs = [case.resolve(record, None) for record in sorted(unknown, key=lambda r: r.id)]
    with (
        contextlib.closing(mariadb.store.connect()) as connection,
        lock_rows(mariadb_url, other.id, table="oncekey_steps"),
    ):
        outcomes = run(mariadb.store.perform(verbs), connection.ask)
    assert [type(outcome) for outcome in outcomes] == [Done] * count
    kept = [[step.result for step in case.ask(Steps(each.id))] for each in (other, *records)]
    assert kept == [[b"paid", None], *[[b"paid"]] * count]


@pytest.mark.parametrize("count", [1, 100])
def test_p11_who_purges_waits_for_nothing_of_another_tenant(
    mariadb_url: str, case: Case, count: int
) -> None:
    other = begin_with_steps(case, b"paid")
    leaving = [begin_with_steps(case, b"paid", tenant="leaving") for _ in range(count)]
    for record in leaving:
        case.done(case.complete(record))
    with lock_rows(mariadb_url, other.id), lock_rows(mariadb_url, other.id, table="oncekey_steps"):
        assert case.ask(Purge("leaving", 1_000)) == count
    kept = [[step.result for step in case.ask(Steps(each.id))] for each in (other, *leaving)]
    assert kept == [[b"paid"], *[[None]] * count]


def test_a_deadlock_is_asked_again_and_nothing_is_half_done(
    patient_url: str, mariadb_url: str, db: Any
) -> None:
    """F12: 1213 undoes the whole transaction; the same question is then asked anew."""
    with case_of("sync", patient_url, mariadb_url) as case, ThreadPoolExecutor(1) as meanwhile:
        first, second = sorted((case.stage(State.COMPLETED) for _ in range(2)), key=lambda r: r.id)
        before = _deadlocks(db)
        with lock_rows(mariadb_url, second.id) as rival:
            # Whoever has written less is the victim.
            rival.execute("CREATE TEMPORARY TABLE weight (n INT) ENGINE = InnoDB")
            rival.execute("INSERT INTO weight SELECT 1 FROM seq_1_to_100")
            purging = meanwhile.submit(case.ask, Purge(first.tenant, 10))
            until(db, LOCK_WAIT)
            rival.execute("SELECT 1 FROM oncekey_claims WHERE id = %s FOR UPDATE", (first.id,))
        assert _deadlocks(db) > before
        assert purging.result() == 2
        assert [case.find(record.id).key for record in (first, second)] == ["", ""]


def _deadlocks(db: Any) -> int:
    with db.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")
        return int(cursor.fetchone()[1])


def test_a_sweep_passes_over_what_somebody_holds(mariadb_url: str, case: Case) -> None:
    held, free = case.stage(State.COMPLETED), case.stage(State.COMPLETED)
    case.elapse(held.expires_in_s + 1)
    with lock_rows(mariadb_url, held.id):
        assert case.ask(Sweep(10)) == 1
        assert case.ask(Find(free.id)) is None
    assert case.ask(Sweep(10)) == 1
