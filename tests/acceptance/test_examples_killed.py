"""The example applications, killed in the middle of an order: the retry finishes it, once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oncekey.testing.crash import VARIABLE
from tests.acceptance.client import Client
from tests.servers.process import free_port
from tests.stores import elapse

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
START_S_MAX, END_S_MAX = 30.0, 10.0
ANN = [("Authorization", "Bearer ann-1")]
TEA = {"item": "tea"}


@contextmanager
def running(
    name: str, data: Path, at: str = ""
) -> Iterator[tuple[Client, subprocess.Popen[bytes]]]:
    client = Client(free_port())
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.acceptance.example_child", name, str(client.port), str(data)],
        cwd=ROOT,
        env={**os.environ, VARIABLE: at},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_ready(client, process)
        yield client, process
    finally:
        process.kill()
        process.wait(END_S_MAX)


def _wait_ready(client: Client, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline:
        assert process.poll() is None, "it ended before it served"
        try:
            if client.ask(method="GET", headers=ANN).status == 200:
                return
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise AssertionError("it did not serve in time")


@pytest.mark.parametrize("name", ["fastapi", "flask", "django"])
@pytest.mark.parametrize("at", ["after_step", "after_handler"])
def test_e34_p6_an_order_that_was_cut_off_is_finished_by_its_retry(
    name: str, at: str, tmp_path: Path
) -> None:
    with running(name, tmp_path, f"{at}=kill") as (client, process):
        assert client.ask("k1", TEA, headers=ANN).status == 0, "its process is dead"
        process.wait(END_S_MAX)
    with running(name, tmp_path) as (client, _):
        elapse.sqlite(tmp_path / ("orders.db" if name == "django" else "keys.db"), 31)
        first, again = client.ask("k1", TEA, headers=ANN), client.ask("k1", TEA, headers=ANN)
        orders = client.ask(method="GET", headers=ANN).json()
    assert (first.status, again.status, again.body) == (201, 201, first.body)
    assert [order["id"] for order in orders] == [first.json()["id"]]
    # Django's order had committed together with its answer: there was nothing left to finish.
    assert first.replayed is (name == "django" and at == "after_handler")
