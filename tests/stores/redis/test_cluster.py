"""Records in a Redis Cluster: found on the right node while slots and primaries move."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from typing import Any, Self

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from oncekey._core.record import Record, State, Step
from oncekey._core.verbs import AppendStep, Done, Due, Find, Found, Insert, Inserted
from oncekey.errors import StoreUnavailable, StoreUnfit
from oncekey.stores.redis.cluster import SLOT_OF_BYTE, TAG_OF_BYTE, slot_of
from oncekey.stores.redis.store import open_url
from oncekey.testing.contract import Case, StoreContract, Subject
from oncekey.testing.contract.subject import FACES
from tests.servers import start_redis
from tests.servers.process import free_port
from tests.servers.redis_cluster import RedisCluster, start_redis_cluster
from tests.servers.skipping import or_skip
from tests.stores import elapse
from tests.stores.redis import kit
from tests.stores.test_against_memory import compare

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    """Three primaries, each with a replica, for these tests alone, which break them."""
    with or_skip(), start_redis_cluster() as started:
        yield started


@pytest.fixture
def prefix() -> str:
    return f"oncekey-{uuid.uuid4().hex}"


@pytest.fixture
def subject(cluster: RedisCluster, prefix: str) -> Iterator[Subject]:
    yield kit.subject(cluster, prefix)
    kit.empty(cluster)


@pytest.fixture(params=list(FACES))
def case(request: pytest.FixtureRequest, subject: Subject) -> Iterator[Case]:
    with contextlib.closing(FACES[request.param](subject.store)) as face:
        yield Case(subject, face)


class TestCluster(StoreContract):
    """The whole contract, over three primaries."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("colour", FACES)
def test_it_behaves_like_memory(subject: Subject, colour: str) -> None:
    compare(subject, colour, examples=10)


# ------------------------------------------------------------------------------------------- slots


@given(st.text(st.characters(codec="utf-8"), max_size=40))
@example("{}a")
@example("a{b")
@example("a{}{b}")
@example("a{b}{c}")
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_key_has_the_slot_that_the_cluster_gives_it(cluster: RedisCluster, key: str) -> None:
    asked = cluster.nodes[0].client.execute_command("CLUSTER KEYSLOT", key.encode())
    assert slot_of(key) == asked


def test_all_keys_of_a_record_have_one_slot(case: Case, cluster: RedisCluster, prefix: str) -> None:
    record = case.begin(case.claim(recovery="block"))
    case.ask(AppendStep(record.id, record.fence, record.token, Step("a", b"", b"done")))
    slot = SLOT_OF_BYTE[record.id[0]]
    keys = cluster.owner(slot).client.execute_command("CLUSTER GETKEYSINSLOT", slot, 10)
    tagged = f"{prefix}:{{{TAG_OF_BYTE[record.id[0]]}}}/"
    assert set(keys) == {tagged + record.id.hex(), tagged + "open"}


# -------------------------------------------------------------------------------------- on the move


class Moving:
    """A slot half-way from one node to another, and its keys."""

    def __init__(self, cluster: RedisCluster, record: Record, prefix: str) -> None:
        self._cluster = cluster
        self._slot = SLOT_OF_BYTE[record.id[0]]
        self._key = f"{prefix}:{{{TAG_OF_BYTE[record.id[0]]}}}/"
        self._record = self._key + record.id.hex()
        self._source = cluster.owner(self._slot)
        others = [node for node in cluster.primaries() if node is not self._source]
        self._target = others[0]

    def __enter__(self) -> Self:
        self._cluster.begin_move(self._slot, self._source, self._target)
        return self

    def __exit__(self, *_: object) -> None:
        client = self._source.client
        while keys := client.execute_command("CLUSTER GETKEYSINSLOT", self._slot, 10):
            self._cluster.move_keys(self._source, self._target, keys)
        self._cluster.end_move(self._slot, self._source, self._target)

    def move_record(self) -> None:
        self._cluster.move_keys(self._source, self._target, [self._record])

    def move_list(self) -> None:
        self._cluster.move_keys(self._source, self._target, [f"{self._key}open"])


@pytest.mark.parametrize("moved", ["nothing", "record", "list", "both"])
@pytest.mark.parametrize("recovery", ["rerun", "block"])
def test_a_record_is_served_at_every_point_of_a_move(
    case: Case, cluster: RedisCluster, prefix: str, moved: str, recovery: str
) -> None:
    record = case.begin(case.claim(recovery=recovery))
    with Moving(cluster, record, prefix) as moving:
        if moved in ("record", "both"):
            moving.move_record()
        if moved in ("list", "both") and recovery == "block":
            moving.move_list()
        case.done(case.renew(record))
        assert isinstance(case.ask(Insert(case.rival(record))), Found)
        case.done(case.complete(record))
    assert case.find(record.id).state is State.COMPLETED  # at its new node


def test_a_claim_is_made_at_the_target_of_a_move(
    case: Case, cluster: RedisCluster, prefix: str
) -> None:
    record = case.begin(case.claim(recovery="block"))
    with Moving(cluster, record, prefix):
        fresh = case.claim(id=record.id[:1] + os.urandom(31), recovery="block")
        assert isinstance(case.ask(Insert(fresh)), Inserted)
        found = case.ask(Insert(case.claim(id=fresh.id)))
        assert isinstance(found, Found)
        assert found.record.token == fresh.token
    assert case.find(fresh.id).token == fresh.token


def test_what_is_abandoned_is_found_while_and_after_its_slot_moves(
    case: Case, cluster: RedisCluster, prefix: str
) -> None:
    record = case.begin(case.claim(recovery="block"))
    case.lapse()
    with Moving(cluster, record, prefix) as moving:
        moving.move_record()  # without its list
        case.ask(Due(10, abandoned=True))
        assert case.find(record.id).lapsed
    assert case.ask(Due(10, abandoned=True)) == [record.id]


def test_with_wait_a_node_that_moves_its_slots_away_still_acknowledges(
    cluster: RedisCluster, prefix: str
) -> None:
    subject = kit.subject(cluster, prefix, "&wait_replicas=1")
    with contextlib.closing(FACES["sync"](subject.store)) as face:
        case = Case(subject, face)
        record = case.begin()
        with Moving(cluster, record, prefix):
            assert isinstance(case.ask(Insert(case.rival(record))), Found)
            case.done(case.complete(record))


# -------------------------------------------------------------------------------------- unavailable


def test_a_cluster_that_cannot_be_reached_was_not_sent_anything() -> None:
    store = open_url(f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{free_port()}")
    with (
        contextlib.closing(FACES["sync"](store)) as face,
        pytest.raises(StoreUnavailable) as caught,
    ):
        face.ask(Find(b"i" * 32))
    assert not caught.value.sent


def test_a_server_alone_is_no_cluster() -> None:
    with start_redis() as server:
        store = open_url(server.url.replace("redis://", "redis+cluster://"))
        with contextlib.closing(FACES["sync"](store)) as face, pytest.raises(StoreUnfit) as caught:
            face.ask(Find(b"i" * 32))
        assert "write redis:// for it" in str(caught.value)


def test_a_node_alone_is_refused(cluster: RedisCluster) -> None:
    store = open_url(cluster.nodes[0].url)
    with contextlib.closing(FACES["sync"](store)) as face, pytest.raises(StoreUnfit) as caught:
        face.ask(Find(b"i" * 32))
    assert "redis+cluster://" in str(caught.value)


@pytest.mark.parametrize("face", FACES.values(), ids=FACES)
def test_a_node_that_is_down_takes_only_its_own_records_along(face: Any) -> None:
    """There is no replica to take over; the other nodes serve their records."""
    with start_redis_cluster(replicas=0) as cluster:
        for node in cluster.nodes:
            node.client.config_set("cluster-require-full-coverage", "no")
        store = open_url(cluster.url)
        with contextlib.closing(face(store)) as asked:
            case = Case(Subject(store, elapse=elapse.never), asked)
            records = [case.begin(case.claim(id=bytes([byte]) * 32)) for byte in range(0, 256, 32)]
            gone = cluster.owner(SLOT_OF_BYTE[0])
            lost = [r for r in records if cluster.owner(SLOT_OF_BYTE[r.id[0]]) is gone]
            gone.kill()
            outcomes = case.together([case.renew(record) for record in records])
            # Again, on new connections:
            outcomes = case.together([case.renew(record) for record in records])
            for record, outcome in zip(records, outcomes, strict=True):
                if record in lost:
                    assert isinstance(outcome, StoreUnavailable)
                else:
                    assert isinstance(outcome, Done)
            gone.restart()
            cluster.settle()
            assert isinstance(case.ask(case.renew(lost[0])), Done)
