"""The store and a real PostgreSQL: lost replies, lost connections, crashes, commits in doubt."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from oncekey._core import lifecycle
from oncekey._core.lifecycle import Held, took_effect
from oncekey._core.op import arun, run
from oncekey._core.record import State, Step
from oncekey._core.verbs import AppendStep, Count, Done, Find, Insert, Refused
from oncekey.errors import StoreUnavailable
from oncekey.stores.postgres import connection as module
from oncekey.stores.postgres.store import open_url
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import ANSWER, FACES
from tests.servers import Postgres, start_postgres
from tests.servers.process import free_port
from tests.stores.postgres.kit import (
    LOCK_WAIT,
    Connection,
    both_faces,
    case_of,
    insist,
    migrate,
    start,
    until,
)
from tests.stores.racing import race
from tests.stores.wire import Wire


@pytest.fixture
def db(postgres_url: str) -> Iterator[Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as db:
        yield db


# ------------------------------------------------------------------------------- lost replies


@pytest.fixture(params=list(FACES))
def wired(
    request: pytest.FixtureRequest, postgres: Subject, postgres_url: str
) -> Iterator[tuple[Case, Wire]]:
    """A store behind a wire that can be cut."""
    parts = urlsplit(postgres_url)
    assert parts.port is not None
    with Wire(parts.port) as wire:
        url = postgres_url.replace(f":{parts.port}/", f":{wire.port}/")
        url += "?allow=unsafe-durability&timeout_s=0.5&connect_timeout_s=1"
        with case_of(request.param, url, postgres_url) as case:
            record = case.begin()  # every connection is made, every statement prepared
            case.ask(AppendStep(record.id, record.fence, record.token, Step("first", b"", b"")))
            case.done(case.complete(record))
            yield case, wire


@pytest.mark.slow
def test_p11_a_server_that_does_not_answer_is_not_waited_for(wired: tuple[Case, Wire]) -> None:
    case, wire = wired
    wire.hold_replies()
    with pytest.raises(StoreUnavailable, match=r"no answer within 0\.5 s") as late:
        case.ask(Insert(case.claim()))
    assert late.value.sent
    with pytest.raises(StoreUnavailable) as unconnected:
        case.ask(Insert(case.claim()))
    assert not unconnected.value.sent


@both_faces
def test_p12_where_nobody_listens_nothing_was_sent_and_no_password_is_told(face: str) -> None:
    store = open_url(f"postgresql://user:s3cret@127.0.0.1:{free_port()}/keys")
    with pytest.raises(StoreUnavailable) as refused:
        start(store, face)
    assert not refused.value.sent
    assert "postgresql://user:***@127.0.0.1" in str(refused.value)
    assert "s3cret" not in f"{refused.value} {refused.value.__cause__} {store!r}"


@both_faces
def test_p12_a_wrong_password_is_not_told_either(postgres_url: str, face: str) -> None:
    password = urlsplit(postgres_url).password
    store = open_url(postgres_url.replace(f":{password}@", ":wr%40ng@"))
    with pytest.raises(StoreUnavailable, match="password authentication failed") as refused:
        start(store, face)
    assert not refused.value.sent
    assert "wr@ng" not in f"{refused.value} {refused.value.__cause__}"


# ------------------------------------------------------------------------------ hanging up


def test_a_connection_that_was_closed_while_idle_has_sent_nothing(
    postgres: Subject, db: Connection
) -> None:
    store = postgres.store
    with contextlib.closing(store.connect()) as connection:
        run(store.prepare(), connection.ask)
        _terminate(db)
        with pytest.raises(StoreUnavailable, match="closed the connection") as gone:
            run(store.perform([Count()]), connection.ask)
    assert not gone.value.sent


async def test_an_async_connection_that_was_closed_while_idle_has_sent_nothing(
    postgres: Subject, db: Connection
) -> None:
    store = postgres.store
    connection = await store.aconnect()
    await arun(store.prepare(), connection.ask)
    _terminate(db)
    await asyncio.sleep(0.05)  # the loop hears of it while nobody asks
    with pytest.raises(StoreUnavailable, match="closed the connection") as gone:
        await arun(store.perform([Count()]), connection.ask)
    assert not gone.value.sent
    await connection.close()


async def test_an_async_connection_that_has_said_its_last_words_sends_nothing(
    postgres: Subject,
) -> None:
    """That it has hung up too the loop may hear only after the next question."""
    store = postgres.store
    connection = await store.aconnect()
    await arun(store.perform([Count()]), connection.ask)
    words = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection\0\0"
    protocol = connection._connection._protocol  # type: ignore[attr-defined]
    protocol.data_received(b"E" + (len(words) + 4).to_bytes(4, "big") + words)
    with pytest.raises(StoreUnavailable, match="closed the connection") as gone:
        await arun(store.perform([Count()]), connection.ask)
    assert not gone.value.sent
    await connection.close()


@both_faces
def test_a_connection_that_is_closed_while_asking_may_have_sent(
    postgres: Subject, postgres_url: str, db: Connection, face: str
) -> None:
    asking = contextlib.closing(FACES[face](postgres.store))
    with asking as asked, ThreadPoolExecutor(1) as meanwhile:
        case = Case(postgres, asked)
        record = case.begin()
        with psycopg.connect(postgres_url) as holder:
            holder.execute("SELECT FROM oncekey_claims FOR UPDATE")
            completing = meanwhile.submit(case.ask, case.complete(record))
            until(db, LOCK_WAIT)
            _terminate(db)
            with pytest.raises(StoreUnavailable, match="terminating connection") as lost:
                completing.result()
        assert lost.value.sent
        assert insist(case, case.complete(record)) == Done(record.fence)


@both_faces
def test_a_table_that_is_changed_meanwhile_is_asked_by_another_connection(
    postgres: Subject, db: Connection, face: str
) -> None:
    """What was prepared before that fits it no more: the old one would fail for ever."""
    with contextlib.closing(FACES[face](postgres.store)) as asked:
        case = Case(postgres, asked)
        record = case.begin()
        for kind in ("bigint", "integer"):
            for _ in range(3):
                insist(case, Find(record.id))
            db.execute(f"ALTER TABLE oncekey_claims ALTER COLUMN lapses TYPE {kind}".encode())
            assert insist(case, Find(record.id)).id == record.id


async def test_a_task_that_is_cancelled_does_not_cancel_its_statement(
    postgres: Subject, postgres_url: str, db: Connection
) -> None:
    """A COMMIT that waits for a standby would be cut short, and seem to have succeeded."""
    store = postgres.store
    case = Case(postgres, FACES["sync"](store))
    claim = case.claim()
    asker = await store.aconnect()
    [inserted] = await arun(store.perform([Insert(claim)]), asker.ask)
    held = Held(claim.id, inserted.fence, claim.token)
    complete = lifecycle.complete(held, ANSWER, retention_s=60.0)
    with psycopg.connect(postgres_url) as holder:
        holder.execute("SELECT FROM oncekey_claims FOR UPDATE")
        asking = asyncio.create_task(arun(store.perform([complete]), asker.ask))
        await asyncio.to_thread(until, db, LOCK_WAIT)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.sleep(0.05)  # long enough for a cancel request to arrive
    await asyncio.to_thread(until, db, "FROM oncekey_claims WHERE state = 'completed'")
    await asker.close()


def test_a_thread_that_is_interrupted_does_not_cancel_its_statement(
    postgres: Subject, postgres_url: str, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: Any, gen: Any) -> Any:
        awaited = next(gen)
        while not db.execute(f"SELECT 1 {LOCK_WAIT}".encode()).fetchone():
            awaited = gen.send((yield awaited))
        raise KeyboardInterrupt

    with contextlib.closing(FACES["sync"](postgres.store)) as face:
        case = Case(postgres, face)
        record = case.begin()
        connection = postgres.store.connect()
        with psycopg.connect(postgres_url) as holder:
            holder.execute("SELECT FROM oncekey_claims FOR UPDATE")
            with monkeypatch.context() as patch:
                patch.setattr(module._Bounded, "_until_deadline", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    run(postgres.store.perform([case.complete(record)]), connection.ask)
        until(db, "FROM oncekey_claims WHERE state = 'completed'")


def _terminate(db: Connection) -> None:
    db.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE application_name = 'oncekey' AND datname = current_database()"
    )


# -------------------------------------------------------------- a server of these tests' own


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """To be mistreated."""
    with start_postgres(durable=True) as server:
        migrate(open_url(server.url))
        yield server


@pytest.mark.slow
@both_faces
def test_p4_what_was_acknowledged_survives_a_crash(server: Postgres, face: str) -> None:
    with case_of(face, server.url, server.url) as case:
        assert case.subject.store.durability.power_loss
        completed, running = case.stage(State.COMPLETED), case.begin()
        server.kill()
        with pytest.raises(StoreUnavailable):
            case.ask(case.complete(running))
        server.restart()
        case.same(insist(case, Find(completed.id)), completed)
        assert insist(case, case.complete(running)) == Done(running.fence)
        assert insist(case, Insert(case.claim())).fence > running.fence


@pytest.fixture
def doubtful(server: Postgres) -> Iterator[Callable[[], None]]:
    """From when it is called until the end, no commit is acknowledged: the standby is not there."""
    with psycopg.connect(server.url, autocommit=True) as db:

        def set_standby(name: str) -> None:
            db.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'".encode())
            db.execute("SELECT pg_reload_conf()")
            condition = "WHERE current_setting('synchronous_standby_names') = %s"
            until(db, condition, name)

        def doubt() -> None:
            set_standby("nobody")
            # Who has read the setting does not wait yet: commits go by what the server's
            # checkpointer made of it, in its own time.
            with contextlib.closing(psycopg.connect(server.url, autocommit=True)) as committer:
                while not _waits(committer, db):
                    pass
                db.execute("SELECT pg_cancel_backend(%s)", (committer.info.backend_pid,))

        yield doubt
        set_standby("")


def _waits(committer: psycopg.Connection[Any], db: psycopg.Connection[Any]) -> bool:
    """Whether a commit waits for a standby; it is under way then."""
    waits = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
    committer.pgconn.send_query(b"SELECT pg_logical_emit_message(true, 'doubt', '')")
    while committer.pgconn.is_busy():
        if db.execute(waits, (committer.info.backend_pid,)).fetchone():
            return True
        committer.pgconn.consume_input()
    while committer.pgconn.get_result():
        pass
    return False


@pytest.mark.slow
@both_faces
def test_p9_a_commit_in_doubt_is_resolved_by_the_row_it_holds(
    server: Postgres, doubtful: Callable[[], None], face: str
) -> None:
    """F3: a look shows the old state; `statement_timeout` does not bound the wait for a standby."""
    url = f"{server.url}?timeout_s=0.5&options={quote('-c statement_timeout=200')}"
    with case_of(face, url, server.url) as case:
        record = case.begin()
        complete = case.complete(record)
        doubtful()
        with pytest.raises(StoreUnavailable, match="no answer within") as late:
            case.ask(complete)
        assert late.value.sent
        assert case.find(record.id).state is State.RUNNING  # which proves nothing
        with pytest.raises(StoreUnavailable) as held:
            case.ask(complete)
        assert held.value.sent
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute("ALTER SYSTEM RESET synchronous_standby_names")
            db.execute("SELECT pg_reload_conf()")
            until(
                db, "WHERE NOT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')"
            )
        again = case.ask(complete)
        assert isinstance(again, Refused)
        assert took_effect(complete, again.record)


@pytest.mark.slow
@pytest.mark.parametrize("heard", ["notice", "error"])
@both_faces
def test_a_commit_that_was_cut_short_is_not_taken_for_done(
    server: Postgres, doubtful: Callable[[], None], face: str, heard: str
) -> None:
    """Whatever a role is told by the server: its warnings say so."""
    url = f"{server.url}?options={quote(f'-c client_min_messages={heard}')}"
    with case_of(face, url, server.url) as case, ThreadPoolExecutor(1) as meanwhile:
        record = case.begin()
        doubtful()
        completing = meanwhile.submit(case.ask, case.complete(record))
        with psycopg.connect(server.url, autocommit=True) as db:
            waits = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            until(db, waits)
            db.execute(f"SELECT pg_cancel_backend(pid) {waits}".encode())
        with pytest.raises(StoreUnavailable, match="standby") as cut:
            completing.result()
        assert cut.value.sent


# ---------------------------------------------------------------------------------- processes


@pytest.mark.slow
def test_p1_of_several_processes_one_wins_each_record(postgres: Subject, migrated_url: str) -> None:
    """Their batches overlap in opposite orders; a deadlock would fail one of them."""
    assert race(migrated_url, 2000) == 2000
    face = FACES["sync"](postgres.store)
    assert face.ask(Count())[State.RUNNING] == 2000
    face.close()
