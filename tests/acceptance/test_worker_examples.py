"""The examples of workers that call somebody else's API: one key per job, one effect per key."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from examples import queue_charges
from oncekey.client import Client, Retries
from tests.client.scripted_server import ScriptedServer, scripted_server
from tests.messaging.test_celery import kill_all

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as served:
        served.otherwise = lambda handler: (201, {}, {"id": f"ch_{len(served.seen)}"})
        yield served


@pytest.mark.parametrize("options", [(), ("--kill",)], ids=str)
def test_the_plain_queue_does_as_it_says(tmp_path: Path, options: tuple[str, ...]) -> None:
    command = [sys.executable, "examples/queue_charges.py", "--data", str(tmp_path), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("3 charges: o0, o1, o2\n")
    assert ("a worker died" in done.stdout) == bool(options)


def test_a_job_of_the_plain_queue_keeps_its_key_until_it_is_answered(
    tmp_path: Path, server: ScriptedServer
) -> None:
    server.script = [503, 503, "drop", "drop", (402, {}, {"error": "declined"})]
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        database.executescript(queue_charges.TABLES)
        queue_charges.order(database, "o1", 100)
        retries = Retries(attempts_max=2, backoff_s=0.001)
        with Client(base_url=server.url, retries=retries) as api:
            queue_charges.work(database, api)
        jobs = database.execute("SELECT * FROM jobs").fetchall()
        [(charge,)] = database.execute("SELECT charge FROM orders").fetchall()

    assert (jobs, charge) == ([], "refused: 402")
    assert len(server.seen) == 5
    assert len(set(server.keys)) == 1


def test_a_job_that_nobody_knows_the_outcome_of_is_not_recorded_as_refused(
    tmp_path: Path, server: ScriptedServer
) -> None:
    """It may have been charged. Its key stays for whoever finds out."""
    server.otherwise = lambda handler: (500, {"Idempotency-Outcome": "unknown"}, {})
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        database.executescript(queue_charges.TABLES)
        queue_charges.order(database, "o1", 100)
        with Client(base_url=server.url) as api:
            queue_charges.work(database, api)
        [(key, order)] = database.execute("SELECT key, order_id FROM jobs").fetchall()
        [(charge,)] = database.execute("SELECT charge FROM orders").fetchall()

    assert (order, charge) == ("o1", None)
    assert set(server.keys) == {key}
    assert len(server.keys) == queue_charges.TRIES_MAX


def test_a_celery_task_keeps_its_key_over_its_retries(
    redis_url: str, tmp_path: Path, server: ScriptedServer
) -> None:
    server.script = [503, "drop", "drop", "truncate"]
    environment = {
        **os.environ,
        "SHOP_BROKER": redis_url,
        "SHOP_PAYMENTS": server.url,
        "SHOP_WAIT_S": "0.05",
    }
    celery = [sys.executable, "-m", "celery", "-A", "celery_charges", "worker", "-c", "1"]
    options: Any = {"cwd": ROOT / "examples", "env": environment}
    with open(tmp_path / "log", "wb") as log:
        worker = subprocess.Popen(celery, stdout=log, stderr=log, start_new_session=True, **options)
    try:
        done = subprocess.run(
            [sys.executable, "celery_charges.py"],
            capture_output=True,
            text=True,
            timeout=60,
            **options,
        )
    finally:
        kill_all(worker)

    assert done.stdout == "ch_5\n", done.stderr + (tmp_path / "log").read_text()
    assert len(server.seen) == 5
    assert len(set(server.keys)) == 1
