"""A server process under test: started, asked, frozen, killed."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oncekey.testing.crash import VARIABLE
from tests.crash.forked import Forked
from tests.servers.process import free_port

ROOT = Path(__file__).parents[2]
START_S_MAX = 20.0
ANSWER_S_MAX = 20.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client got; `status` 0 means that the connection broke."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Child:
    """One server process."""

    program = "tests.crash.server"

    def __init__(self, store: str, ledger: Path, *, at: str = "", **policy: Any) -> None:
        self.port = free_port()
        arguments = [str(self.port), store, str(ledger), json.dumps(policy)]
        self.process = Forked(self.program, arguments, {**os.environ, VARIABLE: at})

    def wait_ready(self) -> None:
        """Until it answers; fails if it ends or takes too long."""
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}")
            try:
                reply = self._ask("GET", "/healthz")
                if reply.status == 200:
                    assert json.loads(reply.body) == {"pid": self.process.pid}, "another's server"
                    return
            except ConnectionRefusedError:
                time.sleep(0.005)
        raise AssertionError(f"the server was not ready after {START_S_MAX} s")

    def pay(self, key: str, **order: Any) -> Reply:
        """One request with a key."""
        return self.post("/pay", key, **order)

    def post(self, path: str, key: str, **order: Any) -> Reply:
        try:
            headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
            return self._ask("POST", path, json.dumps(order), headers)
        except (OSError, http.client.HTTPException):
            return Reply(0, {}, b"")

    def _ask(self, method: str, path: str, body: str = "", headers: Any = None) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S_MAX)
        try:
            connection.request(method, path, body or None, headers or {})
            answer = connection.getresponse()
            lines = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, lines, answer.read())
        finally:
            connection.close()

    def wait_frozen(self) -> None:
        """Until the process has stopped itself at a probe."""
        self.process.wait_frozen()

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@contextmanager
def serving(store: str, ledger: Path, *, at: str = "", **policy: Any) -> Iterator[Child]:
    """A server that is ready, and gone afterwards."""
    child = Child(store, ledger, at=at, **policy)
    try:
        child.wait_ready()
        yield child
    finally:
        child.close()
