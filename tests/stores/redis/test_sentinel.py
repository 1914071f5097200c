"""A Redis that Sentinels name: found at the start, and again after a failover."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from redis.exceptions import ResponseError

from oncekey._core.verbs import Done, Find, Found, Insert
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.stores.redis.store import open_url
from oncekey.stores.urls import open_store
from oncekey.testing.contract import BatchContract, Case, InsertContract, OpeningContract, Subject
from oncekey.testing.contract.subject import FACES
from tests.servers.process import free_port
from tests.servers.redis_cluster import await_that
from tests.servers.redis_sentinel import SERVICE, WatchedRedis, start_watched_redis
from tests.servers.skipping import or_skip
from tests.stores import elapse

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def watched() -> Iterator[WatchedRedis]:
    """A primary, a replica and a Sentinel for these tests alone."""
    with or_skip(), start_watched_redis() as started:
        yield started


@pytest.fixture(params=list(FACES))
def face(request: pytest.FixtureRequest) -> Any:
    return FACES[request.param]


class TestSentinel(OpeningContract, InsertContract, BatchContract):
    """Only finding the server differs from a single one; the verbs are the same."""

    @pytest.fixture
    def subject(self, watched: WatchedRedis) -> Iterator[Subject]:
        url = watched.primary().url
        yield Subject(open_url(watched.url), elapse=partial(elapse.redis, url, "oncekey"))
        with watched.client(watched.primary()) as client:
            client.flushall()


def test_any_sentinel_that_answers_will_do(watched: WatchedRedis, face: Any) -> None:
    url = watched.url.replace("@", f"@127.0.0.1:{free_port()},")
    with contextlib.closing(face(open_store(url))) as asked:
        assert asked.ask(Find(b"i" * 32)) is None


def test_who_looks_asks_every_sentinel_although_another_puts_the_living_one_first() -> None:
    dead, living = ("127.0.0.1", 1), ("127.0.0.1", 2)
    store = open_url(f"redis+sentinel://127.0.0.1:1,127.0.0.1:2/{SERVICE}")
    one, other = store.prepare(), store.prepare()
    assert next(one)[0] == next(other)[0] == dead

    assert other.throw(StoreUnavailable("down"))[0] == living
    other.send([(b"127.0.0.1", b"3")])

    assert one.throw(StoreUnavailable("down"))[0] == living


def test_where_no_sentinel_answers_nothing_was_sent(face: Any) -> None:
    store = open_url(f"redis+sentinel://127.0.0.1:{free_port()}/{SERVICE}")
    with contextlib.closing(face(store)) as asked, pytest.raises(StoreUnavailable) as caught:
        asked.ask(Find(b"i" * 32))
    assert "no Sentinel names a primary" in str(caught.value)
    assert not caught.value.sent


def test_a_service_that_is_not_watched_is_named(watched: WatchedRedis, face: Any) -> None:
    store = open_url(watched.url.replace(f"/{SERVICE}", "/other"))
    with contextlib.closing(face(store)) as asked, pytest.raises(StoreUnavailable) as caught:
        asked.ask(Find(b"i" * 32))
    assert "primary of other" in str(caught.value)


def test_the_service_must_be_named() -> None:
    with pytest.raises(Misuse, match="name the service"):
        open_url("redis+sentinel://127.0.0.1:26379")


def test_the_name_of_a_service_is_no_database() -> None:
    store = open_url("redis+sentinel://127.0.0.1:26379/7?db=2")
    assert store.endpoint.options["db"] == 2
    assert open_url("redis+sentinel://127.0.0.1:26379/7").endpoint.options["db"] == 0


def test_a_failover_is_noticed_by_whoever_is_connected(face: Any) -> None:
    """Started by an operator: the old primary stays alive, as a replica."""
    with start_watched_redis() as watched:
        store = open_url(watched.url)
        with contextlib.closing(face(store)) as asked:
            case = Case(Subject(store, elapse=elapse.never), asked)
            record = case.begin()
            await_that(lambda: _start_failover(watched), "the Sentinel sees no replica fit for it")
            await_that(lambda: watched.primary() is watched.second, "nobody took over")
            await_that(lambda: _renews(case, record), "the new primary is not found")
            assert isinstance(case.ask(Insert(case.rival(record))), Found)


def _start_failover(watched: WatchedRedis) -> bool:
    try:
        watched.sentinel.client.execute_command("SENTINEL FAILOVER", SERVICE)
    except ResponseError:  # the Sentinel has only just found the replica
        return False
    return True


def _renews(case: Case, record: Any) -> bool:
    try:
        return isinstance(case.ask(case.renew(record)), Done)
    except StoreUnavailable:
        return False


def test_a_demoted_primary_is_not_written_to_and_not_believed(face: Any) -> None:
    """Its Sentinel has not noticed: the server that it names is a replica."""
    with start_watched_redis() as watched:
        store = open_url(watched.url)
        with contextlib.closing(face(store)) as asked:
            case = Case(Subject(store, elapse=elapse.never), asked)
            record = case.begin()
            watched.sentinel.kill()  # from now on nothing corrects it
            with watched.client(watched.first) as client:
                client.replicaof("127.0.0.1", watched.second.port)
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    case.ask(case.renew(record))
