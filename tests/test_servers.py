"""The servers under the other tests: crash tests mean something only if a crash is one."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from tests.servers import Postgres, Redis, start_postgres, start_redis


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    with start_postgres(durable=True) as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[Redis]:
    with start_redis(durable=True) as server:
        yield server


@pytest.mark.slow
def test_postgres_keeps_commits_through_a_crash(own_postgres: Postgres) -> None:
    with psycopg.connect(own_postgres.url) as before:
        before.execute("CREATE TABLE kept (value int)")
        before.execute("INSERT INTO kept VALUES (7)")
        before.commit()
        before.execute("INSERT INTO kept VALUES (8)")
        first = own_postgres.pid
        own_postgres.kill()
        before.close()
    own_postgres.restart()
    assert own_postgres.pid != first
    assert "not properly shut down" in own_postgres.log
    with psycopg.connect(own_postgres.url) as after:
        assert after.execute("SELECT value FROM kept").fetchall() == [(7,)]
        assert after.execute("SHOW fsync").fetchone() == ("on",)


def test_redis_keeps_writes_through_a_crash(own_redis: Redis) -> None:
    with redis.Redis.from_url(own_redis.url) as client:
        client.set("kept", "7")
        own_redis.kill()
        with pytest.raises(redis.ConnectionError):
            client.get("kept")
        own_redis.restart()
        assert client.get("kept") == b"7"
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_a_server_dies_with_the_process_that_started_it() -> None:
    script = (
        "from tests.servers import start_redis\n"
        "server = start_redis()\n"
        "print(server.pid, server.folder.parent, flush=True)\n"
        "input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid_text, folder = parent.stdout.readline().split()
        pid = int(pid_text)
        assert _alive(pid)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while _alive(pid):
        assert time.monotonic() < deadline, "the server outlived its parent"
        time.sleep(0.01)
    shutil.rmtree(folder)  # the next run would do it, too


def test_shared_servers_answer(postgres_url: str, redis_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    with redis.Redis.from_url(redis_url) as client:
        assert client.ping()


def test_pgbouncer_pools_by_transaction(pgbouncer_url: str) -> None:
    """Three idle clients share one server connection, so session state is not a client's own."""
    backends = set()
    clients = [psycopg.connect(pgbouncer_url, prepare_threshold=None) for _ in range(3)]
    for client in clients:
        backends.add(client.execute("SELECT pg_backend_pid()").fetchone())
        client.commit()
    for client in clients:
        client.close()
    assert len(backends) == 1


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # dead, but nobody has asked for its exit status yet
