"""Moves between PostgreSQL's layouts beside whoever else is there: old snapshots, held rows,
vacuum, other owners and search paths, purges and sweeps at the same moment.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from oncekey._core import lifecycle
from oncekey._core.op import run
from oncekey._core.record import Answer, Record
from oncekey._core.verbs import Done, Find, Purge, Sweep
from oncekey.errors import StoreUnavailable
from oncekey.stores.postgres import layouts
from oncekey.stores.postgres.layouts import INLINE, PARTITIONED, SEPARATE, MoveProgress, move
from oncekey.stores.postgres.statements import STATEMENTS
from oncekey.stores.postgres.store import open_url
from oncekey.testing.contract import Case
from oncekey.testing.contract.subject import FACES, owner
from tests.stores.postgres.kit import (
    LOCK_WAIT,
    Connection,
    ignore_progress,
    migrated_database,
    until,
)
from tests.stores.postgres.layouts import (
    age,
    ask_in,
    day,
    db,
    move_one_batch,
    parts,
    rival_of,
    subject_of,
)

__all__ = ["db"]

pytestmark = pytest.mark.slow
KEPT = Answer(201, ((b"x", b"1"),), b"kept")


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    with migrated_database(postgres_url) as url:
        yield url


@pytest.fixture
def case(url: str) -> Iterator[Case]:
    subject = subject_of(url)
    with closing(FACES["sync"](subject.store)) as face:
        yield Case(subject, face)


def begin_and_complete(case: Case) -> Record:
    return case.done(case.complete(case.begin(), KEPT))


# ------------------------------------------------------------------- older transactions


def test_p4_an_answer_that_was_written_by_an_old_snapshot_is_taken_along(
    case: Case, url: str
) -> None:
    """A caller's transaction, REPEATABLE READ, sees the layout as it was when it began."""
    store = case.subject.store
    move(store, SEPARATE, ignore_progress)
    record = case.begin()
    with rival_of(url) as rival:
        rival.isolation_level = IsolationLevel.REPEATABLE_READ
        rival.execute("SELECT 1 FROM oncekey_schema")

        def watch(_: MoveProgress | None) -> None:
            if rival.info.transaction_status:
                complete = store.perform([case.complete(record, KEPT)])
                assert run(complete, ask_in(rival)) == [Done(record.fence)]
                rival.commit()

        move(store, PARTITIONED, watch)
    assert case.find(record.id).answer == KEPT


def test_p3_an_old_snapshot_shows_the_answer_until_its_transaction_ends(
    case: Case, url: str
) -> None:
    """It would look for it in a table that was replaced since."""
    store = case.subject.store
    move(store, SEPARATE, ignore_progress)
    record = begin_and_complete(case)
    found: list[Any] = []
    with rival_of(url) as older, rival_of(url) as rival:
        rival.isolation_level = IsolationLevel.REPEATABLE_READ
        older.execute("LOCK TABLE oncekey_claims IN ROW EXCLUSIVE MODE")

        def watch(moved: MoveProgress | None) -> None:
            if older.info.transaction_status:  # the layout is said, nothing is taken along yet
                older.commit()
                rival.execute("SELECT 1 FROM oncekey_schema")
            elif moved is None or moved.to == PARTITIONED:
                found.extend(run(store.perform([Find(record.id)]), ask_in(rival)))
                rival.commit()

        move(store, PARTITIONED, watch)
    assert found[0].answer == KEPT
    assert case.find(record.id).answer == KEPT


def test_what_vacuum_holds_is_not_in_the_way(case: Case, url: str) -> None:
    """It may hold its lock on a large table for hours."""
    begin_and_complete(case)
    with rival_of(url) as older, rival_of(url) as vacuum:
        older.execute("LOCK TABLE oncekey_claims IN ROW EXCLUSIVE MODE")

        def watch(_: MoveProgress | None) -> None:
            if older.info.transaction_status:
                vacuum.execute("LOCK TABLE oncekey_claims IN SHARE UPDATE EXCLUSIVE MODE")
                older.commit()

        assert move(case.subject.store, SEPARATE, watch) == 1
        vacuum.rollback()


def test_a_held_record_is_waited_for_again(case: Case, url: str) -> None:
    """Whoever holds it may want one that the move holds: the caller must not be the one to fail."""
    records = sorted((begin_and_complete(case) for _ in range(2)), key=lambda record: record.id)
    hold = "SELECT FROM oncekey_claims WHERE id = $1 FOR UPDATE"
    waits: list[None] = []
    with rival_of(url) as older, rival_of(url) as holder:
        older.execute("LOCK TABLE oncekey_claims IN ROW EXCLUSIVE MODE")

        def watch(moved: MoveProgress | None) -> None:
            if moved is not None:
                return
            waits.append(None)
            if older.info.transaction_status:
                older.commit()
                holder.execute(hold, (records[1].id,))
            elif len(waits) > 3:
                holder.execute(hold, (records[0].id,))
                holder.commit()

        assert move(case.subject.store, SEPARATE, watch) == 2
    assert {case.find(record.id).answer for record in records} == {KEPT}


def test_a_role_without_rights_sees_which_transactions_are_open(db: Connection, url: str) -> None:
    role = f"shop_{uuid.uuid4().hex}"
    db.execute(f"CREATE ROLE {role}; SET ROLE {role}".encode())
    with rival_of(url) as rival:
        rival.execute("SELECT 1")
        [(opened,)] = db.execute(STATEMENTS["open_transactions"].encode()).fetchall()
        assert len(opened) == 1
        rival.commit()
        assert db.execute(STATEMENTS["open_transactions"].encode()).fetchall() == [([],)]
    db.execute(f"RESET ROLE; DROP ROLE {role}".encode())


# ------------------------------------------------------- purges and sweeps at the same moment


def test_p12_a_purge_blanks_what_was_moved_after_it_began(
    case: Case, db: Connection, url: str
) -> None:
    record = begin_and_complete(case)
    db.execute("UPDATE oncekey_schema SET layout = 'separate' WHERE number = 4")
    with rival_of(url) as mover, ThreadPoolExecutor(1) as thread:
        move_one_batch(mover)
        purged = thread.submit(case.ask, Purge(record.tenant, 10))
        until(db, LOCK_WAIT)
        mover.commit()
        assert purged.result() == 1
    assert case.find(record.id).answer == Answer(201, (), None)
    assert case.ask(Purge(record.tenant, 10)) == 0


def test_a_sweep_leaves_no_answer_that_was_moved_after_it_began(
    case: Case, db: Connection, url: str
) -> None:
    begin_and_complete(case)
    case.expire()
    db.execute("UPDATE oncekey_schema SET layout = 'separate' WHERE number = 4")
    with rival_of(url) as mover, rival_of(url) as sweeper:
        # Stopped after its snapshot, by whoever has the table's answers, until they were moved.
        sweeper.isolation_level = IsolationLevel.READ_COMMITTED
        slowly = STATEMENTS["sweep"].replace(
            "WHERE c.expires <=", "WHERE pg_advisory_xact_lock(1) IS NOT NULL AND c.expires <="
        )
        assert slowly != STATEMENTS["sweep"]
        mover.execute("SELECT pg_advisory_xact_lock(1)")
        move_one_batch(mover)
        with ThreadPoolExecutor(1) as thread:
            swept = thread.submit(sweeper.execute, slowly.encode(), (10,))
            until(db, LOCK_WAIT)
            mover.commit()
            swept.result()
        sweeper.commit()
    case.ask(Sweep(10))
    assert db.execute("SELECT count(*) FROM oncekey_claims").fetchone() == (0,)
    assert db.execute("SELECT count(*) FROM oncekey_answers").fetchone() == (0,)


# ---------------------------------------------------------------- owners and search paths


def test_a_table_that_is_replaced_keeps_its_owner(case: Case, db: Connection) -> None:
    """Who had all rights by owning it would lose them to a superuser who moves."""
    role = f"shop_{uuid.uuid4().hex}"
    db.execute(f"CREATE ROLE {role}; GRANT CREATE ON SCHEMA public TO {role}".encode())
    for table in ("claims", "answers", "steps", "schema", "steps_by_day", "requests_by_day"):
        db.execute(f"ALTER TABLE oncekey_{table} OWNER TO {role}".encode())
    try:
        for layout in (PARTITIONED, SEPARATE):
            begin_and_complete(case)
            move(case.subject.store, layout, ignore_progress)
            may = "SELECT has_table_privilege(%s, 'oncekey_answers', 'INSERT')"
            assert db.execute(may, (role,)).fetchone() == (True,)
            case.ask(Sweep(10))
    finally:
        db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_a_table_that_is_replaced_stays_in_its_schema(case: Case, db: Connection, url: str) -> None:
    record = begin_and_complete(case)
    db.execute("CREATE SCHEMA mine")
    path = "options=-csearch_path%3Dmine,public"
    move(open_url(f"{url}?allow=unsafe-durability&{path}"), PARTITIONED, ignore_progress)
    assert case.find(record.id).answer == KEPT
    case.ask(Sweep(10))
    assert db.execute("SELECT to_regclass('mine.oncekey_answers')").fetchone() == (None,)


def test_p10_a_temporary_table_of_the_same_name_drops_no_day(case: Case, db: Connection) -> None:
    """The function runs with its owner's rights, for whoever calls it."""
    move(case.subject.store, PARTITIONED, ignore_progress)
    record = begin_and_complete(case)
    name = age(db)
    db.execute("CREATE TEMP TABLE oncekey_claims (LIKE public.oncekey_claims)")
    db.execute("SELECT oncekey_turn_days('answers')")
    assert name in parts(db)
    assert case.ask(Find(record.id)).answer == KEPT


# ------------------------------------------------------------------------------- days and parts


def test_parts_are_there_together_with_their_table(case: Case, db: Connection) -> None:
    """What somebody holds a moment later must not send all answers to the part of the others."""
    move(case.subject.store, INLINE, ignore_progress)
    with closing(case.subject.store.connect()) as connection:
        first = next(layouts._replace_table(True))
        connection.ask(first)
    assert {"other", *(day(db, number) for number in range(3))} == parts(db)


def test_a_sweep_survives_an_answer_that_comes_as_its_part_is_made(
    case: Case, db: Connection, url: str
) -> None:
    move(case.subject.store, PARTITIONED, ignore_progress)
    coming = day(db, 2)
    db.execute(f"DROP TABLE oncekey_answers_{coming}".encode())
    db.execute("ALTER FUNCTION oncekey_turn_days(text) SET lock_timeout = '60s'")
    with rival_of(url) as rival, ThreadPoolExecutor(1) as thread:
        rival.execute(
            "INSERT INTO oncekey_answers VALUES ($1::text::date, 'a', 200, '')", (coming,)
        )
        swept = thread.submit(case.ask, Sweep(10))
        until(db, LOCK_WAIT)
        rival.commit()
        assert swept.result() == 0
    assert coming not in parts(db)


def test_a_sweep_goes_on_where_a_move_has_left_no_days_to_turn(case: Case) -> None:
    """It has seen that there are parts; when it comes to them, they and their function are gone."""
    store = case.subject.store
    move(store, PARTITIONED, ignore_progress)
    with closing(store.connect()) as connection:

        def ask(asked: Any) -> Any:
            if asked.sql == STATEMENTS["turn_days"]:
                move(store, INLINE, ignore_progress)
                with pytest.raises(StoreUnavailable, match=r"layout is under way.* try again"):
                    connection.ask(asked)
            return connection.ask(asked)

        assert run(store.perform([Sweep(10)]), ask) == [0]
    assert layouts.layout(store) == INLINE


def test_nobody_turns_days_while_their_table_is_replaced(case: Case, url: str) -> None:
    """Half-way it would find tables of another kind, or none. The move tries again."""
    store = case.subject.store
    move(store, PARTITIONED, ignore_progress)
    waits: list[None] = []

    def watch(moved: MoveProgress | None) -> None:
        assert moved is None
        waits.append(moved)
        turning.execute("SELECT pg_advisory_unlock_all()")

    with psycopg.connect(url, autocommit=True) as turning:
        turning.execute("SELECT pg_advisory_lock(31360989905909114)")
        move(store, INLINE, watch)
    assert waits


def test_p11_what_has_no_part_is_removed_by_ten_thousand(case: Case, db: Connection) -> None:
    move(case.subject.store, PARTITIONED, ignore_progress)
    db.execute(
        "INSERT INTO oncekey_answers "
        "SELECT now()::date - 9, int4send(i), 200, '' FROM generate_series(1, 10001) i"
    )
    left = "SELECT count(*) FROM oncekey_answers"
    case.ask(Sweep(10))
    assert db.execute(left).fetchone() == (1,)
    case.ask(Sweep(10))
    assert db.execute(left).fetchone() == (0,)


# -------------------------------------------------------------------------------------- expiry


def test_p10_no_lease_outlives_its_record(case: Case, db: Connection) -> None:
    """However short the retention is: what has expired is swept."""
    begun = [case.begin(case.claim(retention_s=0.001)) for _ in range(20)]
    early = "SELECT count(*) FROM oncekey_claims WHERE expires < lease_until"
    assert db.execute(early).fetchone() == (0,)
    for record in begun:
        case.done(lifecycle.renew(owner(record), lease_s=30.0, retention_s=0.001))
    assert db.execute(early).fetchone() == (0,)
    case.elapse(30.5)
    for record in begun:
        again = case.rival(record, retention_s=0.001)
        case.done(lifecycle.take(case.find(record.id), again))
    assert db.execute(early).fetchone() == (0,)
