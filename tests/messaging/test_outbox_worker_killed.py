"""Workers on one outbox are killed at random moments: nothing is lost, and the inbox on the other
side has each effect once.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oncekey._engine.runtime import Runtime
from oncekey.messaging import Duplicate, Handled, Inbox
from tests.messaging.outbox_databases import (
    OutboxDatabase,
    mariadb_outbox,
    mysql_outbox,
    outbox_db,
    postgres_outbox,
    sqlite_outbox,
)

__all__ = ["mariadb_outbox", "mysql_outbox", "outbox_db", "postgres_outbox", "sqlite_outbox"]

ROOT = Path(__file__).parents[2]
LEASE_S = 3600.0
WORKERS, ROUNDS_MAX = 3, 20
MESSAGES, KEYS = 27, 9
POINTS = ("before_publish", "publishing", "after_publish", "after_removal")


def work(outbox_db: OutboxDatabase, broker: Path, deaths: list[tuple[str, int]]) -> list[int]:
    """Workers at once, each until its death or until nothing is left for it."""
    given = (outbox_db.url, str(broker), str(LEASE_S))
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.messaging.outbox_worker", *given, point, str(count)],
            cwd=ROOT,
        )
        for point, count in deaths
    ]
    return [process.wait(60) for process in processes]


def lines(broker: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in broker.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "outbox_db",
    ["sqlite", "postgres", pytest.param("mariadb", marks=pytest.mark.long)],
    indirect=True,
)
def test_nothing_is_lost_and_each_effect_happens_once(
    outbox_db: OutboxDatabase, tmp_path: Path
) -> None:
    broker, chance = tmp_path / "broker", random.Random(7)
    with outbox_db.connect() as connection:
        put = {
            outbox_db.outbox.put_sync(connection, "orders", b"%d" % i, key=f"k{i % KEYS}").id
            for i in range(MESSAGES)
        }
    killed = 0
    for round in range(ROUNDS_MAX):
        deaths = [(POINTS[(round + i) % 4], chance.randint(1, 3)) for i in range(WORKERS)]
        killed += work(outbox_db, broker, deaths).count(-9)
        if not outbox_db.count_waiting():
            break
        outbox_db.elapse(LEASE_S)  # only now may another take what the dead have left
    assert outbox_db.count_waiting() == 0
    assert killed >= WORKERS

    published = lines(broker)
    assert {line["id"] for line in published} == put
    first = {line["id"]: line for line in reversed(published)}  # the earliest of each id stays
    for key in range(KEYS):
        of_key = [line for line in published if line["key"] == f"k{key}"]
        firsts = [int(line["payload"]) for line in of_key if first[line["id"]] is line]
        assert firsts == list(range(key, MESSAGES, KEYS))

    inbox = Inbox(Runtime("memory://"), name="orders")
    outcomes = [inbox.handle_sync(line["id"], list, payload=b"") for line in published]
    assert sum(isinstance(outcome, Handled) for outcome in outcomes) == MESSAGES
    repeated = len(published) - MESSAGES
    assert sum(isinstance(outcome, Duplicate) for outcome in outcomes) == repeated > 0


@pytest.mark.slow
def test_killed_between_publishing_and_removing(outbox_db: OutboxDatabase, tmp_path: Path) -> None:
    broker = tmp_path / "broker"
    put = outbox_db.put("orders", b"1")
    assert work(outbox_db, broker, [("after_publish", 1)]) == [-9]
    assert work(outbox_db, broker, [("after_publish", 2)]) == [0]
    assert len(lines(broker)) == 1  # the lease of the dead worker still holds
    outbox_db.elapse(LEASE_S)
    assert work(outbox_db, broker, [("after_publish", 2)]) == [0]
    assert [line["id"] for line in lines(broker)] == [put.id, put.id]
    assert outbox_db.count_waiting() == 0


@pytest.mark.slow
def test_the_example_runs(tmp_path: Path) -> None:
    example = (str(ROOT / "examples/outbox_orders.py"), "--kill", "--data", str(tmp_path))
    ran = subprocess.run([sys.executable, "-W", "error", *example], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "published 4 times, 3 different messages" in ran.stdout
