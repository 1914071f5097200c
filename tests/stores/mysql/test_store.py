"""The store and a real MariaDB: lost replies, long values, fences, crashes, small packets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest

from oncekey._core.lifecycle import took_effect
from oncekey._core.op import arun, run
from oncekey._core.policy import DEFAULTS
from oncekey._core.record import Answer, State, Step
from oncekey._core.verbs import (
    AppendStep,
    Count,
    Done,
    Find,
    Insert,
    Inserted,
    Requested,
    Steps,
    Sweep,
    Verb,
)
from oncekey.errors import StoreUnavailable, StoreUnfit, TooLong
from oncekey.stores.base import AGAIN
from oncekey.stores.mysql.checks import PACKET_BYTES, PACKET_BYTES_MIN
from oncekey.stores.mysql.statements import LONG_BYTES_MIN, Question
from oncekey.stores.mysql.store import open_url
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import FACES
from tests.servers import MariaDB, start_mariadb
from tests.servers.mariadb import mysql_connection
from tests.servers.process import free_port
from tests.stores.mysql.kit import LOCK_WAIT, OTHERS, case_of, lock_rows, migrate, until
from tests.stores.postgres.kit import both_faces, insist, start
from tests.stores.racing import race
from tests.stores.wire import Wire

pytestmark = pytest.mark.slow


@pytest.fixture
def db(mariadb_url: str) -> Iterator[Any]:
    with mysql_connection(mariadb_url) as db:
        yield db


@pytest.fixture
def case(mariadb: Subject) -> Iterator[Case]:
    with contextlib.closing(FACES["sync"](mariadb.store)) as asked:
        yield Case(mariadb, asked)


@pytest.fixture
def patient_url(mariadb: Subject, migrated_mariadb_url: str) -> str:
    """Of a store that waits for a row long enough for a slow machine to see it wait."""
    return f"{migrated_mariadb_url}&timeout_s=80"


# ------------------------------------------------------------------------------- lost replies


@pytest.fixture(params=list(FACES))
def wired(
    request: pytest.FixtureRequest, mariadb: Subject, mariadb_url: str
) -> Iterator[tuple[Case, Wire]]:
    """A store behind a wire that can be cut, with every connection made."""
    port = urlsplit(mariadb_url).port
    assert port is not None
    with Wire(port) as wire:
        url = mariadb_url.replace(f":{port}/", f":{wire.port}/")
        url += "?allow=unsafe-durability&timeout_s=2&connect_timeout_s=2"
        with case_of(request.param, url, mariadb_url) as case:
            record = case.begin()
            case.ask(AppendStep(record.id, record.fence, record.token, Step("first", b"", b"")))
            case.done(case.renew(record))
            case.done(case.complete(record))
            case.ask(Count())
            yield case, wire


CUTS = {"before": Wire.cut_at_next_question, "after": Wire.cut_at_next_reply}


@pytest.mark.parametrize("when", CUTS)
def test_p9_a_batch_whose_reply_was_lost_is_carried_out_whole_or_not_at_all(
    wired: tuple[Case, Wire], db: Any, when: str
) -> None:
    case, wire = wired
    verbs = [case.complete(case.begin()) for _ in range(3)]
    with contextlib.closing(case.subject.store.connect()) as connection:
        [reply] = connection.ask(Question(("SELECT CONNECTION_ID()",)))
        [[number]] = reply.rows
        CUTS[when](wire)
        with pytest.raises(StoreUnavailable) as lost:
            run(case.subject.store.perform(verbs), connection.ask)
    assert (wire.cuts, lost.value.sent) == (1, True)
    # The first reply was cut: the server may still be busy with the rest of the batch.
    until(db, f"WHERE NOT EXISTS (SELECT 1 {OTHERS} AND id = {number})")
    found = [case.find(verb.id) for verb in verbs]
    assert [took_effect(*pair) for pair in zip(verbs, found, strict=True)] == [when == "after"] * 3
    for verb in verbs:
        again = case.ask(verb)
        assert isinstance(again, Done) or took_effect(verb, again.record)


def test_p11_a_server_that_does_not_answer_is_not_waited_for(wired: tuple[Case, Wire]) -> None:
    case, wire = wired
    wire.hold_replies()
    with pytest.raises(StoreUnavailable, match=r"no answer within 2 s") as late:
        case.ask(Insert(case.claim()))
    assert late.value.sent
    with pytest.raises(StoreUnavailable) as unconnected:
        case.ask(Insert(case.claim()))
    assert not unconnected.value.sent


@both_faces
def test_p12_where_nobody_listens_nothing_was_sent_and_no_password_is_told(face: str) -> None:
    store = open_url(f"mysql://user:s3cret@127.0.0.1:{free_port()}/keys")
    with pytest.raises(StoreUnavailable) as refused:
        start(store, face)
    assert not refused.value.sent
    assert "mysql://user:***@127.0.0.1" in str(refused.value)
    assert "s3cret" not in f"{refused.value} {refused.value.__cause__} {store!r}"


@both_faces
def test_a_wrong_password_is_told_as_such(mariadb_url: str, face: str) -> None:
    password = urlsplit(mariadb_url).password
    store = open_url(mariadb_url.replace(f":{password}@", ":wr%40ng@"))
    with pytest.raises(StoreUnavailable, match="Access denied") as refused:
        start(store, face)
    assert not refused.value.sent
    assert "wr@ng" not in f"{refused.value} {refused.value.__cause__}"


# ------------------------------------------------------------------------------ hanging up


def test_a_connection_that_was_closed_while_idle_has_sent_nothing(
    mariadb: Subject, db: Any
) -> None:
    store = mariadb.store
    with contextlib.closing(store.connect()) as connection:
        run(store.prepare(), connection.ask)
        _kill(db, OTHERS)
        with pytest.raises(StoreUnavailable, match="closed the connection") as gone:
            run(store.perform([Count()]), connection.ask)
    assert not gone.value.sent


async def test_an_async_connection_that_was_closed_while_idle_has_sent_nothing(
    mariadb: Subject, db: Any
) -> None:
    store = mariadb.store
    connection: Any = await store.aconnect()
    await arun(store.prepare(), connection.ask)
    _kill(db, OTHERS)
    await _wait_until_broken(connection)
    with pytest.raises(StoreUnavailable, match="closed the connection") as gone:
        await arun(store.perform([Count()]), connection.ask)
    assert not gone.value.sent
    await connection.close()


async def _wait_until_broken(connection: Any) -> None:
    """The loop hears of it while nobody asks."""
    for _ in range(2000):
        if connection._connection._stream_broken:
            return
        await asyncio.sleep(0.01)


@both_faces
def test_a_connection_that_is_closed_while_asking_may_have_sent(
    patient_url: str, mariadb_url: str, db: Any, face: str
) -> None:
    with case_of(face, patient_url, mariadb_url) as case, ThreadPoolExecutor(1) as meanwhile:
        record = case.begin()
        with lock_rows(mariadb_url, record.id):
            completing = meanwhile.submit(case.ask, case.complete(record))
            _kill(db, LOCK_WAIT)
            with pytest.raises(StoreUnavailable) as lost:
                completing.result()
        assert lost.value.sent
        assert insist(case, case.complete(record)) == Done(record.fence)


def _kill(db: Any, which: str) -> None:
    """End these connections as soon as there are any, and wait until they are gone."""
    killed = until(db, which, "id")
    with db.cursor() as cursor:
        for number in killed:
            with contextlib.suppress(pymysql.OperationalError):  # it has gone by itself
                cursor.execute(f"KILL {number}")
    for number in killed:
        until(db, f"WHERE NOT EXISTS (SELECT 1 {OTHERS} AND id = {number})")


# ------------------------------------------------------------------------------- long values

SIZES = [LONG_BYTES_MIN - 1, LONG_BYTES_MIN, 65_535, 65_536, 300_000, 2_000_000]


@pytest.mark.parametrize("alone", [True, False])
def test_long_values_are_kept_whole(mariadb: Subject, case: Case, alone: bool) -> None:
    """A server that makes rows into a table may cut what is long without a word."""
    store = mariadb.store
    values = [bytes((number + 1,)) * size for number, size in enumerate(SIZES)]
    claims = [case.claim(request=value) for value in values]
    with contextlib.closing(store.connect()) as connection:

        def carry_out(verbs: list[Verb]) -> list[Any]:
            if alone:
                return [run(store.perform([verb]), connection.ask)[0] for verb in verbs]
            outcomes = run(store.perform(verbs), connection.ask)
            again = [at for at, outcome in enumerate(outcomes) if outcome is AGAIN]
            assert again == [at for at, size in enumerate(SIZES) if size >= LONG_BYTES_MIN]
            for at in again:
                [outcomes[at]] = run(store.perform([verbs[at]]), connection.ask)
            return outcomes

        carry_out([Insert(claim) for claim in claims])
        assert [case.ask(Requested(claim.id)) == claim.request for claim in claims] == [True] * 6
        records = [case.find(claim.id) for claim in claims]
        carry_out(
            [
                AppendStep(record.id, record.fence, record.token, Step("pay", b"d", value))
                for record, value in zip(records, values, strict=True)
            ]
        )
        carry_out(
            [
                case.complete(record, Answer(200, (), value))
                for record, value in zip(records, values, strict=True)
            ]
        )
    for record, value in zip(records, values, strict=True):
        [step] = case.ask(Steps(record.id))
        answer = case.find(record.id).answer
        assert step.result == value
        assert answer is not None
        assert (answer.body == value) is True


def test_p11_what_is_too_long_for_the_server_is_refused_before_it_is_sent(
    mariadb: Subject, case: Case, db: Any
) -> None:
    """It would end the connection; whoever travels with it is served."""
    with db.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        [[bytes_max]] = cursor.fetchall()
    small, large = case.begin(), case.begin()
    body = bytes(bytes_max // 2)
    with pytest.raises(TooLong, match="raise max_allowed_packet"):
        case.ask(case.complete(large, Answer(200, (), body)))
    assert case.find(large.id).state is State.RUNNING
    assert case.ask(case.complete(small)) == Done(small.fence)


# ------------------------------------------------------------------------------------ fences


def test_p2_a_fence_is_above_all_that_were_removed_with_their_records(case: Case) -> None:
    record = case.begin()
    fences = [record.fence]
    for _ in range(3):
        case.lapse()
        record = case.done(case.take(record))
        fences.append(record.fence)
    case.elapse(record.expires_in_s + 1)
    assert case.ask(Sweep(10)) >= 1
    again = case.ask(Insert(case.claim(id=record.id)))
    assert isinstance(again, Inserted)
    assert again.fence > max(fences)
    assert fences == sorted(set(fences))


# -------------------------------------------------------------- a server of these tests' own

HOSTILE = {
    "default-time-zone": "+09:00",
    "sql-mode": "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT",
    "character-set-server": "latin1",
    "transaction-isolation": "SERIALIZABLE",
    "innodb-autoinc-lock-mode": "0",
    "autocommit": "0",
}


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDB]:
    """To be mistreated; its settings are none that the store could wish for."""
    with start_mariadb(durable=True, settings=HOSTILE) as server:
        migrate(open_url(server.url))
        yield server


@both_faces
def test_p4_what_was_acknowledged_survives_a_crash(server: MariaDB, face: str) -> None:
    with case_of(face, server.url, server.url) as case:
        assert case.subject.store.durability.power_loss
        completed, running = case.stage(State.COMPLETED), case.begin()
        server.kill()
        with pytest.raises(StoreUnavailable):
            case.ask(case.complete(running))
        server.restart()
        case.same(insist(case, Find(completed.id)), completed)
        assert insist(case, case.complete(running)) == Done(running.fence)
        insist(case, Insert(case.claim()))


@contextlib.contextmanager
def limit_packets(server: MariaDB, packet_bytes_max: int) -> Iterator[None]:
    """So much at a time, from connections that are made now."""
    with mysql_connection(server.url) as db, db.cursor() as cursor:
        cursor.execute(f"SET GLOBAL max_allowed_packet = {packet_bytes_max}")
        try:
            yield
        finally:
            cursor.execute(f"SET GLOBAL max_allowed_packet = {PACKET_BYTES}")


@both_faces
def test_p3_a_server_that_is_taken_takes_the_longest_answer(server: MariaDB, face: str) -> None:
    answer = Answer(200, ((b"x-note", b"n" * 60_000),), b"a" * DEFAULTS.answer_bytes_max)
    with limit_packets(server, PACKET_BYTES_MIN), case_of(face, server.url, server.url) as case:
        record = case.begin(case.claim(request=b"r" * DEFAULTS.request_kept_bytes_max))
        assert case.done(case.complete(record, answer)).answer == answer
    with (
        limit_packets(server, PACKET_BYTES_MIN - 1024),
        pytest.raises(StoreUnfit, match="allow=small-packets"),
    ):
        start(open_url(server.url), face)


def test_p11_a_batch_is_cut_to_what_the_server_takes(server: MariaDB) -> None:
    """And what is too long by itself is refused alone."""
    url = f"{server.url}?allow=small-packets"
    values = [bytes([number]) * 4_000 for number in range(12)]
    with (
        limit_packets(server, 32_768),
        case_of("sync", url, server.url) as case,
        contextlib.closing(case.subject.store.connect()) as connection,
    ):
        store = case.subject.store

        def carry_out(verbs: Sequence[Verb]) -> list[Any]:
            return run(store.perform(verbs), connection.ask)

        inserts = [Insert(case.claim(request=value)) for value in values]
        assert [type(outcome) for outcome in carry_out(inserts)] == [Inserted] * 12
        records = [case.find(verb.id) for verb in inserts]
        assert carry_out(
            [
                AppendStep(record.id, record.fence, record.token, Step("pay", b"", value))
                for record, value in zip(records, values, strict=True)
            ]
        ) == [Done(record.fence) for record in records]
        answers = [Answer(200, (), value) for value in values]
        completes = [case.complete(*pair) for pair in zip(records, answers, strict=True)]
        assert carry_out(completes) == [Done(record.fence) for record in records]
        assert [case.find(record.id).answer for record in records] == answers

        long = [Insert(case.claim(request=bytes(LONG_BYTES_MIN - 1))) for _ in range(2)]
        assert carry_out(long) == [AGAIN, AGAIN]
        with pytest.raises(TooLong, match="raise max_allowed_packet"):
            carry_out(long[:1])


@both_faces
def test_p8_time_zone_and_settings_of_the_server_do_not_matter(server: MariaDB, face: str) -> None:
    with case_of(face, server.url, server.url) as case:
        record = case.begin(case.claim(tenant='it\'s \\ "日本"'))
        assert record.tenant == 'it\'s \\ "日本"'
        assert record.lease_left_s == case.about(case.lease_s)
        with mysql_connection(server.url) as db, db.cursor() as cursor:
            cursor.execute(
                "SELECT created BETWEEN UTC_TIMESTAMP() - INTERVAL 60 SECOND "
                "AND UTC_TIMESTAMP() + INTERVAL 1 SECOND FROM oncekey_claims "
                "WHERE id = %s",
                (record.id,),
            )
            assert cursor.fetchone() == (1,)
        case.elapse(case.lease_s + 1)
        assert case.find(record.id).lapsed


# ---------------------------------------------------------------------------------- processes


def test_p1_of_several_processes_one_wins_each_record(
    mariadb: Subject, migrated_mariadb_url: str
) -> None:
    """Their batches overlap in opposite orders."""
    assert race(migrated_mariadb_url, 1000) == 1000
    face = FACES["sync"](mariadb.store)
    assert face.ask(Count())[State.RUNNING] == 1000
    face.close()
