"""Layouts on a real server: moving between them while all goes on, and parts by the day."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from oncekey._core import lifecycle
from oncekey._core.lifecycle import Held
from oncekey._core.op import run
from oncekey._core.record import Answer, State
from oncekey._core.verbs import Done, Find, Sweep
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.stores.base import Store
from oncekey.stores.memory import MemoryStore
from oncekey.stores.postgres import layouts, transactions
from oncekey.stores.postgres.layouts import (
    INLINE,
    LAYOUTS,
    PARTITIONED,
    SEPARATE,
    MoveProgress,
    move,
)
from oncekey.stores.postgres.store import open_url
from oncekey.testing.contract import Case
from oncekey.testing.contract.subject import ANSWER, FACES
from tests.stores.postgres.kit import TABLES, Connection, ignore_progress, migrated_database
from tests.stores.postgres.layouts import DAY_S, age, day, fill, look, parts, subject_of

WAYS = [(a, b) for a in LAYOUTS for b in LAYOUTS if a != b]

pytestmark = pytest.mark.slow


# ------------------------------------------------------------------------------------ moving


@pytest.fixture(scope="module")
def fresh_url(postgres_url: str) -> Iterator[str]:
    with migrated_database(postgres_url) as url:
        yield url


@pytest.fixture
def db(fresh_url: str) -> Iterator[Connection]:
    with psycopg.connect(fresh_url, autocommit=True) as db:
        yield db


@pytest.fixture
def case(fresh_url: str, db: Connection, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    """Empty, and of the first layout; a batch is two records."""
    subject = subject_of(fresh_url)
    db.execute(f"TRUNCATE {', '.join(TABLES)}".encode())
    move(subject.store, INLINE, ignore_progress)
    monkeypatch.setattr(layouts, "BATCH_ROWS", 2)
    with closing(FACES["sync"](subject.store)) as face:
        yield Case(subject, face)


@pytest.mark.parametrize(("before", "after"), WAYS)
def test_whatever_was_kept_is_kept_the_same(case: Case, before: str, after: str) -> None:
    move(case.subject.store, before, ignore_progress)
    kept = fill(case)
    shares: list[float] = []

    def watch(moved: MoveProgress | None) -> None:
        assert look(case) == kept, "every moment of a move shows all that there is"
        assert moved is not None
        shares.append(moved.share)

    assert move(case.subject.store, after, watch) > 0
    assert layouts.layout(case.subject.store) == after
    assert look(case) == kept
    assert len(shares) >= len(kept) / 2
    through_inline = after != INLINE and PARTITIONED in (before, after)
    assert [a < b for a, b in pairwise(shares)].count(False) == through_inline
    assert move(case.subject.store, after, ignore_progress) == 0


@pytest.mark.parametrize(("before", "after"), WAYS)
def test_a_move_that_was_cut_short_is_taken_up_again(case: Case, before: str, after: str) -> None:
    move(case.subject.store, before, ignore_progress)
    kept = fill(case)
    for after_batches in range(1, 9):
        left = iter(range(after_batches))

        def watch(_: MoveProgress | None, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt

        try:
            move(case.subject.store, after, watch)
        except KeyboardInterrupt:
            assert look(case) == kept
    move(case.subject.store, after, ignore_progress)
    assert look(case) == kept
    assert layouts.layout(case.subject.store) == after


@pytest.mark.parametrize(("before", "after"), WAYS)
def test_records_are_begun_completed_and_taken_over_during_a_move(
    case: Case, before: str, after: str
) -> None:
    move(case.subject.store, before, ignore_progress)
    fill(case)
    waiting = [case.begin() for _ in range(12)]
    done: dict[bytes, Answer] = {}

    def watch(_: MoveProgress | None) -> None:
        for record in (waiting.pop() if waiting else case.begin(), case.begin()):
            done[record.id] = Answer(201, (), record.id)
            case.done(case.complete(record, done[record.id]))
        for record_id, answer in done.items():
            assert case.find(record_id).answer == answer

    move(case.subject.store, after, watch)
    assert len(done) > 12
    assert {i: case.find(i).answer for i in done} == done
    case.expire()
    again = case.done(case.take(case.find(next(iter(done)))))
    assert again.answer is None
    case.done(case.complete(again, Answer(200, (), b"again")))
    assert case.find(again.id).answer == Answer(200, (), b"again")


def test_a_write_that_looked_before_is_waited_for(case: Case, fresh_url: str) -> None:
    """Its transaction is open while the layout changes, and commits where the last one said."""
    store = case.subject.store
    record = case.begin()
    with psycopg.connect(fresh_url, cursor_factory=psycopg.RawCursor) as rival:
        complete = store.perform([case.complete(record)])
        run(complete, lambda asked: rival.execute(asked.sql.encode(), asked.args).fetchall())
        waits: list[MoveProgress | None] = []

        def watch(moved: MoveProgress | None) -> None:
            waits.append(moved)
            rival.commit()

        assert move(store, SEPARATE, watch) == 1
        assert waits[0] is None
    assert case.find(record.id).state is State.COMPLETED
    assert case.find(record.id).answer is not None


def test_a_transaction_that_does_not_end_is_told_and_harms_nothing(
    case: Case, fresh_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "WAITS_MAX", 2)
    kept = fill(case)
    with psycopg.connect(fresh_url) as rival:
        rival.execute("UPDATE oncekey_claims SET replays = replays")
        with pytest.raises(StoreUnavailable, match="then ask for the layout again"):
            move(case.subject.store, SEPARATE, ignore_progress)
        rival.rollback()
    assert look(case) == kept
    assert move(case.subject.store, SEPARATE, ignore_progress) == len(kept)


def test_older_releases_are_kept_away_while_anything_is_inline(case: Case, db: Connection) -> None:
    fill(case)
    oldest = "SELECT max(oldest_reader) FROM oncekey_schema"
    seen: list[Any] = []
    move(case.subject.store, SEPARATE, lambda _: seen.append(db.execute(oldest).fetchone()))
    assert set(seen) == {(6,)}
    for layout, reader in ((SEPARATE, 1), (INLINE, 6), (PARTITIONED, 5), (SEPARATE, 1)):
        move(case.subject.store, layout, ignore_progress)
        assert db.execute(oldest).fetchone() == (reader,)


@pytest.mark.parametrize("parts", [SEPARATE, PARTITIONED])
def test_who_may_use_the_table_may_use_the_one_that_takes_its_place(
    case: Case, db: Connection, parts: str
) -> None:
    role = f"shop_{uuid.uuid4().hex}"
    move(case.subject.store, SEPARATE if parts == PARTITIONED else PARTITIONED, ignore_progress)
    db.execute(f"CREATE ROLE {role}".encode())
    db.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON oncekey_answers TO {role}".encode())
    move(case.subject.store, parts, ignore_progress)
    may = "SELECT has_table_privilege(%s, 'oncekey_answers', %s)"
    for right in ("SELECT", "INSERT", "UPDATE", "DELETE"):
        assert db.execute(may, (role, right)).fetchone() == (True,)
    assert db.execute(may, (role, "TRUNCATE")).fetchone() == (False,)
    db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_atomic_mode_and_a_joined_completion_write_where_the_layout_says(
    case: Case, db: Connection, fresh_url: str, layout: str
) -> None:
    store = case.subject.store
    move(store, layout, ignore_progress)
    claim, joined = case.claim(schema_version=2), case.begin()
    complete = lifecycle.complete(Held(claim.id, 0, claim.token), ANSWER, retention_s=60.0)
    with psycopg.connect(fresh_url, cursor_factory=psycopg.RawCursor) as caller:

        def ask(asked: Any) -> Any:
            return caller.execute(asked.sql.encode(), asked.args).fetchall()

        held = run(transactions.hold(claim), ask)
        assert (held.ours, held.record) == (True, None)
        assert run(transactions.insert_completed(claim, complete), ask)
        assert run(store.perform([case.complete(joined)]), ask) == [Done(joined.fence)]
        assert case.ask(Find(claim.id)) is None
        assert case.find(joined.id).state is State.RUNNING
        caller.commit()
        found = run(transactions.hold(case.rival(case.find(claim.id))), ask)
        assert not found.ours
        assert found.record is not None
        assert found.record.answer == ANSWER
        caller.rollback()
    record = case.find(claim.id)
    assert (record.state, record.answer, record.attempt) == (State.COMPLETED, ANSWER, 1)
    assert (record.schema_version, record.replays, record.beat) == (2, 0, 0)
    assert case.find(joined.id).answer == ANSWER
    apart = 0 if layout == INLINE else 2
    assert db.execute("SELECT count(*) FROM oncekey_answers").fetchone() == (apart,)


def test_two_moves_at_a_time_would_undo_each_other(case: Case, fresh_url: str) -> None:
    fill(case)

    def watch(_: MoveProgress | None) -> None:
        with pytest.raises(StoreUnavailable, match="another process is changing the layout"):
            move(case.subject.store, PARTITIONED, ignore_progress)

    assert move(case.subject.store, SEPARATE, watch) > 0
    pooled = open_url(f"{fresh_url}?allow=unsafe-durability&pgbouncer=true")
    with pytest.raises(Misuse, match="not PgBouncer"):
        move(pooled, PARTITIONED, ignore_progress)


def test_a_table_that_is_in_use_is_not_replaced(case: Case) -> None:
    """Not even by one who overlooked that the layout was changed meanwhile."""
    store = case.subject.store
    move(store, SEPARATE, ignore_progress)
    kept = fill(case)
    with closing(store.connect()) as connection, pytest.raises(psycopg.errors.RaiseException):
        run(layouts._replace_table(True), connection.ask)
    assert look(case) == kept


def test_only_postgres_has_layouts() -> None:
    store: Store = MemoryStore()
    with pytest.raises(Misuse, match="only PostgreSQL has others"):
        move(store, INLINE, ignore_progress)
    with pytest.raises(Misuse, match="no layout 'sideways'"):
        move(store, "sideways", ignore_progress)


# ------------------------------------------------------------------------------- days and parts


@pytest.fixture
def by_day(case: Case) -> Case:
    move(case.subject.store, PARTITIONED, ignore_progress)
    return case


def test_coming_days_have_parts_and_an_answer_is_in_that_of_its_day(
    by_day: Case, db: Connection
) -> None:
    record = by_day.done(by_day.complete(by_day.begin(), retention_s=3 * DAY_S))
    by_day.ask(Sweep(10))
    assert {"other", *(day(db, n) for n in (0, 1, 2, 4, 5))} <= parts(db)
    assert day(db, 3) not in parts(db), "it came before its part"
    later = by_day.done(by_day.complete(by_day.begin(), retention_s=5 * DAY_S))
    where = "SELECT tableoid::regclass::text FROM oncekey_answers WHERE id = %s"
    assert db.execute(where, (record.id,)).fetchone() == ("oncekey_answers_other",)
    assert db.execute(where, (later.id,)).fetchone() == (f"oncekey_answers_{day(db, 5)}",)


def test_p10_a_day_goes_as_a_whole_once_nothing_of_it_is_left(by_day: Case, db: Connection) -> None:
    for _ in range(3):
        by_day.done(by_day.complete(by_day.begin()))
    unknown = by_day.stage(State.UNKNOWN)
    gone = age(db)
    assert by_day.ask(Sweep(2)) == 2
    assert gone in parts(db), "one record of that day is not swept yet"
    assert db.execute("SELECT count(*) FROM oncekey_answers").fetchone() == (3,), "not one by one"
    assert by_day.ask(Sweep(2)) == 1
    assert gone not in parts(db)
    assert db.execute("SELECT count(*) FROM oncekey_answers").fetchone() == (0,)
    assert by_day.find(unknown.id).state is State.UNKNOWN


def test_p10_what_somebody_holds_keeps_its_day(
    by_day: Case, db: Connection, fresh_url: str
) -> None:
    by_day.done(by_day.complete(by_day.begin()))
    gone = age(db)
    with psycopg.connect(fresh_url) as rival:
        rival.execute("SELECT FROM oncekey_claims FOR UPDATE")
        assert by_day.ask(Sweep(10)) == 0
        assert gone in parts(db)
    with psycopg.connect(fresh_url) as rival:
        rival.execute("SELECT FROM oncekey_answers")
        assert by_day.ask(Sweep(10)) == 1, "a sweep does not wait for whoever reads the table"
        assert gone in parts(db)
    assert by_day.ask(Sweep(10)) == 0
    assert gone not in parts(db)


def test_what_has_no_part_is_removed_too(by_day: Case, db: Connection) -> None:
    record = by_day.done(by_day.complete(by_day.begin(), retention_s=100 * DAY_S))
    by_day.ask(Sweep(1))
    db.execute(
        "UPDATE oncekey_claims SET answer_day = answer_day - 200, "
        "expires = expires - interval '200 days'"
    )
    db.execute("UPDATE oncekey_answers SET day = day - 200")
    assert by_day.ask(Find(record.id)).answer is not None
    assert by_day.ask(Sweep(10)) == 1
    assert db.execute("SELECT count(*) FROM oncekey_answers_other").fetchone() == (0,)


def test_p6_a_key_is_used_again_in_atomic_mode_on_the_day_its_answer_was_swept(
    by_day: Case, db: Connection, fresh_url: str
) -> None:
    swept = by_day.done(by_day.complete(by_day.begin()))
    by_day.expire()
    assert by_day.ask(Sweep(10)) == 1
    assert db.execute("SELECT id FROM oncekey_answers").fetchall() == [(swept.id,)], "with its day"
    claim, answer = by_day.rival(swept), Answer(200, (), b"again")
    complete = lifecycle.complete(
        Held(claim.id, 0, claim.token), answer, retention_s=by_day.retention_s
    )
    with psycopg.connect(fresh_url, cursor_factory=psycopg.RawCursor) as caller:

        def ask(asked: Any) -> Any:
            return caller.execute(asked.sql.encode(), asked.args).fetchall()

        assert run(transactions.hold(claim), ask).ours
        assert run(transactions.insert_completed(claim, complete), ask)
    assert by_day.find(claim.id).answer == answer
