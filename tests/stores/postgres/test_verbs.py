"""Statements on a real server: who waits for whom, what is judged, and what is written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import psycopg
import pytest

from oncekey._core.op import run
from oncekey._core.record import Answer, Record, State, Step
from oncekey._core.verbs import (
    AppendStep,
    Count,
    Done,
    Find,
    Found,
    Insert,
    Inserted,
    Refused,
    Steps,
    Swap,
    Sweep,
    Verb,
    When,
)
from oncekey.errors import StoreUnavailable
from oncekey.stores.base import AGAIN, INSERT_ROUNDS_MAX
from oncekey.stores.postgres import statements
from oncekey.stores.postgres import verbs as postgres_sql
from oncekey.stores.postgres.store import open_url
from oncekey.stores.postgres.verbs import Limits, Question
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import FACES, timeless
from tests.stores.postgres.kit import LOCK_WAIT, Connection, until

Later = Callable[..., Future[Any]]
Move = Callable[[Case, Record], Swap]


@pytest.fixture(params=list(FACES))
def case(request: pytest.FixtureRequest, postgres: Subject) -> Iterator[Case]:
    face = FACES[request.param](postgres.store)
    yield Case(postgres, face)
    face.close()


@pytest.fixture
def db(postgres_url: str) -> Iterator[Connection]:
    """To look behind the store's back."""
    with psycopg.connect(postgres_url, autocommit=True) as db:
        yield db


@pytest.fixture
def rival(postgres_url: str) -> Iterator[Connection]:
    """A connection that carries verbs out in a transaction which stays open."""
    with psycopg.connect(postgres_url, cursor_factory=psycopg.RawCursor) as rival:
        yield rival


def carry_out(rival: Connection, case: Case, *verbs: Verb) -> list[Any]:
    """Ask the very statements of the store, within the rival's transaction."""

    def ask(question: Question) -> list[Any]:
        return rival.execute(question.sql.encode(), question.args).fetchall()

    return run(case.subject.store.perform(verbs), ask)


@pytest.fixture
def separate(postgres: Subject, db: Connection) -> Iterator[None]:
    """Answers in a table of their own."""
    db.execute("UPDATE oncekey_schema SET layout = 'separate' WHERE number = 4")
    yield
    db.execute("UPDATE oncekey_schema SET layout = 'inline' WHERE number = 4")


@pytest.fixture
def meanwhile() -> Iterator[Later]:
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit


# ----------------------------------------------------------------------- waiting for a row

MOVES: dict[str, Move] = {
    "renewal": Case.renew,
    "completion": Case.complete,
    "release": Case.release,
}


@pytest.mark.parametrize("move", MOVES.values(), ids=list(MOVES))
def test_p1_a_take_over_that_waits_is_judged_by_what_it_waited_for(
    case: Case, db: Connection, rival: Connection, meanwhile: Later, move: Move
) -> None:
    """Its snapshot is older than what the owner commits, and shows a lapsed lease."""
    record = case.begin()
    case.lapse()
    assert isinstance(carry_out(rival, case, move(case, record))[0], Done)
    taking = meanwhile(case.ask, case.take(record))
    until(db, LOCK_WAIT)
    rival.commit()
    outcome = taking.result()
    assert isinstance(outcome, Refused)
    assert outcome.record is not None
    assert timeless(outcome.record) == timeless(case.find(record.id))
    assert (outcome.record.token, outcome.record.beat) == (record.token, 1)


def test_p2_an_owner_that_waits_is_refused_by_the_take_over_it_waited_for(
    case: Case, db: Connection, rival: Connection, meanwhile: Later
) -> None:
    record = case.begin()
    case.lapse()
    take = case.take(record)
    carry_out(rival, case, take)
    completing = meanwhile(case.ask, case.complete(record))
    until(db, LOCK_WAIT)
    rival.commit()
    outcome = completing.result()
    assert isinstance(outcome, Refused)
    assert outcome.record is not None
    assert (outcome.record.state, outcome.record.token) == (State.RUNNING, take.new_token)
    assert case.find(record.id).answer is None


def test_p2_a_step_that_waits_is_refused_by_the_take_over_it_waited_for(
    case: Case, db: Connection, rival: Connection, meanwhile: Later
) -> None:
    record = case.begin()
    case.lapse()
    carry_out(rival, case, case.take(record))
    step = AppendStep(record.id, record.fence, record.token, Step("charge", b"d", b"r"))
    appending = meanwhile(case.ask, step)
    until(db, LOCK_WAIT)
    rival.commit()
    assert isinstance(appending.result(), Refused)
    assert case.ask(Steps(record.id)) == []


@pytest.mark.parametrize("move", [Case.renew, Case.take], ids=["renewal", "take-over"])
def test_p8_a_lease_counts_from_when_the_row_was_had_not_from_when_it_was_asked_for(
    case: Case, db: Connection, rival: Connection, meanwhile: Later, move: Move
) -> None:
    record = case.begin()
    case.lapse()
    rival.execute("SELECT FROM oncekey_claims WHERE id = $1 FOR UPDATE", (record.id,))
    moving = meanwhile(case.ask, move(case, record))
    until(db, LOCK_WAIT)
    began = f"SELECT lease_until - interval '{case.lease_s} s' FROM oncekey_claims WHERE id = %s"
    [(given_up,)] = db.execute("SELECT clock_timestamp()").fetchall()
    rival.rollback()
    assert isinstance(moving.result(), Done)
    [(from_then_on,)] = db.execute(began.encode(), (record.id,)).fetchall()
    assert from_then_on >= given_up


def test_in_a_batch_a_held_row_is_left_for_later(case: Case, rival: Connection) -> None:
    held, free, ended = case.begin(), case.begin(), case.stage(State.RELEASED)
    carry_out(rival, case, case.renew(held))
    store = case.subject.store
    connection = store.connect()
    for move in MOVES.values():
        verbs = sorted((move(case, r) for r in (held, free, ended)), key=lambda swap: swap.id)
        outcomes = dict(
            zip([v.id for v in verbs], run(store.perform(verbs), connection.ask), strict=True)
        )
        assert outcomes[held.id] is AGAIN
        assert isinstance(outcomes[ended.id], Refused)
        assert isinstance(outcomes[free.id], Done | Refused)
    connection.close()
    assert case.find(free.id).state is State.COMPLETED


def test_a_crowd_does_not_wait_for_the_one_whose_row_is_held(
    postgres: Subject, db: Connection, rival: Connection, meanwhile: Later
) -> None:
    face = FACES["async"](postgres.store)  # asked in one turn of the loop they go as one batch
    case = Case(postgres, face)
    records = [case.begin() for _ in range(20)]
    carry_out(rival, case, case.renew(records[9]))
    completing = meanwhile(case.together, [case.complete(record) for record in records])
    until(db, LOCK_WAIT)
    counts = "SELECT count(*) FROM oncekey_claims WHERE state = 'completed'"
    assert db.execute(counts).fetchone() == (19,)
    rival.commit()
    assert completing.result() == [Done(record.fence) for record in records]
    face.close()


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_p1_an_insert_waits_for_a_concurrent_one_of_its_id(
    case: Case, db: Connection, rival: Connection, meanwhile: Later, ends: str
) -> None:
    claim = case.claim()
    carry_out(rival, case, Insert(claim))
    inserting = meanwhile(case.ask, Insert(case.claim(id=claim.id)))
    until(db, LOCK_WAIT)
    getattr(rival, ends)()
    outcome = inserting.result()
    if ends == "commit":
        assert isinstance(outcome, Found)
        assert outcome.record.token == claim.token
    else:
        assert isinstance(outcome, Inserted)


def test_a_batch_of_inserts_waits_only_a_moment_for_one_of_them(
    case: Case, rival: Connection
) -> None:
    """Then nothing of it was written, and each is asked again alone."""
    held = case.claim()
    verbs = sorted([Insert(held), Insert(case.claim())], key=lambda verb: verb.id)
    carry_out(rival, case, Insert(case.claim(id=held.id)))
    store = case.subject.store
    connection = store.connect()
    assert run(store.perform(verbs), connection.ask) == [AGAIN, AGAIN]
    assert case.ask(Count())[State.RUNNING] == 0
    rival.rollback()
    outcomes = run(store.perform(verbs), connection.ask)
    assert [type(outcome) for outcome in outcomes] == [Inserted, Inserted]
    connection.close()


def test_inserts_are_made_in_the_order_of_their_ids(case: Case) -> None:
    """So that two batches that wait for each other's ids cannot deadlock."""
    verbs = sorted((Insert(case.claim()) for _ in range(20)), key=lambda v: v.id, reverse=True)
    store = case.subject.store
    with contextlib.closing(store.connect()) as connection:
        inserted = run(store.perform(verbs), connection.ask)
    fences = [outcome.fence for outcome in inserted]
    assert fences == sorted(fences, reverse=True)


def test_p10_a_sweep_leaves_out_what_somebody_is_changing(case: Case, rival: Connection) -> None:
    record = case.begin()
    case.expire()
    carry_out(rival, case, case.take(case.find(record.id)))
    assert case.ask(Sweep(10)) == 0
    rival.commit()
    assert case.find(record.id).attempt == 1
    assert case.ask(Sweep(10)) == 0


@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "PgBouncer"])
@pytest.mark.parametrize("face", list(FACES))
def test_p11_waiting_for_a_row_has_an_end(
    postgres: Subject,
    rival: Connection,
    request: pytest.FixtureRequest,
    migrated_url: str,
    face: str,
    pooled: bool,
) -> None:
    url = migrated_url
    if pooled:
        bouncer_url = request.getfixturevalue("pgbouncer_url")
        url = f"{bouncer_url}?pgbouncer=true&allow=unsafe-durability"
    store = open_url(url)
    store.limits.alone_wait_ms = "100"  # it is the server that gives up on a row
    impatient = FACES[face](store)
    case = Case(postgres, impatient)
    record, new = case.begin(), case.claim()
    carry_out(rival, case, case.renew(record), Insert(case.claim(id=new.id)))
    for verb in (case.complete(record), case.take(record), Insert(new)):
        with pytest.raises(StoreUnavailable, match="another transaction holds the record") as late:
            case.ask(verb)
        assert late.value.sent
    rival.rollback()
    case.same(case.find(record.id), record)
    assert case.ask(Find(new.id)) is None
    impatient.close()


# ---------------------------------------------------------------------------- what is written


def _xid(db: Connection) -> Any:
    return db.execute("SELECT pg_current_xact_id_if_assigned()").fetchone()[0]  # type: ignore[index]


def _last_fence(db: Connection) -> Any:
    return db.execute("SELECT last_value FROM oncekey_fences").fetchone()[0]  # type: ignore[index]


@pytest.mark.parametrize("state", State)
def test_a_replay_writes_nothing(case: Case, rival: Connection, state: State) -> None:
    record = case.stage(state)
    fence = _last_fence(rival)
    [outcome] = carry_out(rival, case, Insert(case.rival(record)))
    assert isinstance(outcome, Found)
    assert _xid(rival) is None
    assert _last_fence(rival) == fence
    carry_out(rival, case, Insert(case.claim()))
    assert _xid(rival) is not None


def test_a_refused_swap_draws_no_fence(case: Case, rival: Connection) -> None:
    record = case.begin()
    fence = _last_fence(rival)
    [outcome] = carry_out(rival, case, case.take(record))
    assert isinstance(outcome, Refused)
    assert _last_fence(rival) == fence


def test_a_record_that_began_anew_never_shows_an_earlier_step(case: Case, db: Connection) -> None:
    """Not even one that was committed where no snapshot of the start could show it."""
    record = case.begin()
    case.expire()
    after = case.done(case.take(case.find(record.id)))
    db.execute(
        "INSERT INTO oncekey_steps (id, generation, name, digest) VALUES (%s, %s, 'late', '')",
        (record.id, record.fence),
    )
    assert case.ask(Steps(record.id)) == []
    step = Step("late", b"mine", b"r")
    assert case.ask(AppendStep(record.id, after.fence, after.token, step)) == Done(after.fence)
    assert case.ask(Steps(record.id)) == [step]
    case.expire()
    assert case.ask(Sweep(10)) == 1
    assert db.execute("SELECT count(*) FROM oncekey_steps").fetchone() == (0,)


@pytest.mark.usefixtures("separate")
def test_answers_are_kept_by_the_day_of_their_expiry_and_leave_nothing_behind(
    case: Case, db: Connection
) -> None:
    days = (
        "SELECT count(*) FROM oncekey_answers r JOIN oncekey_claims c "
        "ON c.id = r.id AND r.day = c.answer_day AND r.day = (c.expires AT TIME ZONE 'UTC')::date"
    )
    records = [case.done(case.complete(case.begin())), case.stage(State.UNKNOWN)]
    case.done(case.resolve(records[1]))
    assert db.execute(days).fetchone() == (2,)
    case.expire()
    case.done(case.take(case.find(records[0].id)))
    assert case.ask(Sweep(10)) == 1
    assert db.execute("SELECT count(*) FROM oncekey_answers").fetchone() == (0,)


@pytest.mark.usefixtures("separate")
def test_an_answer_that_was_left_behind_is_replaced(case: Case, db: Connection) -> None:
    record = case.begin()
    db.execute(
        "INSERT INTO oncekey_answers SELECT day::date, %s, 500, '\\x01', 'old' "
        "FROM generate_series(now(), now() + interval '1 day', interval '1 day') AS day",
        (record.id,),
    )
    assert case.done(case.complete(record, Answer(200, (), b"new"))).answer == Answer(
        200, (), b"new"
    )


# ------------------------------------------------------------------------------------- plans


LOOKED_UP = {
    **{f"{name}, alone": text for name, text in statements.ALONE.items()},
    **{f"{name}, in a batch": text for name, text in statements.BATCH.items()},
    **{name: statements.STATEMENTS[name] for name in ("due", "abandoned", "sweep", "scan")},
}


@pytest.mark.parametrize("statement", LOOKED_UP.values(), ids=list(LOOKED_UP))
def test_no_plan_reads_a_table_whole(postgres: Subject, db: Connection, statement: str) -> None:
    """Planned while the tables are empty and known to be, a statement is kept when they are not."""
    if db.info.server_version < 160_000:
        pytest.skip("PostgreSQL explains plans without arguments from version 16 on")
    db.execute("VACUUM ANALYZE oncekey_claims, oncekey_answers, oncekey_steps")
    explain = f"EXPLAIN (GENERIC_PLAN) {statement}".encode()
    with contextlib.closing(postgres.store.connect()) as connection:
        plan = str(cast(Any, connection)._connection.execute(explain, prepare=False).fetchall())
    assert "Index Scan" in plan
    assert "Seq Scan" not in plan
    assert "Hash Join" not in plan


# ------------------------------------------------------------------------------------ honesty


def test_what_fails_after_a_first_answer_was_sent() -> None:
    verb = Swap(b"i", State.RUNNING, 1, b"t", When.ANY, State.RELEASED, False, 1.0)
    op = postgres_sql.perform([verb], Limits())
    next(op)
    op.send([(b"i", None)])  # refused: the record is looked up
    with pytest.raises(StoreUnavailable) as lost:
        op.throw(StoreUnavailable("closed", sent=False))
    assert lost.value.sent


def test_what_fails_before_any_answer_may_be_unsent() -> None:
    op = postgres_sql.perform([Find(b"i")], Limits())
    next(op)
    with pytest.raises(StoreUnavailable) as lost:
        op.throw(StoreUnavailable("closed", sent=False))
    assert not lost.value.sent


def test_what_is_neither_inserted_nor_found_is_asked_again_but_not_for_ever(
    postgres: Subject,
) -> None:
    case = Case(postgres, FACES["sync"](postgres.store))
    verbs = [Insert(case.claim()), Insert(case.claim())]
    op = postgres_sql.perform(verbs, Limits())
    question = next(op)
    for _ in range(INSERT_ROUNDS_MAX - 1):
        assert question.args[1] == [verb.id for verb in verbs]
        question = op.send([])
    with pytest.raises(StoreUnavailable, match="neither inserted nor found"):
        op.send([])
