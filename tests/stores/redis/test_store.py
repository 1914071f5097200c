"""What Redis can do to records beyond the contract: expire, evict, restart, fill up, fail over."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from redis import Redis as Client

from oncekey._core.op import run
from oncekey._core.record import Record, State, Step
from oncekey._core.verbs import (
    AppendStep,
    Count,
    Done,
    Due,
    Find,
    Found,
    Insert,
    Inserted,
    Peek,
    Purge,
    Refused,
    Scan,
    Steps,
    Sweep,
    Tally,
    Verb,
)
from oncekey.errors import CorruptRecord, StoreError, StoreUnavailable, StoreUnfit
from oncekey.stores.base import AGAIN
from oncekey.stores.redis.store import RedisStore, open_url
from oncekey.stores.redis.verbs import SCRIPTS
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import ANSWER, FACES, Face
from tests.servers import Redis, start_redis
from tests.servers.process import free_port
from tests.stores import elapse
from tests.stores.racing import race
from tests.stores.wire import Wire

PREFIX = "oncekey"


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    """A server for these tests alone, which break it."""
    with start_redis() as server:
        yield server


@pytest.fixture
def client(server: Redis) -> Iterator[Any]:
    """Direct access to the server, which is reset afterwards."""
    with Client.from_url(server.url) as client:
        yield client
        client.config_set("maxmemory", 0)
        client.replicaof("NO", "ONE")
        client.flushall()


@pytest.fixture(params=list(FACES))
def case(request: pytest.FixtureRequest, server: Redis, client: Any) -> Iterator[Case]:
    yield from _case(open_url(server.url), server, FACES[request.param])


def _case(store: RedisStore, server: Redis, make_face: Any) -> Iterator[Case]:
    face: Face = make_face(store)
    yield Case(Subject(store, elapse=partial(elapse.redis, server.url, PREFIX)), face)
    face.close()


def _key(record: Record) -> str:
    return f"{PREFIX}:{record.id.hex()}"


def _unavailable(outcome: Any, *, sent: bool) -> bool:
    return isinstance(outcome, StoreUnavailable) and outcome.sent is sent


# ------------------------------------------------------------------------------------------- expiry


def test_p10_what_runs_or_is_unknown_never_vanishes_by_itself(case: Case, client: Any) -> None:
    running, unknown = case.begin(), case.stage(State.UNKNOWN)
    case.done(case.renew(running))
    assert client.ttl(_key(running)) == client.ttl(_key(unknown)) == -1


@pytest.mark.parametrize("state", [State.COMPLETED, State.RELEASED])
def test_what_has_ended_vanishes_at_its_expiry_and_not_before(
    case: Case, client: Any, state: State
) -> None:
    record = case.stage(state)
    vanishes_ms = client.pexpiretime(_key(record))
    expires_us = int(client.hget(_key(record), "expires"))
    assert 0 <= vanishes_ms * 1000 - expires_us < 1000


def test_what_runs_again_loses_its_expiry(case: Case, client: Any) -> None:
    released, completed = case.stage(State.RELEASED), case.stage(State.COMPLETED)
    case.done(case.take(released))
    case.expire()
    started_over = case.done(case.take(case.find(completed.id)))
    assert client.ttl(_key(released)) == client.ttl(_key(started_over)) == -1


def test_a_resolved_unknown_gets_an_expiry(case: Case, client: Any) -> None:
    record = case.done(case.resolve(case.stage(State.UNKNOWN)))
    assert client.ttl(_key(record)) > 0


def test_looking_and_counting_leave_the_expiry_alone(case: Case, client: Any) -> None:
    record = case.stage(State.COMPLETED)
    before = client.pexpiretime(_key(record))
    case.ask(Insert(case.rival(record)))
    case.ask(Peek(record.id))
    case.ask(Tally({record.id: 1}, {record.id: 1}))
    case.ask(Purge("acct_1", 10))
    assert client.pexpiretime(_key(record)) == before


def test_a_fence_rises_over_a_record_that_vanished(case: Case, client: Any) -> None:
    completed = case.stage(State.COMPLETED)
    client.pexpireat(_key(completed), 1)  # the server's TTL removes it
    assert case.ask(Find(completed.id)) is None
    again = case.ask(Insert(case.rival(completed)))
    assert isinstance(again, Inserted)
    assert again.fence > completed.fence
    case.refused(case.complete(completed), case.find(completed.id))


def test_a_record_that_vanished_took_its_steps_along(case: Case, client: Any) -> None:
    record = case.begin()
    case.ask(AppendStep(record.id, record.fence, record.token, Step("pay", b"d", b"paid")))
    case.done(case.complete(record))
    client.pexpireat(_key(record), 1)
    case.begin(case.rival(record))
    assert case.ask(Steps(record.id)) == []


# ---------------------------------------------------------------------------------- what is written


def test_replays_and_refusals_write_nothing(case: Case, client: Any) -> None:
    completed, running = case.stage(State.COMPLETED), case.begin()

    def written() -> tuple[int, int]:
        info = client.info()
        return info["rdb_changes_since_last_save"], info["master_repl_offset"]

    before = written()
    assert isinstance(case.ask(Insert(case.rival(completed))), Found)
    assert isinstance(case.ask(Insert(case.rival(running))), Found)
    assert isinstance(case.ask(case.release(completed)), Refused)
    looks: list[Verb] = [Find(running.id), Peek(running.id), Steps(running.id), Scan(10), Count()]
    looks += [Due(10), Sweep(10), Purge("nobody", 10)]
    for look in looks:
        case.ask(look)
    assert written() == before


def test_one_key_holds_all_of_a_record(case: Case, client: Any) -> None:
    record = case.begin()
    case.ask(AppendStep(record.id, record.fence, record.token, Step("pay", b"d", b"paid")))
    case.done(case.complete(record))
    assert set(client.keys()) == {_key(record).encode(), f"{PREFIX}:schema".encode()}


def test_a_strange_key_is_reported_and_not_guessed_at(case: Case, client: Any) -> None:
    record, other = case.begin(), case.begin()
    client.delete(_key(record), _key(other))
    client.set(_key(record), "a string")
    client.hset(_key(other), "state", "running")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        case.ask(Find(record.id))
    with pytest.raises(CorruptRecord, match=other.id.hex()):
        case.ask(Find(other.id))
    assert isinstance(case.ask(Insert(case.claim())), Inserted)


def test_a_walk_over_more_keys_than_one_portion_misses_none(case: Case, client: Any) -> None:
    claims = [case.claim() for _ in range(1100)]
    assert all(isinstance(outcome, Inserted) for outcome in _in_batches(case, claims))
    client.set(f"{PREFIX}:somebody-elses", "")
    assert case.ask(Count())[State.RUNNING] == len(claims)
    ids = sorted(claim.id for claim in claims)
    assert [record.id for record in case.ask(Scan(1000))] == ids[:1000]
    case.expire()
    assert sorted(case.ask(Due(2000))) == ids
    swept = [case.ask(Sweep(400)) for _ in range(12)]
    assert max(swept) <= 400
    assert sum(swept) == len(claims)


def _in_batches(case: Case, claims: list[Any]) -> Iterator[Any]:
    store = case.subject.store
    connection = store.connect()
    for at in range(0, len(claims), 100):
        verbs = [Insert(claim) for claim in claims[at : at + 100]]
        yield from run(store.perform(verbs), connection.ask)
    connection.close()


# ------------------------------------------------------------------------------------- lost replies


@pytest.fixture(params=list(FACES))
def wired(
    request: pytest.FixtureRequest, server: Redis, client: Any
) -> Iterator[tuple[Case, Wire]]:
    """A store behind a proxy that can cut its connections."""
    with Wire(server.port) as wire:
        url = server.url.replace(f":{server.port}/", f":{wire.port}/")
        store = open_url(f"{url}?timeout_s=0.5&connect_timeout_s=0.5")
        for case in _case(store, server, FACES[request.param]):
            case.stage(State.COMPLETED)  # opens every connection
            yield case, wire


@pytest.mark.slow
def test_p11_a_server_that_does_not_answer_is_not_waited_for(wired: tuple[Case, Wire]) -> None:
    case, wire = wired
    wire.hold_replies()
    with pytest.raises(StoreUnavailable) as late:
        case.ask(Insert(case.claim()))
    assert late.value.sent
    with pytest.raises(StoreUnavailable, match="cannot connect") as unconnected:
        case.ask(Insert(case.claim()))
    assert not unconnected.value.sent


def test_where_nobody_listens_nothing_was_sent(server: Redis) -> None:
    nowhere = open_url(server.url.replace(f":{server.port}/", f":{free_port()}/"))
    for connect in (nowhere.connect, lambda: asyncio.run(nowhere.aconnect())):
        with pytest.raises(StoreUnavailable, match="cannot connect") as refused:
            connect()
        assert not refused.value.sent


# ----------------------------------------------------------------------------------------- restarts


@pytest.mark.parametrize("face", list(FACES))
def test_p4_what_was_acknowledged_survives_a_crash(face: str) -> None:
    with start_redis(durable=True) as server:
        store = open_url(server.url)
        for case in _case(store, server, FACES[face]):
            completed, running = case.stage(State.COMPLETED), case.begin()
            assert store.durability.power_loss
            server.kill()
            with pytest.raises(StoreUnavailable):
                case.ask(case.complete(running))
            server.restart()
            # The connections are broken and the scripts lost; both come back by themselves.
            with pytest.raises(StoreUnavailable):
                case.ask(Find(completed.id))
            case.same(case.find(completed.id), completed)
            assert case.done(case.complete(running)).answer == ANSWER


def test_scripts_that_were_flushed_are_loaded_again(case: Case, client: Any) -> None:
    record = case.begin()
    client.script_flush()
    assert isinstance(case.ask(Insert(case.claim())), Inserted)
    client.script_flush()
    assert case.done(case.complete(record)).state is State.COMPLETED


def test_in_a_batch_only_what_the_server_did_not_know_is_asked_again(
    case: Case, client: Any
) -> None:
    record = case.begin()
    step = AppendStep(record.id, record.fence, record.token, Step("pay", b"d", b"paid"))
    case.ask(step)
    store = case.subject.store
    connection = store.connect()
    client.script_flush()
    run(store.perform([Peek(record.id)]), connection.ask)  # loads all scripts again
    client.script_flush()
    _load_only(client, "find")
    found, glimpse, steps = run(
        store.perform([Find(record.id), Peek(record.id), Steps(record.id)]), connection.ask
    )
    connection.close()
    case.same(found, case.find(record.id))
    assert glimpse.fence == record.fence
    assert steps == [step.step]


def _load_only(client: Any, name: str) -> None:
    [text] = [text for text in SCRIPTS.values() if f"-- {name.capitalize()}:" in text]
    client.script_load(text)


# -------------------------------------------------------------------------------------- full memory


def test_a_full_server_refuses_claims_and_lets_attempts_finish(case: Case, client: Any) -> None:
    running, failing, completed = case.begin(), case.begin(), case.stage(State.COMPLETED)
    client.config_set("maxmemory", 1)
    claim = case.claim()
    with pytest.raises(StoreUnavailable, match="memory is full") as refused:
        case.ask(Insert(claim))
    assert not refused.value.sent
    assert case.ask(Find(claim.id)) is None

    assert isinstance(case.ask(Insert(case.rival(completed))), Found)
    step = AppendStep(running.id, running.fence, running.token, Step("pay", b"d", b"paid"))
    assert case.ask(step) == Done(running.fence)
    case.done(case.renew(running))
    assert case.done(case.complete(running)).answer == ANSWER
    case.done(case.release(failing))
    assert case.ask(Purge("acct_1", 10)) == 3

    client.config_set("maxmemory", 0)
    assert isinstance(case.ask(Insert(claim)), Inserted)
    case.expire()
    client.config_set("maxmemory", 1)
    assert case.ask(Sweep(10)) == 4


def test_in_a_batch_one_refusal_is_not_the_others(case: Case, client: Any) -> None:
    """A claim that was made is never reported as one that was provably not sent."""
    completed = case.stage(State.COMPLETED)
    client.config_set("maxmemory", 1)
    store = case.subject.store
    connection = store.connect()
    verbs = [Insert(case.claim()), Insert(case.rival(completed))]
    refused, found = run(store.perform(verbs), connection.ask)
    connection.close()
    assert refused is AGAIN
    assert isinstance(found, Found)
    outcomes = case.together(verbs)
    assert _unavailable(outcomes[0], sent=False)
    assert isinstance(outcomes[1], Found)


# ----------------------------------------------------------------------------------------- replicas


@pytest.fixture
def replica(server: Redis, client: Any) -> Iterator[Redis]:
    with start_redis() as replica:
        client.config_set("repl-diskless-sync-delay", 0)
        with Client.from_url(replica.url) as other:
            other.config_set("masterauth", client.connection_pool.connection_kwargs["password"])
            other.replicaof("127.0.0.1", server.port)
        _await_replica(client)
        yield replica


def _await_replica(client: Any) -> None:
    client.set("something", "to wait for")
    assert client.wait(1, 4_000) == 1


@pytest.fixture(params=list(FACES))
def waiting(request: pytest.FixtureRequest, server: Redis, replica: Redis) -> Iterator[Case]:
    """A store that waits for a replica."""
    store = open_url(f"{server.url}?wait_replicas=1&wait_timeout_s=0.5")
    yield from _case(store, server, FACES[request.param])


@pytest.mark.slow
def test_what_was_acknowledged_is_on_the_replica(waiting: Case, replica: Redis) -> None:
    with Client.from_url(replica.url) as other:
        record = waiting.begin()
        assert other.hget(_key(record), "state") == b"running"
        waiting.done(waiting.complete(record))
        assert other.hget(_key(record), "state") == b"completed"


@pytest.mark.slow
def test_nothing_is_told_that_the_replica_does_not_have(
    waiting: Case, client: Any, replica: Redis
) -> None:
    """Not even reads: otherwise a failover could take back a response that was replayed."""
    claim = waiting.claim()
    record = waiting.begin()
    waiting.stage(State.RELEASED, waiting.claim(tenant="leaving"))
    replica.signal_all(signal.SIGSTOP)
    verbs: list[Verb] = [Insert(claim), Insert(claim), waiting.complete(record)]
    for verb in [*verbs, Insert(waiting.rival(record)), Purge("leaving", 10)]:
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas") as unsure:
            waiting.ask(verb)
        assert unsure.value.sent
    replica.signal_all(signal.SIGCONT)
    _await_replica(client)
    again = waiting.ask(Insert(claim))
    assert isinstance(again, Found)
    assert again.record.token == claim.token
    assert waiting.find(record.id).answer == ANSWER


@pytest.mark.slow
def test_a_replica_is_refused_and_a_demoted_primary_noticed(
    case: Case, client: Any, replica: Redis
) -> None:
    with pytest.raises(StoreUnfit, match=r"a replica: .*Connect to its primary"):
        _start(open_url(replica.url))
    case.begin()
    client.replicaof("127.0.0.1", replica.port)
    with pytest.raises(StoreUnavailable, match="a replica now") as refused:
        case.ask(Insert(case.claim()))
    assert not refused.value.sent
    with pytest.raises(StoreUnfit, match="a replica: it cannot be written to"):
        case.ask(Insert(case.claim()))


def _start(store: RedisStore) -> None:
    connection = store.connect()
    try:
        run(store.prepare(), connection.ask)
    finally:
        connection.close()


# ---------------------------------------------------------------------------------------- processes


@pytest.mark.slow
def test_p1_of_several_processes_one_wins_each_record(server: Redis, client: Any) -> None:
    assert race(server.url, 300, singly=True) == 300
    assert client.dbsize() == 301  # and the schema version
