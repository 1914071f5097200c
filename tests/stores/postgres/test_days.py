"""What is kept by day in PostgreSQL: steps and requests are where their record expires, go along
when that changes, and are dropped with a day that no record needs any more.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from oncekey._core import lifecycle
from oncekey._core.op import run
from oncekey._core.record import Record, Step
from oncekey._core.verbs import AppendStep, Done, Purge, Requested, Steps, Swap, Sweep
from oncekey.errors import StoreUnavailable
from oncekey.stores.postgres import layouts
from oncekey.stores.postgres.layouts import INLINE, PARTITIONED, SEPARATE, MoveProgress, move
from oncekey.stores.postgres.statements import STATEMENTS
from oncekey.stores.postgres.store import PostgresStore, open_url
from oncekey.stores.postgres.verbs import Question
from oncekey.testing.contract import Case
from oncekey.testing.contract.subject import FACES, owner
from tests.stores.postgres.kit import (
    LOCK_WAIT,
    TABLES,
    Connection,
    database,
    ignore_progress,
    migrate,
    migrated_database,
    until,
)
from tests.stores.postgres.layouts import (
    BY_DAY,
    DAY_S,
    REQUEST,
    age,
    ask_in,
    day,
    db,
    fill,
    look,
    move_one_batch,
    parts,
    rival_of,
    subject_of,
)

__all__ = ["db"]

pytestmark = pytest.mark.slow
CHARGE, MAIL = Step("charge", b"d", b"r"), Step("mail", b"d", None)


@pytest.fixture(scope="module")
def url(postgres_url: str) -> Iterator[str]:
    with migrated_database(postgres_url) as url:
        yield url


@pytest.fixture
def case(url: str, db: Connection, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    """Empty, and kept by day; a batch is two records."""
    subject = subject_of(url)
    db.execute(f"TRUNCATE {', '.join(TABLES)}".encode())
    move(
        subject.store, INLINE, ignore_progress
    )  # so that only the parts of a new database are there
    move(subject.store, PARTITIONED, ignore_progress)
    monkeypatch.setattr(layouts, "BATCH_ROWS", 2)
    with closing(FACES["sync"](subject.store)) as face:
        yield Case(subject, face)


def begin_with_steps(case: Case, **changes: Any) -> Record:
    """Running, with a request and two steps."""
    record = case.begin(case.claim(request=REQUEST, recovery="resume", **changes))
    for step in (CHARGE, MAIL):
        append(case, record, step)
    return record


def append(case: Case, record: Record, step: Step) -> None:
    held = owner(record)
    assert case.ask(AppendStep(held.id, held.fence, held.token, step)) == Done(held.fence)


def kept_in(db: Connection, record: Record) -> dict[str, set[str]]:
    """The parts that hold something of a record."""
    return {
        whole: {
            name.removeprefix(f"{whole}_")
            for (name,) in db.execute(
                f"SELECT tableoid::regclass::text FROM {whole} WHERE id = %s".encode(),
                (record.id,),
            )
        }
        for whole in BY_DAY
    }


def expiry(db: Connection, record: Record) -> str:
    """The name of the day on which it expires."""
    named = "SELECT to_char(expires AT TIME ZONE 'UTC', 'YYYYMMDD') FROM oncekey_claims"
    [(name,)] = db.execute(f"{named} WHERE id = %s".encode(), (record.id,)).fetchall()
    return str(name)


def count(db: Connection, table: str) -> int:
    [(rows,)] = db.execute(f"SELECT count(*) FROM {table}".encode()).fetchall()
    return int(rows)


# ---------------------------------------------------------------------------------- the right day


def test_all_of_a_record_is_in_the_parts_of_the_day_on_which_it_expires(
    case: Case, db: Connection
) -> None:
    record = begin_with_steps(case, retention_s=DAY_S)
    assert kept_in(db, record) == {
        "oncekey_answers": set(),
        "oncekey_steps_by_day": {expiry(db, record)},
        "oncekey_requests_by_day": {expiry(db, record)},
    }
    assert (count(db, "oncekey_steps"), case.ask(Requested(record.id))) == (0, REQUEST)
    assert case.ask(Steps(record.id)) == [CHARGE, MAIL]
    case.done(case.complete(record, retention_s=DAY_S))
    assert kept_in(db, record) == {
        "oncekey_answers": {expiry(db, record)},
        "oncekey_steps_by_day": {expiry(db, record)},
        "oncekey_requests_by_day": set(),
    }


LATER: dict[str, Callable[[Record], Swap]] = {
    "renew": lambda r: lifecycle.renew(owner(r), lease_s=30.0, retention_s=2 * DAY_S),
    "release": lambda r: lifecycle.release(owner(r), no_effect=False, retention_s=2 * DAY_S),
    "give up": lambda r: lifecycle.give_up(
        owner(r), new_token=b"new" * 6, lapses=1, retention_s=2 * DAY_S
    ),
    "doubt": lambda r: lifecycle.doubt(r, new_token=b"new" * 6, retention_s=2 * DAY_S),
}


@pytest.mark.parametrize("how", LATER)
def test_p10_what_expires_later_is_not_in_the_part_of_an_earlier_day(
    case: Case, db: Connection, how: str
) -> None:
    """A step that is lost with its day would be run again."""
    record = begin_with_steps(case)
    gone = age(db)
    case.done(LATER[how](case.find(record.id)))
    case.ask(Sweep(10))
    for whole in BY_DAY:
        assert gone not in parts(db, whole)
    assert case.ask(Steps(record.id)) == [CHARGE, MAIL]
    assert case.ask(Requested(record.id)) == (REQUEST if how == "renew" else None)
    assert count(db, "oncekey_requests_by_day") == (how == "renew"), "P12: not only out of sight"
    assert kept_in(db, record)["oncekey_steps_by_day"] == {expiry(db, record)}


def test_p10_a_take_over_carries_steps_along_and_brings_a_request_of_its_own(
    case: Case, db: Connection
) -> None:
    record = begin_with_steps(case)
    case.lapse()
    taken = case.done(case.take(case.find(record.id), retention_s=2 * DAY_S, request=b"newer"))
    assert case.ask(Requested(record.id)) == b"newer"
    assert case.ask(Steps(record.id)) == [CHARGE, MAIL]
    append(case, taken, Step("mail", b"d", b"sent"))
    assert case.ask(Steps(record.id)) == [CHARGE, Step("mail", b"d", b"sent")]
    assert count(db, "oncekey_requests_by_day") == 1
    assert kept_in(db, record)["oncekey_requests_by_day"] == {expiry(db, record)}


def test_what_begins_anew_leaves_nothing_of_before(case: Case, db: Connection) -> None:
    record = begin_with_steps(case)
    case.expire()
    case.done(case.take(case.find(record.id)))
    assert (case.ask(Steps(record.id)), case.ask(Requested(record.id))) == ([], None)
    assert count(db, "oncekey_steps_by_day") == count(db, "oncekey_requests_by_day") == 0


def test_p12_a_purge_blanks_steps_in_parts(case: Case, db: Connection) -> None:
    record = begin_with_steps(case, tenant="leaving")
    case.done(case.complete(record))
    assert case.ask(Purge("leaving", 10)) == 1
    assert [step.result for step in case.ask(Steps(record.id))] == [None, None]
    kept = "SELECT count(*) FROM oncekey_steps_by_day WHERE result IS NOT NULL"
    assert db.execute(kept).fetchone() == (0,)


# --------------------------------------------------------------------------------------- the drop


def test_p10_a_day_goes_with_all_that_was_kept_under_it_and_nothing_else(
    case: Case, db: Connection
) -> None:
    for _ in range(2):
        case.done(case.complete(begin_with_steps(case)))
    begin_with_steps(case)
    unknown = begin_with_steps(case)
    case.done(LATER["give up"](unknown))
    gone = age(db)
    live = begin_with_steps(case)
    assert case.ask(Sweep(2)) == 2
    assert all(gone in parts(db, whole) for whole in BY_DAY), "one record is not swept yet"
    assert count(db, "oncekey_steps_by_day") == 10, "not one by one"
    assert case.ask(Sweep(2)) == 1
    assert not any(gone in parts(db, whole) for whole in BY_DAY)
    assert count(db, "oncekey_steps_by_day") == 4
    assert case.ask(Steps(live.id)) == case.ask(Steps(unknown.id)) == [CHARGE, MAIL]
    assert case.ask(Requested(live.id)) == REQUEST


def test_p12_a_request_is_gone_as_soon_as_its_record_is_swept(case: Case, db: Connection) -> None:
    begin_with_steps(case)
    case.expire()
    assert case.ask(Sweep(1)) == 1, "and the day is not turned"
    assert (count(db, "oncekey_requests_by_day"), count(db, "oncekey_steps_by_day")) == (0, 2)


def test_p10_a_step_that_is_being_written_keeps_its_day(
    case: Case, db: Connection, url: str
) -> None:
    """Its record has expired and was not swept: it may still be completed, and be asked for."""
    record = begin_with_steps(case)
    gone, late = age(db), Step("late", b"d", b"r")
    with rival_of(url) as rival:
        rival.execute("SELECT FROM oncekey_claims FOR UPDATE")
        assert case.ask(Sweep(10)) == 0
        assert all(gone in parts(db, whole) for whole in BY_DAY)
        rival.commit()
        held = owner(record)
        write = case.subject.store.perform([AppendStep(held.id, held.fence, held.token, late)])
        assert run(write, ask_in(rival)) == [Done(record.fence)]
        assert case.ask(Sweep(10)) == 0
        rival.commit()
    assert gone in parts(db, "oncekey_steps_by_day")
    case.done(case.complete(record))
    case.ask(Sweep(10))
    assert gone not in parts(db, "oncekey_steps_by_day")
    assert case.ask(Steps(record.id)) == [CHARGE, MAIL, late]


def test_days_that_occur_have_parts_however_far_away(case: Case, db: Connection) -> None:
    first = begin_with_steps(case, retention_s=90 * DAY_S)
    assert kept_in(db, first)["oncekey_steps_by_day"] == {"other"}, "it came before its part"
    case.ask(Sweep(1))
    later = [begin_with_steps(case, retention_s=n * DAY_S) for n in (91, 92)]
    for record in later:
        case.done(case.complete(record, retention_s=91 * DAY_S))
        assert kept_in(db, record)["oncekey_answers"] == {expiry(db, record)}
        assert kept_in(db, record)["oncekey_steps_by_day"] == {expiry(db, record)}
    assert all(day(db, 50) not in parts(db, whole) for whole in BY_DAY), "nothing expires then"


def test_p11_at_most_a_hundred_days_ahead_have_parts(case: Case, db: Connection) -> None:
    last = [case.begin(case.claim(retention_s=n * DAY_S)) for n in range(105)][-1]
    case.ask(Sweep(1))
    for whole in BY_DAY:
        assert 100 <= len(parts(db, whole) - {"other"}) <= 101  # as midnight may have passed
        assert expiry(db, last) not in parts(db, whole)
    append(case, last, CHARGE)
    assert kept_in(db, last)["oncekey_steps_by_day"] == {"other"}


# ---------------------------------------------------------------------------------------- moving


@pytest.mark.parametrize("other", [INLINE, SEPARATE])
@pytest.mark.parametrize("back", [False, True])
def test_steps_and_requests_are_written_during_a_move(
    case: Case, db: Connection, other: str, back: bool
) -> None:
    if not back:
        move(case.subject.store, other, ignore_progress)
    records = [begin_with_steps(case) for _ in range(6)]
    expected = {record.id: [CHARGE, MAIL] for record in records}

    def watch(_: MoveProgress | None) -> None:
        records.append(begin_with_steps(case))
        expected[records[-1].id] = [CHARGE, MAIL]
        for record in records:
            step = Step(f"step {len(expected[record.id])}", b"d", b"r")
            append(case, record, step)
            expected[record.id].append(step)
        assert {i: case.ask(Steps(i)) for i in expected} == expected
        assert {case.ask(Requested(i)) for i in expected} == {REQUEST}

    move(case.subject.store, other if back else PARTITIONED, watch)
    watch(None)
    assert min(len(expected[record.id]) for record in records[:6]) > 3
    empty, full = ("oncekey_steps_by_day", "oncekey_steps")[:: 1 if back else -1]
    assert (count(db, empty), count(db, full)) == (0, sum(map(len, expected.values())))
    requests = 0 if back else len(records)
    assert count(db, "oncekey_requests_by_day") == requests


@pytest.mark.parametrize("to", [PARTITIONED, INLINE])
def test_a_step_that_the_move_has_waited_for_is_taken_along(
    case: Case, db: Connection, url: str, to: str
) -> None:
    """It was committed after the batch had begun, whose first snapshot does not show it."""
    store = case.subject.store
    move(store, INLINE if to == PARTITIONED else PARTITIONED, ignore_progress)
    record = begin_with_steps(case)
    db.execute("UPDATE oncekey_schema SET layout = %s WHERE number IN (4, 5)", (to,))
    name = "move_out_of_claims" if to == PARTITIONED else "move_into_claims"
    if to == PARTITIONED:
        with closing(store.connect()) as connection:
            connection.ask(Question("UPDATE oncekey_schema SET layout = 'inline'"))
            run(layouts._replace_table(True), connection.ask)
        db.execute("UPDATE oncekey_schema SET layout = %s WHERE number IN (4, 5)", (to,))
    held, late = owner(record), Step("late", b"d", b"r")
    with rival_of(url) as writer, rival_of(url) as mover, ThreadPoolExecutor(1) as thread:
        write = store.perform([AppendStep(held.id, held.fence, held.token, late)])
        assert run(write, ask_in(writer)) == [Done(record.fence)]
        moving = thread.submit(move_one_batch, mover, name)
        until(db, LOCK_WAIT)
        writer.commit()
        moving.result()
        mover.commit()
    assert case.ask(Steps(record.id)) == [CHARGE, MAIL, late]
    assert case.ask(Requested(record.id)) == REQUEST
    move(store, to, ignore_progress)


def test_a_sweep_leaves_no_step_that_was_moved_after_it_began(
    case: Case, db: Connection, url: str
) -> None:
    begin_with_steps(case)
    case.expire()
    db.execute("UPDATE oncekey_schema SET layout = 'inline' WHERE number IN (4, 5)")
    slowly = STATEMENTS["sweep"].replace(
        "WHERE c.expires <=", "WHERE pg_advisory_xact_lock(1) IS NOT NULL AND c.expires <="
    )
    assert slowly != STATEMENTS["sweep"]
    with rival_of(url) as mover, rival_of(url) as sweeper, ThreadPoolExecutor(1) as thread:
        mover.execute("SELECT pg_advisory_xact_lock(1)")
        move_one_batch(mover, "move_into_claims")
        swept = thread.submit(sweeper.execute, slowly.encode(), (10,))
        until(db, LOCK_WAIT)
        mover.commit()
        swept.result()
        sweeper.commit()
    case.ask(Sweep(10))
    assert [count(db, table) for table in TABLES] == [0] * len(TABLES)


class Losing:
    """Connections of which one question gets no reply: it was not sent, or carried out."""

    def __init__(self, store: PostgresStore, number: int, *, carried_out: bool) -> None:
        self._connection = store.connect()
        self._left, self._carried_out = number, carried_out

    def ask(self, question: Any) -> Any:
        self._left -= 1
        if self._left >= 0:
            return self._connection.ask(question)
        if self._carried_out:
            self._connection.ask(question)
        self._connection.close()
        raise StoreUnavailable("cut", sent=self._carried_out)

    def close(self) -> None:
        self._connection.close()


class Meeting:
    """A connection that is met by somebody each time it has held records and is about to move."""

    def __init__(self, store: PostgresStore, meet: Callable[[], None]) -> None:
        self._connection, self._meet = store.connect(), meet

    def ask(self, question: Any) -> Any:
        if question.sql == STATEMENTS["move_into_claims"]:
            self._meet()
        return self._connection.ask(question)

    def close(self) -> None:
        self._connection.close()


def test_p2_nobody_writes_a_step_within_a_batch(
    case: Case, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = case.subject.store
    record, written = begin_with_steps(case), []

    with ThreadPoolExecutor(1) as thread:

        def meet() -> None:
            written.append(thread.submit(append, case, record, Step("late", b"d", b"r")))
            until(db, LOCK_WAIT)

        monkeypatch.setattr(layouts, "_connect", lambda _: Meeting(store, meet))
        move(store, INLINE, ignore_progress)
    [appended] = written
    appended.result()
    assert case.ask(Steps(record.id)) == [CHARGE, MAIL, Step("late", b"d", b"r")]


@pytest.mark.parametrize("carried_out", [False, True])
def test_p9_a_move_that_loses_any_reply_has_lost_nothing(
    case: Case, monkeypatch: pytest.MonkeyPatch, carried_out: bool
) -> None:
    store: Any = case.subject.store
    kept = fill(case)
    for to in (INLINE, PARTITIONED):
        for number in range(200):
            losing = Losing(store, number, carried_out=carried_out)
            monkeypatch.setattr(layouts, "_connect", lambda _, given=losing: given)
            try:
                move(store, to, ignore_progress)
                break
            except StoreUnavailable:
                assert look(case) == kept, (to, number)
        else:
            raise AssertionError("a move never ends")
        monkeypatch.undo()
        assert number > 8
        assert look(case) == kept


# ------------------------------------------------------------------------------------ permissions


def test_who_may_use_steps_may_use_what_the_migration_adds(postgres_url: str) -> None:
    role = f"shop_{uuid.uuid4().hex}"
    with database(postgres_url) as url, psycopg.connect(url, autocommit=True) as db:
        store = open_url(f"{url}?allow=unsafe-durability")
        migrate(store)
        db.execute(f"CREATE ROLE {role}".encode())
        db.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON oncekey_steps TO {role}".encode())
        db.execute("DROP TABLE oncekey_steps_by_day, oncekey_requests_by_day")
        db.execute("DROP FUNCTION oncekey_carry; DELETE FROM oncekey_schema WHERE number = 5")
        db.execute("ALTER TABLE oncekey_claims DROP COLUMN kept_day")
        assert migrate(store) == ["0005_days"]
        for table in ("oncekey_steps_by_day", "oncekey_requests_by_day"):
            for right in ("SELECT", "INSERT", "UPDATE", "DELETE"):
                may = db.execute("SELECT has_table_privilege(%s, %s, %s)", (role, table, right))
                assert may.fetchone() == (True,)
        db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
