"""The orders example, as a process: what it says works, its answers outlive it, it drains."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from oncekey import single_tenant
from oncekey._core.record import State
from oncekey.web.asgi import IdempotencyMiddleware
from tests.acceptance.client import Client
from tests.acceptance.serve import serving
from tests.acceptance.shop import Shop, kept
from tests.servers.process import free_port
from tests.web.client import Reply

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
START_S_MAX = 30.0
END_S_MAX = 30.0


class Run:
    """The example as a child process."""

    def __init__(self, data: Path) -> None:
        self.client = Client(free_port())
        self.output = data.with_suffix(".output")
        # Python writes to a file in blocks unless told otherwise: what it says must come at once.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
        command = [sys.executable, "examples/orders.py"]
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.client.port), "--data", str(data)],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def says(self) -> str:
        return self.output.read_text()

    def wait_ready(self) -> Reply:
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.says()
            try:
                return self.client.ask(method="GET", path="/healthz")
            except ConnectionRefusedError:
                time.sleep(0.02)
        raise AssertionError(f"not ready after {START_S_MAX} s: {self.says()}")

    def end(self) -> int:
        """Ask it to end, as a service manager does; how it ended."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_S_MAX)


@contextmanager
def running(data: Path) -> Iterator[Run]:
    run = Run(data)
    try:
        health = run.wait_ready()
        assert (health.status, health.json()) == (200, {"status": "ok"})
        yield run
    finally:
        if run.process.poll() is None:
            run.process.kill()
        run.process.wait()


def curl_lines(text: str) -> list[list[str]]:
    """The commands that it proposes, as a shell would read them."""
    joined = text.replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(r"^ *(curl .*)$", joined, re.MULTILINE)]


def as_request(words: list[str], client: Client) -> Reply:
    """What `curl` would do with these words."""
    [url] = [word for word in words if word.startswith("http://")]
    address = f"http://127.0.0.1:{client.port}"
    assert url.startswith(address)
    options = list(itertools.pairwise(words))
    headers = [tuple(value.split(": ", 1)) for option, value in options if option == "-H"]
    bodies = [value for option, value in options if option == "-d"]
    return client.ask(
        method="POST" if bodies else "GET",
        path=url.removeprefix(address),
        headers=[(name, value) for name, value in headers],
        body=bodies[0].encode() if bodies else None,
    )


def test_what_it_proposes_to_type_works(tmp_path: Path) -> None:
    data = tmp_path / "shop"
    with running(data) as run:
        order, read = curl_lines(run.says())
        first = as_request(order, run.client)
        again = as_request(order, run.client)
        listed = as_request(read, run.client)
        assert run.end() == 0
    assert (first.status, first.replayed) == (201, False)
    assert (again.status, again.replayed, again.body) == (201, True, first.body)
    assert listed.json() == [first.json()]
    assert str(data) in run.says()
    assert "Traceback" not in run.says()


def test_p3_an_answer_outlives_the_process_that_gave_it(tmp_path: Path) -> None:
    order = {"item": "tea", "quantity": 2}
    with running(tmp_path / "shop") as run:
        first = run.client.ask("k1", order)
        run.process.kill()
    with running(tmp_path / "shop") as run:
        again = run.client.ask("k1", order)
        other = run.client.ask("k1", {"item": "coffee"})
        told = run.client.ask(
            "k1", method="GET", path="/idempotency?operation=POST%20/orders"
        ).json()
    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    assert again.header("location") == first.header("location")
    assert (other.status, other.kind) == (422, "mismatch")
    assert (told["state"], told["resource_id"]) == ("completed", first.json()["id"])


def test_it_refuses_what_it_should(tmp_path: Path) -> None:
    with running(tmp_path / "shop") as run:
        assert run.client.ask(None, {"item": "tea"}).kind == "missing-key"
        assert run.client.ask("k1", b'{"item": "tea"').kind == "malformed-request"
        assert run.client.ask("k1", [1]).status == 422
        assert run.client.ask("k2", {"item": "tea", "quantity": -1}).status == 422
        assert run.client.ask(method="GET").json() == []
        assert run.end() == 0
    assert "Traceback" not in run.says()


def test_sigterm_lets_a_handler_end_and_its_client_have_the_answer(tmp_path: Path) -> None:
    """The handler waits for its own database, which somebody else holds."""
    data = tmp_path / "shop"
    replies: list[Reply] = []
    with running(data) as run:
        with closing(sqlite3.connect(data / "orders.db", isolation_level=None)) as orders:
            orders.execute("BEGIN EXCLUSIVE")
            client = threading.Thread(
                target=lambda: replies.append(run.client.ask("k1", {"item": "tea"}))
            )
            client.start()
            wait_until_it_runs(f"sqlite:///{data / 'keys.db'}")
            run.process.send_signal(signal.SIGTERM)
            orders.execute("ROLLBACK")
        client.join(END_S_MAX)
        assert run.process.wait(END_S_MAX) == 0
    assert replies[0].status == 201
    [record] = kept(f"sqlite:///{data / 'keys.db'}")
    assert record.state is State.COMPLETED
    assert record.answer is not None
    assert record.resource_id == replies[0].json()["id"]


def wait_until_it_runs(store: str) -> None:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline:
        if [record.state for record in kept(store)] == [State.RUNNING]:
            return
        time.sleep(0.01)
    raise AssertionError("the handler did not begin")


def test_p6_a_handler_that_outlasts_the_servers_patience_is_drained(tmp_path: Path) -> None:
    """The server gives up on the request, the middleware does not give up on its handler."""
    store = f"sqlite:///{tmp_path / 'keys.db'}"
    shop = Shop()
    shop.handler = shop.held
    app = IdempotencyMiddleware(shop.app, store=store, tenant=single_tenant)
    with (
        serving(shop.watched(app), timeout_graceful_shutdown=0) as client,
        client.open() as wire,
    ):
        wire.send(b"POST /orders HTTP/1.1\r\nHost: test\r\nIdempotency-Key: k1\r\n")
        wire.send(b"Content-Length: 2\r\n\r\n{}")
        assert shop.started.wait(START_S_MAX)
        threading.Thread(target=release_when_ended, args=(shop,)).start()
    [record] = kept(store)
    assert record.state is State.COMPLETED
    assert shop.runs == 1


def release_when_ended(shop: Shop) -> None:
    shop.wait_ended(1)
    shop.go_on.set()
