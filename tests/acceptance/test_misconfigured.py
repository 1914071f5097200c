"""What is configured wrongly does not start, under any server, and says in one line why. A store
that cannot be reached for now is no mistake.
"""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from oncekey.cli.main import main
from tests.acceptance.misconfigured import MISTAKES
from tests.servers import Server, start_postgres, start_redis
from tests.servers.process import free_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
WAIT_S_MAX = 40.0
APP = "tests.acceptance.misconfigured:app"
ASGI = {
    "uvicorn": ["uvicorn", "--port={port}"],
    "uvicorn, lifespan on": ["uvicorn", "--port={port}", "--lifespan=on"],
    "gunicorn": ["gunicorn", "--bind=127.0.0.1:{port}", "-kuvicorn_worker.UvicornWorker"],
    "hypercorn": ["hypercorn", "--bind=127.0.0.1:{port}", "--workers=0"],
    "granian": ["granian", "--interface=asgi", "--port={port}"],
}
WSGI = {
    "gunicorn": ["gunicorn", "--bind=127.0.0.1:{port}"],
    "waitress": ["waitress", "--listen=127.0.0.1:{port}"],
}
WITHOUT_LIFESPAN = {
    "uvicorn": ["uvicorn", "--port={port}", "--lifespan=off"],
    "granian": ["granian", "--interface=asginl", "--port={port}"],
    "gunicorn": ["gunicorn", "--bind=127.0.0.1:{port}", "-kasgi", "--asgi-lifespan=off"],
}
WRONG = [each for each in MISTAKES if each != "none"]

# Every mistake reaches a server in one of these ways: the program's own line raises it, the
# middleware is not made, its store is not opened, or a route's rules are wrong.
_EACH_WAY = ("policy seconds", "no tenant", "missing driver", "routes None")


def _mistakes_by_server(servers: dict[str, list[str]]) -> list[tuple[str, str]]:
    """Every mistake under the first of the servers, one of each way under all the others."""
    first, *others = servers
    return [
        *((first, mistake) for mistake in WRONG),
        *((server, mistake) for server in others for mistake in _EACH_WAY),
    ]


@dataclass
class Served:
    """A server that runs as a program."""

    process: subprocess.Popen[bytes]
    port: int
    output: Path

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def ask(self, method: str = "GET", key: str | None = None) -> tuple[int, dict[str, str]]:
        """The status and the headers of its answer, once it listens."""
        deadline = time.monotonic() + WAIT_S_MAX
        while True:
            line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S_MAX)
            try:
                line.request(method, "/orders", headers={"Idempotency-Key": key} if key else {})
                answer = line.getresponse()
                answer.read()
                return answer.status, {n.lower(): v for n, v in answer.getheaders()}
            except ConnectionRefusedError:
                assert self.process.poll() is None, self.said
                assert time.monotonic() < deadline, self.said
                time.sleep(0.05)
            finally:
                line.close()


@contextmanager
def served(command: list[str], kind: str, folder: Path, **environment: str) -> Iterator[Served]:
    port = free_port()
    output = folder / "output"
    with output.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *(part.format(port=port) for part in command), APP],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "HOME": str(folder),
                "SERVED": kind,
                **environment,
            },
        )
    try:
        yield Served(process, port, output)
    finally:
        process.terminate()
        process.wait(WAIT_S_MAX)


def without_drivers(folder: Path) -> str:
    """A folder that hides the drivers of MySQL, for PYTHONPATH."""
    hidden = folder / "hidden"
    hidden.mkdir()
    for name in ("pymysql", "asyncmy"):
        (hidden / f"{name}.py").write_text(f"raise ModuleNotFoundError('none', name={name!r})")
    return f"{hidden}{os.pathsep}{ROOT}"


def told(running: Served, mistake: str) -> list[str]:
    """The lines that say what is wrong."""
    lines = (line for line in running.said.splitlines() if not line.startswith(" "))
    return [line for line in lines if MISTAKES[mistake][0] in line]


@pytest.mark.parametrize(("server", "mistake"), _mistakes_by_server(ASGI))
def test_a_mistake_ends_a_server_for_asgi(server: str, mistake: str, tmp_path: Path) -> None:
    path = without_drivers(tmp_path)
    with served(ASGI[server], "starlette", tmp_path, MISTAKE=mistake, PYTHONPATH=path) as ended:
        assert ended.process.wait(WAIT_S_MAX) != 0, ended.said
    if mistake in ("policy recovery", "policy seconds"):  # raised by the program's own line
        assert "Misuse: " in told(ended, mistake)[0], ended.said
    else:
        assert len(told(ended, mistake)) == 1, ended.said
        assert "Traceback" not in ended.said


def test_hypercorn_ends_its_processes_and_says_0_as_for_all_failures(tmp_path: Path) -> None:
    command = ["hypercorn", "--bind=127.0.0.1:{port}", "--workers=1"]
    with served(command, "starlette", tmp_path, MISTAKE="no tenant") as ended:
        assert ended.process.wait(WAIT_S_MAX) == 0
    assert len(told(ended, "no tenant")) == 1, ended.said
    with served(command, "none such", tmp_path) as ended:
        assert ended.process.wait(WAIT_S_MAX) == 0


@pytest.mark.parametrize(("server", "mistake"), _mistakes_by_server(WSGI))
def test_a_mistake_ends_a_server_for_wsgi(server: str, mistake: str, tmp_path: Path) -> None:
    path = without_drivers(tmp_path)
    with served(WSGI[server], "wsgi", tmp_path, MISTAKE=mistake, PYTHONPATH=path) as ended:
        assert ended.process.wait(WAIT_S_MAX) != 0, ended.said
    assert told(ended, mistake)[0].startswith("oncekey.errors.Misuse: "), ended.said


@pytest.mark.parametrize("server", ASGI)
@pytest.mark.parametrize("mistake", ["no scheme", "no tenant", "routes None"])
def test_a_mistake_ends_a_server_route_by_route(server: str, mistake: str, tmp_path: Path) -> None:
    with served(ASGI[server], "routed", tmp_path, MISTAKE=mistake) as ended:
        assert ended.process.wait(WAIT_S_MAX) != 0, ended.said
    assert told(ended, mistake)[0].startswith("oncekey.errors.Misuse: "), ended.said


@pytest.mark.parametrize("server", WITHOUT_LIFESPAN)
def test_without_a_lifespan_the_first_request_ends_it(server: str, tmp_path: Path) -> None:
    command = WITHOUT_LIFESPAN[server]
    with served(command, "starlette", tmp_path, MISTAKE="unknown keyword") as ended:
        assert ended.ask()[0] == 500
        assert ended.process.wait(WAIT_S_MAX) != 0, ended.said
    assert len(told(ended, "unknown keyword")) == 1, ended.said
    assert "Traceback" not in ended.said


@pytest.mark.parametrize("server", ASGI)
def test_what_is_configured_well_starts(server: str, tmp_path: Path) -> None:
    with served(ASGI[server], "starlette", tmp_path) as running:
        assert running.ask("POST", "k")[0] == 201
        assert running.ask("POST", "k")[1]["idempotent-replayed"] == "true"


@pytest.mark.parametrize("start", [start_redis, start_postgres])
def test_a_store_that_is_down_is_no_mistake(start: Callable[[], Server], tmp_path: Path) -> None:
    store = start()
    try:
        assert main(["migrate", store.url]) == 0
        store.stop()
        with served(
            ASGI["uvicorn"], "starlette", tmp_path, STORE=f"{store.url}?allow=unsafe-durability"
        ) as running:
            assert running.ask()[0] == 201
            status, headers = running.ask("POST", "k")
            assert (status, "retry-after" in headers) == (503, True)
            assert running.ask("POST")[0] == 201
            assert len(re.findall("does not answer", running.said)) == 1, running.said
            store.restart()
            deadline = time.monotonic() + WAIT_S_MAX
            while running.ask("POST", "k")[0] == 503:
                assert time.monotonic() < deadline, running.said
                time.sleep(0.1)
            assert running.ask("POST", "k")[1]["idempotent-replayed"] == "true"
    finally:
        store.stop()
