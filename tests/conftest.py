"""Options, servers and house rules for the whole suite."""

import gc
import os
import uuid
from collections.abc import Generator, Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import hypothesis
import psycopg
import pytest

from oncekey._system import warn_once
from oncekey.stores.postgres.layouts import PARTITIONED, SEPARATE
from tests.leftovers import none_left
from tests.servers.chromium import started_chromium
from tests.servers.mariadb import mysql_connection
from tests.servers.redis import DATABASES
from tests.servers.redis_cluster import RedisCluster, start_redis_cluster
from tests.servers.redis_sentinel import WatchedRedis, start_watched_redis
from tests.servers.shared import Shared
from tests.servers.skipping import or_skip
from tests.stores.postgres.kit import laid_out

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_SHARED = pytest.StashKey[Shared]()
_skips: list[str] = []


LONGEST_S = 600

# A slow machine is not a failure; the long run looks deeper.
hypothesis.settings.register_profile("usual", deadline=None, print_blob=True)
hypothesis.settings.register_profile("long", deadline=None, print_blob=True, max_examples=3000)


# ------------------------------------------------------------------ which tests run


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("oncekey")
    group.addoption("--fast", action="store_true", help="leave out what takes seconds")
    group.addoption("--long", action="store_true", help="run only what takes minutes")


def _is_wanted(config: pytest.Config, marks: set[str]) -> bool:
    fast, long = config.getoption("--fast"), config.getoption("--long")
    return ("long" in marks) == long and not (fast and "slow" in marks)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage among tens of thousands of tests: all of them stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, obj: object
) -> list[pytest.Item] | None:
    """Make no tests of what is left out as a whole: making tens of thousands takes seconds.

    Whoever names a test is told that it was left out, rather than that there is none.
    """
    if not isinstance(obj, FunctionType | type):
        return None
    config = collector.config
    marks = {mark.name for mark in getattr(obj, "pytestmark", ())}
    marks |= {name for name in ("slow", "long") if collector.get_closest_marker(name)}
    if config.getoption("--long"):  # some of its cases may be long
        marks.add("long")
    if _is_wanted(config, marks) or any("::" in each for each in config.args):
        return None
    return []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted: list[pytest.Item] = []
    unwanted: list[pytest.Item] = []
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        (wanted if _is_wanted(config, marks) else unwanted).append(item)
    config.hook.pytest_deselected(items=unwanted)
    items[:] = wanted
    if config.getoption("--long"):  # else all the others are done and wait for these
        items.sort(key=_takes_longest, reverse=True)


def _takes_longest(item: pytest.Item) -> bool:
    """Whether it claims minutes for itself. The others keep their order."""
    claimed = item.get_closest_marker("timeout")
    return claimed is not None and claimed.args[0] >= LONGEST_S


@pytest.fixture(autouse=True)
def _leaves_no_thread_behind() -> Iterator[None]:
    """A worker of a test that has ended would do the work that the next one waits for."""
    with none_left():
        yield


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> None:
    """What is warned of once per process is warned of once per test."""
    warn_once.forget()


# ------------------------------------------------------------------ servers


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.load_profile("long" if config.getoption("--long") else "usual")
    told = getattr(config, "workerinput", {}).get("servers")
    shared = Shared(told)
    config.stash[_SHARED] = shared
    config.add_cleanup(shared.close)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Under xdist: the workers are told where the servers are."""
    node.workerinput["servers"] = node.config.stash[_SHARED].offer_all()


def _offer(request: pytest.FixtureRequest, name: str) -> str:
    offer = request.config.stash[_SHARED].offer(name)
    if offer.reason:
        pytest.skip(offer.reason)
    return offer.url


@pytest.fixture(scope="session")
def _database(request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh database for this process; dropped at the end, for the server may be the user's."""
    url, name = _offer(request, "postgres"), f"oncekey_{uuid.uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"'.encode())
        yield name
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


@pytest.fixture(scope="session")
def postgres_url(request: pytest.FixtureRequest, _database: str) -> str:
    """A database of this process's own on a real PostgreSQL."""
    return urlsplit(_offer(request, "postgres"))._replace(path=f"/{_database}").geturl()


@pytest.fixture(scope="session")
def separate_url(postgres_url: str) -> Iterator[str]:
    """Another, in which answers have a table of their own."""
    with laid_out(postgres_url, SEPARATE) as url:
        yield url


@pytest.fixture(scope="session")
def partitioned_url(postgres_url: str) -> Iterator[str]:
    """… and one in which that table, and others beside it, are cut by the day."""
    with laid_out(postgres_url, PARTITIONED) as url:
        yield url


@pytest.fixture(scope="session")
def pgbouncer_url(request: pytest.FixtureRequest, _database: str) -> str:
    """The same database, through a PgBouncer in transaction mode."""
    return urlsplit(_offer(request, "pgbouncer"))._replace(path=f"/{_database}").geturl()


@pytest.fixture(scope="session")
def redis_url(request: pytest.FixtureRequest) -> str:
    """A database number of this process's own on a real Valkey or Redis."""
    url = urlsplit(_offer(request, "redis"))
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return url._replace(path=f"/{int(worker) % DATABASES}").geturl()


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """Three primaries of this process's own. Tests that harm one start another."""
    with or_skip(), start_redis_cluster(replicas=0) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def watched_redis() -> Iterator[WatchedRedis]:
    """A primary, a replica and a Sentinel of this process's own, likewise."""
    with or_skip(), start_watched_redis() as watched:
        yield watched


@pytest.fixture(scope="session")
def mariadb_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of this process's own on a real MariaDB; dropped at the end."""
    yield from _own_database(_offer(request, "mariadb"))


@pytest.fixture(scope="session")
def mysql_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The same on a real MySQL, where ONCEKEY_TEST_MYSQL asks for one."""
    yield from _own_database(_offer(request, "mysql"))


def _own_database(url: str) -> Iterator[str]:
    name = f"oncekey_{uuid.uuid4().hex}"
    with mysql_connection(url) as admin, admin.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE `{name}`")
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
        cursor.execute(f"DROP DATABASE `{name}`")


@pytest.fixture(scope="session")
def nats_url(request: pytest.FixtureRequest) -> str:
    """A real NATS with JetStream. It is shared: name streams and subjects uniquely."""
    return _offer(request, "nats")


@pytest.fixture(scope="session")
def rabbitmq_url(request: pytest.FixtureRequest) -> str:
    """A real RabbitMQ. It is shared: name queues uniquely."""
    return _offer(request, "rabbitmq")


@pytest.fixture(scope="session")
def kafka_url(request: pytest.FixtureRequest) -> str:
    """The bootstrap address of Kafka's mock cluster. It is shared: name topics uniquely."""
    return _offer(request, "kafka")


@pytest.fixture(scope="module")
def chromium() -> "Iterator[Browser]":
    """A real Chromium for the tests of one module, none of which may run an event loop itself."""
    with or_skip(), started_chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def dynamodb_endpoint(request: pytest.FixtureRequest) -> str:
    """Where DynamoDB's protocol is spoken. It is shared: name tables uniquely."""
    return _offer(request, "dynamodb")


# ------------------------------------------------------------------ what was tested, and what not


def pytest_report_header(config: pytest.Config) -> list[str]:
    if config.getoption("dist", "no") == "no":
        return ["servers: started when a test asks for one"]
    config.stash[_SHARED].offer_all()
    return _server_lines(config)


def _server_lines(config: pytest.Config) -> list[str]:
    return [
        f"NOT TESTED: {name}: {offer.reason}" if offer.reason else f"{name}: {offer.about}"
        for name, offer in config.stash[_SHARED].seen().items()
    ]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _skips.append(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _skips.append(report.nodeid)


def _skips_fail() -> bool:
    return bool(_skips) and os.environ.get("CI") == "true"


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    is_worker = hasattr(session.config, "workerinput")
    if not is_worker and _skips_fail() and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    terminalreporter.section("servers")
    for line in _server_lines(config) or ["none was asked for"]:
        terminalreporter.write_line(line, red=line.startswith("NOT TESTED"))
    if _skips:
        what = "FAILED: under CI=true every test must run" if _skips_fail() else "NOT TESTED"
        terminalreporter.write_line(f"{what}: {len(_skips)} skipped, listed above", red=True)
