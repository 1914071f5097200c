"""Which servers are refused and with which message, and how a server is addressed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis as Client

from oncekey._core.op import arun, run
from oncekey._core.record import Claim, State
from oncekey._core.verbs import Count, Due, Insert, Inserted, Requested
from oncekey.errors import Misuse, StoreUnavailable, StoreUnfit
from oncekey.stores.redis.checks import SCHEMA, acl_rule, check_server, durability, refusal
from oncekey.stores.redis.store import RedisStore, open_url
from oncekey.testing.contract import Subject
from oncekey.testing.contract.subject import Case, SyncFace
from tests.servers import Redis, start_redis
from tests.servers.process import free_port
from tests.stores import elapse

CLAIM = Claim(b"i" * 32, b"t" * 16, "tenant", "POST /", "key", b"f" * 32, 1, 30.0, 600.0)


class SetRedis(Redis):
    """A server with custom settings."""

    def __init__(self, *settings: str) -> None:
        super().__init__()
        self._arguments = settings

    def command(self) -> list[str]:
        return [*super().command(), *self._arguments]


@pytest.fixture
def server() -> Iterator[Redis]:
    with start_redis() as server:
        yield server


@pytest.fixture
def client(server: Redis) -> Iterator[Any]:
    with Client.from_url(server.url) as client:
        yield client


def prepare(store: RedisStore) -> None:
    """Connect and check, as the gatherer does on every new connection."""
    connection = store.connect()
    try:
        run(store.prepare(), connection.ask)
    finally:
        connection.close()


# ------------------------------------------------------------------------------------- eviction


@pytest.mark.parametrize(
    "policy", ["allkeys-lru", "volatile-lru", "volatile-ttl", "allkeys-random"]
)
def test_a_server_that_evicts_is_refused_until_it_is_told_not_to(
    server: Redis, client: Any, policy: str
) -> None:
    client.config_set("maxmemory-policy", policy)
    with pytest.raises(StoreUnfit, match=policy) as refused:
        prepare(open_url(server.url))
    prepare(open_url(f"{server.url}?allow=eviction"))
    assert "CONFIG SET maxmemory-policy noeviction" in str(refused.value)
    client.execute_command("CONFIG SET", "maxmemory-policy", "noeviction")
    prepare(open_url(server.url))


# --------------------------------------------------------------------------------------- schema


def test_an_empty_server_is_prepared_by_its_first_use(server: Redis, client: Any) -> None:
    prepare(open_url(server.url))
    assert client.hgetall("oncekey:schema") == {b"version": b"2", b"oldest_reader": b"1"}


def test_migrating_twice_does_nothing_the_second_time(server: Redis) -> None:
    store = open_url(server.url)
    connection = store.connect()
    assert run(store.migrate(), connection.ask) == ["0001_record", "0002_requests"]
    assert run(store.migrate(), connection.ask) == []
    connection.close()


def test_a_schema_of_a_newer_release_is_refused_if_it_says_so(server: Redis, client: Any) -> None:
    client.hset("oncekey:schema", mapping={"version": 9, "oldest_reader": SCHEMA})
    prepare(open_url(server.url))
    assert client.hget("oncekey:schema", "version") == b"9"
    client.hset("oncekey:schema", "oldest_reader", 9)
    with pytest.raises(StoreUnfit, match="Upgrade oncekey"):
        prepare(open_url(server.url))


def test_a_schema_of_an_older_release_is_raised_by_itself(server: Redis, client: Any) -> None:
    client.hset("oncekey:schema", mapping={"version": 1, "oldest_reader": 1})
    store = open_url(server.url)
    with contextlib.closing(store.connect()) as connection:
        assert run(store.migrate(), connection.ask) == ["0002_requests"]
        assert run(store.migrate(), connection.ask) == []
    assert client.hgetall("oncekey:schema") == {b"version": b"2", b"oldest_reader": b"1"}


# ---------------------------------------------------------------------------------- permissions


def _url_of(server: Redis, user: str) -> str:
    return f"redis://{user}:pw@127.0.0.1:{server.port}/0"


def test_the_rule_that_is_recommended_allows_all_that_is_needed(
    server: Redis, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client.execute_command(f"ACL SETUSER app on >pw {acl_rule('oncekey')}")
    store = open_url(f"{_url_of(server, 'app')}")
    face = SyncFace(store)
    case = Case(Subject(store, elapse=elapse.never), face)
    case.done(case.complete(case.begin()))
    case.done(case.take(case.done(case.release(case.begin()))))
    case.done(case.complete(case.begin(case.claim(recovery="resume", lease_s=0.0))))
    overdue = case.begin(case.claim(recovery="resume", lease_s=0.0))
    assert case.ask(Due(10, abandoned=True)) == [overdue.id]
    assert case.ask(Count())[State.COMPLETED] == 2
    face.close()
    assert caplog.messages == []


def test_a_user_without_permission_is_told_the_rule(server: Redis, client: Any) -> None:
    client.execute_command("ACL SETUSER app on >pw ~* +info +@connection")
    with pytest.raises(StoreUnfit) as refused:
        prepare(open_url(_url_of(server, "app")))
    assert f"ACL SETUSER <user> {acl_rule('oncekey')}" in str(refused.value)
    assert "pw" not in str(refused.value)


def test_checks_that_are_not_allowed_are_named_once(
    server: Redis, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client.execute_command("ACL SETUSER app on >pw ~* +@all -info")
    store = open_url(_url_of(server, "app"))
    prepare(store)
    prepare(store)
    [message] = caplog.messages
    assert "INFO is not allowed" in message
    assert "noeviction" in message
    assert not store.durability.store_crash


def test_durability_that_cannot_be_learnt_is_not_promised(
    client: Any, server: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.config_set("appendfsync", "always")
    client.execute_command("ACL SETUSER app on >pw ~* +@all -config")
    store = open_url(_url_of(server, "app"))
    prepare(store)
    assert "CONFIG GET is not allowed" in caplog.text
    assert not store.durability.power_loss


# ----------------------------------------------------------------------------------- durability


@pytest.mark.parametrize("protocol", [2, 3])
def test_durability_is_what_the_server_is_set_to(server: Redis, client: Any, protocol: int) -> None:
    store = open_url(f"{server.url}?protocol={protocol}")
    prepare(store)
    assert (store.durability.store_crash, store.durability.power_loss) == (False, False)
    client.config_set("appendfsync", "always")
    prepare(store)
    assert (store.durability.store_crash, store.durability.power_loss) == (True, True)
    client.config_set("appendonly", "no")
    with pytest.raises(StoreUnfit, match=r"appendonly no: .* CONFIG SET appendonly yes"):
        prepare(store)
    accepted = open_url(f"{server.url}?allow=unsafe-durability,eviction")
    prepare(accepted)
    assert not accepted.durability.store_crash


def test_what_is_not_known_is_not_promised() -> None:
    assert not durability({}, "always").store_crash


# -------------------------------------------------------------------------------------- cluster


@pytest.mark.slow
def test_a_node_of_a_cluster_is_refused_unless_it_serves_all_keys() -> None:
    # By default its second port would be 10,000 higher, which is above 65535 for most free ports.
    settings = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    with SetRedis(*settings).start() as node:
        store = open_url(node.url)
        with pytest.raises(StoreUnfit, match="a node of a Redis Cluster"):
            prepare(store)
        with Client.from_url(node.url) as client:
            client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
            deadline = time.monotonic() + 20
            while client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                assert time.monotonic() < deadline
                time.sleep(0.05)
        prepare(store)
        with contextlib.closing(SyncFace(store)) as face:
            case = Case(Subject(store, elapse=elapse.never), face)
            record = case.begin(case.claim(recovery="resume", request=b"POST /orders"))
            assert case.ask(Requested(record.id)) == b"POST /orders"
            assert case.ask(Due(10, abandoned=True)) == []
            case.done(case.complete(record))


# ------------------------------------------------------------------------------ judged from words


def test_a_server_that_is_loading_is_only_unavailable() -> None:
    with pytest.raises(StoreUnavailable, match="loading") as refused:
        check_server({"loading": "1"}, "redis://h:1/0", ())
    assert not refused.value.sent


@pytest.mark.parametrize(("version", "fit"), [("5.0.7", False), ("6.0.16", False), ("6.2.0", True)])
def test_a_server_that_is_too_old_is_refused(version: str, fit: bool) -> None:
    info = {"redis_version": version, "role": "master"}
    if fit:
        check_server(info, "redis://h:1/0", ())
    else:
        with pytest.raises(StoreUnfit, match=version):
            check_server(info, "redis://h:1/0", ())


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("command not allowed when used memory > 'maxmemory'.", "OOM"),
        ("OOM command not allowed when used memory > 'maxmemory'.", None),
        # Redis 6.2
        (
            "Error running script (call to f_1): @user_script:15: -OOM command not allowed when "
            "used memory > 'maxmemory'.",
            "ERR",
        ),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL.", None),
        ("MISCONF Errors writing to the AOF file: No space left on device", None),
    ],
)
def test_a_refusal_is_recognised_in_the_words_of_every_version(text: str, code: str | None) -> None:
    assert refusal(text, code) is not None


def test_other_errors_are_no_refusals() -> None:
    assert (
        refusal("WRONGTYPE Operation against a key holding the wrong kind of value", None) is None
    )
    assert refusal("Error running script: unexpected symbol near '-'", "ERR") is None


# ---------------------------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h", "redis://h:6379/0"),
        ("redis://:secret@h:1/3", "redis://h:1/3"),
        ("valkey://user:secret@h:1/3", "redis://h:1/3"),
        ("rediss://user:secret@h/0", "rediss://h:6379/0"),
        ("valkeys://user:secret@h/0", "rediss://h:6379/0"),
        ("unix://user:secret@/run/redis.sock?db=2", "unix:///run/redis.sock?db=2"),
        ("redis+unix:///run/redis.sock", "unix:///run/redis.sock?db=0"),
    ],
)
def test_a_store_shows_where_it_is_and_no_password(url: str, shown: str) -> None:
    assert repr(open_url(f"{url}{'&' if '?' in url else '?'}prefix=p")) == (
        f"RedisStore({shown!r}, prefix='p')"
    )


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret#1@h:1/0",
        "redis://:secret/1@h:1/0",
        "redis://u:secret@h:1/0?timeout_s=soon",
        "redis://u:secret@h:1/0?prefix=a*b",
        "redis://u:secret@h:1/0?allow=everything",
        "redis://u:secret@h:1/0?wait_replicas=1&wait_timeout_s=60",
        "redis://u:secret@h:1/0?no_such_option=1",
        "unix://u:secret@",
        "http://u:secret@h:1/0",
    ],
)
def test_what_cannot_be_opened_is_refused_without_showing_the_password(url: str) -> None:
    with pytest.raises(Misuse) as refused:
        open_url(url)
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None or "secret" not in str(refused.value.__cause__)


def test_a_wrong_password_is_a_failure_to_connect(server: Redis) -> None:
    store = open_url(f"redis://:wrong@127.0.0.1:{server.port}/0")
    for connect in (store.connect, lambda: asyncio.run(store.aconnect())):
        with pytest.raises(StoreUnavailable, match="cannot connect") as refused:
            connect()
        assert not refused.value.sent
        assert "wrong@" not in str(refused.value)


@pytest.mark.parametrize("protocol", ["", "?protocol=3"])
def test_a_password_that_is_missing_is_told_with_where_to_write_it(
    server: Redis, protocol: str
) -> None:
    store = open_url(f"redis://127.0.0.1:{server.port}/0{protocol}")
    for connect in (store.connect, lambda: asyncio.run(store.aconnect())):
        with pytest.raises(StoreUnavailable, match="requires a password: write redis://user:passw"):
            connect()


def test_a_unix_socket_serves_both_colours() -> None:
    with SetRedis("--unixsocket", "redis.sock").start() as server:
        password = server.url.split(":")[2].split("@")[0]
        store = open_url(f"unix://:{password}@{server.folder}/redis.sock?db=5")
        connection = store.connect()
        [inserted] = run(store.perform([Insert(CLAIM)]), connection.ask)
        connection.close()
        assert isinstance(inserted, Inserted)

        async def find() -> Any:
            link = await store.aconnect()
            [found] = await arun(store.perform([Insert(CLAIM)]), link.ask)
            await link.close()
            return found

        assert asyncio.run(find()).record.fence == inserted.fence
        with Client.from_url(f"{server.url.removesuffix('0')}5") as client:
            assert client.dbsize() == 1
