"""`./dev run`: the first thing that anybody does with the product works as it says."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.servers.process import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
WAIT_S_MAX = 60.0
"""What is promised from the command to the checkout page."""


class Run:
    """One `./dev run`, as a child process."""

    def __init__(self, data: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = data.with_suffix(".output")
        # Python writes to a file in blocks unless told otherwise: what it says must come at once.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
        command = [sys.executable, "dev", "run", "--port", str(self.port), "--data", str(data)]
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    def says(self) -> str:
        return self.output.read_text()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        while "curl" not in self.says() or httpx2.get(f"{self.url}/healthz").status_code != 200:
            assert self.process.poll() is None, self.says()
            assert time.monotonic() < deadline, self.says()
            time.sleep(0.02)

    def end(self) -> int:
        """Ask it to end, as a service manager does; how it ended."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S_MAX)


@contextmanager
def running(data: Path) -> Iterator[Run]:
    run = Run(data)
    try:
        run.wait_ready()
        yield run
    finally:
        if run.process.poll() is None:
            run.end()


def typed(text: str) -> list[httpx2.Request]:
    """What `curl` would send for the commands that are proposed."""
    joined = text.replace("\\\n", " ")
    lines = [shlex.split(line) for line in re.findall(r"^ *(curl .*)$", joined, re.MULTILINE)]
    return [request_of(words) for words in lines]


def request_of(words: list[str]) -> httpx2.Request:
    [url] = [word for word in words if word.startswith("http://")]

    def all_of(option: str) -> list[str]:
        return [words[n + 1] for n, word in enumerate(words) if word == option]

    headers = dict(line.split(": ", 1) for line in all_of("-H"))
    fields = dict(pair.split("=", 1) for pair in all_of("-d"))
    request = httpx2.Request("POST" if fields else "GET", url, headers=headers, data=fields or None)
    for user in all_of("-u"):
        basic = httpx2.BasicAuth(*user.split(":", 1))
        request = next(basic.auth_flow(request))
    return request


def test_what_it_proposes_to_type_works(tmp_path: Path) -> None:
    data = tmp_path / "shop"
    with running(data) as run, httpx2.Client(trust_env=False, timeout=WAIT_S_MAX) as client:
        charge, tally = typed(run.says())
        first, again = client.send(charge), client.send(charge)
        counted = client.send(tally)
        assert (first.status_code, first.json()["status"]) == (200, "succeeded")
        assert (again.status_code, again.content) == (200, first.content)
        assert again.headers["Idempotent-Replayed"] == "true"
        assert counted.status_code == 200
        assert client.get(run.url).headers["Content-Type"].startswith("text/html")
        assert run.end() == 0
    assert str(data) in run.says()
    assert "Traceback" not in run.says()
    compare = [sys.executable, "dev", "payments", "reconcile", "--data", str(data)]
    compare += ["--network", str(data / "network.db")]
    reconciled = subprocess.run(
        compare, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S_MAX
    )
    assert reconciled.returncode == 0, reconciled.stdout + reconciled.stderr
    assert "0 differences" in reconciled.stdout


def test_what_a_command_does_not_take_is_refused() -> None:
    command = [sys.executable, "dev", "check", "--fixx"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S_MAX)
    assert done.returncode == 1
    assert done.stderr == "./dev check does not take --fixx. See ./dev for its options.\n"
