"""What is said is on disk, also where a server shows a commit to others before it is (P4)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from oncekey import Policy, Runtime
from oncekey._core.endings import End
from oncekey._core.fingerprint import Fingerprint
from oncekey._core.lifecycle import took_effect
from oncekey._core.record import Answer, Record, State, Step
from oncekey._core.verbs import AppendStep, Done, Find, Insert, Inserted, Steps
from oncekey._engine.guard import Call, Execute
from oncekey.atomic import PyMySQL
from oncekey.atomic._unit_of_work import Unit
from oncekey.messaging._inbox import Inbox
from oncekey.stores.mysql.durability import NEW_S, WRITES
from oncekey.stores.mysql.store import open_url
from oncekey.testing.contract import Case
from oncekey.testing.contract.subject import FACES
from tests.servers import MariaDB, start_mariadb
from tests.servers.mariadb import mysql_connection
from tests.stores.mysql.kit import case_of, migrate
from tests.stores.postgres.kit import both_faces, insist

pytestmark = pytest.mark.slow

ONLY_BY_COMMITS = {
    "innodb-flush-log-at-timeout": "2700",
    "innodb-stats-auto-recalc": "OFF",  # counts rows in the background, and commits that
}
ATOMIC = Policy(atomic=True).settled()
LOGGED = {"log-bin": "log", "sync-binlog": "1"}


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDB]:
    """One whose redo log comes to disk with a commit, and else not."""
    with start_mariadb(durable=True, settings=ONLY_BY_COMMITS) as server:
        migrate(open_url(server.url))
        yield server


@pytest.fixture(params=list(FACES))
def case(request: pytest.FixtureRequest, server: MariaDB) -> Iterator[Case]:
    """With every connection made: each looks at the settings when it is."""
    with case_of(request.param, server.url, server.url) as case:
        record = case.stage(State.COMPLETED)
        case.ask(step(record))
        yield case


def step(record: Record) -> AppendStep:
    return AppendStep(record.id, record.fence, record.token, Step("charge", b"digest", b"result"))


@contextlib.contextmanager
def not_on_disk_yet(server: MariaDB) -> Iterator[None]:
    """What is committed here others see, and a crash forgets: as while a disk is slow."""
    with mysql_connection(server.url) as db, db.cursor() as cursor:
        cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
        try:
            yield
        finally:
            cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")


def crash(server: MariaDB) -> None:
    server.kill()
    server.restart()


def by_a_retry(case: Case, record: Record) -> Record | None:
    found: Record = case.ask(Insert(case.rival(record))).record
    return found


def by_a_look(case: Case, record: Record) -> Record | None:
    return case.find(record.id)


def by_whoever_is_too_late(case: Case, record: Record) -> Record | None:
    found: Record | None = case.ask(case.release(record)).record
    return found


def by_asking_again(case: Case, record: Record) -> Record | None:
    found: Record | None = case.ask(case.complete(record)).record
    assert took_effect(case.complete(record), found)
    return found


@pytest.mark.parametrize(
    "learned", [by_a_retry, by_a_look, by_whoever_is_too_late, by_asking_again]
)
def test_p4_an_answer_that_somebody_learned_of_survives_a_crash(
    server: MariaDB, case: Case, learned: Callable[[Case, Record], Record | None]
) -> None:
    record = case.begin()
    with not_on_disk_yet(server):
        assert case.ask(case.complete(record)) == Done(record.fence)
    found = learned(case, record)
    crash(server)
    assert found is not None
    case.same(insist(case, Find(record.id)), found)


def ran_again(case: Case, record: Record) -> Record:
    case.done(replace(case.release(record), retention_s=record.retention_s))
    case.elapse(2 * NEW_S)
    return case.done(case.take(case.find(record.id), retention_s=record.retention_s))


def ran_long(case: Case, record: Record) -> Record:
    case.elapse(2 * NEW_S)
    return case.done(case.renew(record))


@pytest.mark.parametrize("went", [ran_again, ran_long])
def test_p4_what_began_long_ago_and_has_just_ended_survives_a_crash(
    server: MariaDB, case: Case, went: Callable[[Case, Record], Record]
) -> None:
    """Where retention counts from the first use, what is left of it does not tell the two apart."""
    running = went(case, case.begin(case.claim(retention_s=3 * NEW_S)))
    with not_on_disk_yet(server):
        completed = case.ask(case.complete(running, retention_s=NEW_S))
        assert completed == Done(running.fence)
    found = by_a_retry(case, running)
    crash(server)
    assert found is not None
    case.same(insist(case, Find(running.id)), found)


@both_faces
def test_what_nobody_learned_of_a_crash_forgets(server: MariaDB, face: str) -> None:
    """Else these tests would show nothing. A server that has just begun sometimes brings to disk by
    itself what it has at that moment, so there are a few tries.
    """

    def forgotten() -> bool:
        with case_of(face, server.url, server.url) as case:
            case.stage(State.COMPLETED)
            record = case.begin()
            with not_on_disk_yet(server):
                assert case.ask(case.complete(record)) == Done(record.fence)
            crash(server)
            state: State = insist(case, Find(record.id)).state
            return state is State.RUNNING

    assert any(forgotten() for _ in range(5))


def test_p9_a_claim_that_is_known_again_survives_a_crash(server: MariaDB, case: Case) -> None:
    insert = Insert(case.claim())
    with not_on_disk_yet(server):
        assert isinstance(case.ask(insert), Inserted)
    assert case.ask(insert).record.token == insert.claim.token
    crash(server)
    assert insist(case, Find(insert.id)).token == insert.claim.token


def test_p9_a_take_over_that_is_known_again_survives_a_crash(server: MariaDB, case: Case) -> None:
    take = case.take(case.stage(State.RELEASED))
    with not_on_disk_yet(server):
        assert isinstance(case.ask(take), Done)
    assert case.ask(take).record.token == take.new_token
    crash(server)
    assert insist(case, Find(take.id)).token == take.new_token


def test_p9_a_step_that_is_kept_again_survives_a_crash(server: MariaDB, case: Case) -> None:
    append = step(case.begin())
    with not_on_disk_yet(server):
        assert case.ask(append) == Done(append.fence)
    assert case.ask(append) == Done(append.fence)
    crash(server)
    assert insist(case, Steps(append.id)) == [append.step]


# --------------------------------------------------------------- in a transaction of somebody's


class Worker:
    """Handles requests in atomic mode, and messages in transactions of its own."""

    def __init__(self, url: str) -> None:
        self._connect = partial(mysql_connection, url, autocommit=False)
        self.runtime = Runtime(url)
        self._adapter = PyMySQL(self._connect)
        self._inbox = Inbox(self.runtime, name="orders")

    def request(self, key: str) -> str:
        guard, gatherer = self.runtime.guard, self.runtime.gatherer
        call = Call("acme", "POST /orders", key, Fingerprint(1, b"f" * 32))
        unit = Unit(self._adapter, gatherer.store, 5.0, gatherer.ask)
        decided = unit.drive_sync(guard.begin(call, ATOMIC))
        if isinstance(decided, Execute):
            op = guard.ownership.conclude(decided.attempt, End.KEPT, Answer(201), call)
            decided = unit.drive_sync(op)
        return type(decided).__name__

    def message(self, key: str) -> str:
        with self._connect() as transaction:
            outcome = self._inbox.handle_in_sync(transaction, key, lambda: None)
            transaction.commit()
        return type(outcome).__name__


@pytest.fixture
def workers(server: MariaDB) -> Iterator[list[Worker]]:
    """Three; the first has every connection made."""
    three = [Worker(server.url) for _ in range(3)]
    three[0].request("before")
    three[0].message("before")
    yield three
    for worker in three:
        worker.runtime.close()


@pytest.mark.parametrize(
    ("handle", "first", "again"),
    [(Worker.request, "Stored", "Replay"), (Worker.message, "Handled", "Duplicate")],
)
def test_p4_what_a_transaction_is_told_of_survives_a_crash(
    server: MariaDB,
    workers: list[Worker],
    handle: Callable[[Worker, str], str],
    first: str,
    again: str,
) -> None:
    with not_on_disk_yet(server):
        assert handle(workers[0], "order-1") == first
    assert handle(workers[1], "order-1") == again
    crash(server)
    assert handle(workers[2], "order-1") == again


# --------------------------------------------------------------------------- waiting for nobody


def test_p11_a_replay_waits_for_no_gap_that_a_caller_holds(server: MariaDB, case: Case) -> None:
    """A locking read under REPEATABLE READ holds what is between the rows too."""
    first, last = bytes(32), b"\xfe" * 32
    for record_id in (first, last):
        record = insist(case, Find(record_id)) or case.begin(case.claim(id=record_id))
        case.ask(step(record))
    ended = case.stage(State.COMPLETED)
    with mysql_connection(server.url, autocommit=False) as holder, holder.cursor() as cursor:
        cursor.execute("SELECT id FROM oncekey_steps WHERE id < %s FOR UPDATE", (last,))
        assert cursor.fetchall()
        assert commits(server, partial(by_a_retry, case, ended)) == 1
        holder.rollback()


def test_p11_a_replay_waits_for_no_other_that_is_not_on_disk_yet(
    server: MariaDB, case: Case
) -> None:
    ended = case.stage(State.COMPLETED)
    with contextlib.ExitStack() as stack:
        before = [mysql_connection(server.url, autocommit=False) for _ in range(2)]
        for others in before:
            cursor = stack.enter_context(stack.enter_context(others).cursor())
            cursor.execute(WRITES[0])
        assert commits(server, partial(by_a_retry, case, ended)) == 1


# ----------------------------------------------------------------------------- and nothing else


def commits(server: MariaDB, do: Callable[[], object]) -> int:
    """How many transactions it ends. A statement that is alone is not counted."""
    with mysql_connection(server.url) as db, db.cursor() as cursor:

        def count() -> int:
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Com_commit'")
            return int(cursor.fetchone()[1])

        before = count()
        do()
        return count() - before


def test_what_ended_long_ago_is_replayed_without_a_write(server: MariaDB, case: Case) -> None:
    record = case.begin(case.claim(retention_s=3 * NEW_S))
    case.done(case.complete(record, retention_s=3 * NEW_S))
    retry = partial(by_a_retry, case, record)
    assert commits(server, retry) == 1
    case.elapse(NEW_S)
    assert commits(server, retry) == 0
    assert commits(server, partial(by_a_look, case, record)) == 0


def test_who_is_refused_for_now_writes_nothing(server: MariaDB, case: Case) -> None:
    running, released = case.begin(), case.stage(State.RELEASED)
    assert commits(server, partial(by_a_retry, case, running)) == 0
    assert commits(server, partial(by_a_retry, case, released)) == 0


def test_with_a_binary_log_no_replay_writes() -> None:
    with start_mariadb(durable=True, settings=LOGGED) as server:
        migrate(open_url(server.url))
        with case_of("sync", server.url, server.url) as case:
            record = case.stage(State.COMPLETED)
            assert commits(server, partial(by_a_retry, case, record)) == 0
