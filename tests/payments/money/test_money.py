"""The money test: hundreds of buyers who retry, while API workers, the card network and whoever
receives the webhooks are killed at random. Afterwards every book agrees with every other.
"""

from __future__ import annotations

import signal
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy as sa

from oncekey.webhooks import LOOPBACK
from payments import clock
from payments.demo.child_process import ChildProcess
from payments.money.reconcile import read_file
from payments.settings import Settings
from payments.storage.database import Database
from payments.storage.tables import deliveries
from payments.webhooks.senders import Senders
from payments.webhooks.worker import DeliveryWorker, WorkerSettings
from tests.payments.money.book_checks import (
    Told,
    check_events,
    check_money,
    count_unfinished,
    count_work,
)
from tests.payments.money.system import Killer, System, read_told
from tests.payments.serve_command import until

FINISH_S_MAX = 300.0
ROUNDS_MAX = 20
SENT_AGAIN = 20


@dataclass(frozen=True, slots=True)
class Plan:
    seconds: float
    buyers: int
    workers: int
    seed: int


@pytest.fixture
def database_url(postgres_url: str) -> Iterator[str]:
    """A database for this test alone."""
    name = f"money_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"'.encode())
        made = urlsplit(postgres_url)._replace(path=f"/{name}", query="allow=unsafe-durability")
        yield made.geturl()
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nobody_is_charged_twice_whoever_is_killed(
    tmp_path: Path, database_url: str, redis_url: str
) -> None:
    run(Plan(seconds=6.0, buyers=60, workers=2, seed=7), tmp_path, database_url, redis_url)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2])
def test_nobody_is_charged_twice_in_a_minute_of_killing(
    tmp_path: Path, database_url: str, redis_url: str, seed: int
) -> None:
    run(Plan(seconds=60.0, buyers=300, workers=4, seed=seed), tmp_path, database_url, redis_url)


def run(plan: Plan, folder: Path, database_url: str, redis_url: str) -> None:
    settings = Settings(data=folder, database_url=database_url, webhook_networks=LOOPBACK)
    with (
        closing(System(folder, database_url, redis_url, workers=plan.workers)) as system,
        closing(Database(settings)) as database,
    ):
        killer = Killer(system, plan.seed)
        told = shop(system, killer, plan)
        until(lambda: count_unfinished(database) == 0, "what was begun to be finished")
        assert system.end_api() == 0, system.log("api")
        deliver_the_rest(database, settings)
        forget_some(database)
        deliver_the_rest(database, settings)
        book = list(read_file(system.network.file))
        print(f"\n{plan}: killed {dict(killer.done)}: {count_work(database, book, told)}")  # noqa: T201
        check_money(database, book, told)
        check_events(database, system.count_bookings())


def shop(system: System, killer: Killer, plan: Plan) -> Told:
    """What the buyers were told, while everything else was dying."""
    path = system.folder / "told"
    command = [sys.executable, "-m", "tests.payments.money.buyers"]
    command += [system.url, str(plan.seed), str(plan.buyers)]
    with open(path, "wb") as told, open(system.folder / "buyers.log", "wb") as log:
        buyers = ChildProcess("buyers", command, output=told, errors=log)
    try:
        killer.rage(plan.seconds)
        buyers.signal(signal.SIGTERM)
        deadline = clock.monotonic() + FINISH_S_MAX
        while buyers.exit_status is None and clock.monotonic() < deadline:
            system.mend()  # a fault that was armed may yet end the network
            time.sleep(0.05)
        assert buyers.exit_status == 0, f"{system.log('buyers')}\n{system.log('api')}"
    finally:
        buyers.kill()
    return read_told(path)


def deliver_the_rest(database: Database, settings: Settings) -> None:
    """All who could be sending have ended, so no lease is worth waiting for, and no pause."""
    pending = deliveries.c.status == "pending"
    worker = DeliveryWorker(
        database, Senders(settings), pace=WorkerSettings(per_endpoint_max=8, poll_s=0.05)
    )
    for _ in range(ROUNDS_MAX):
        with database.begin() as connection:
            left = connection.execute(deliveries.update().where(pending).values(due=clock.wall()))
        if left.rowcount == 0:
            return
        worker.drain()
    raise AssertionError("some deliveries fail again and again")


def forget_some(database: Database) -> None:
    """As if those who had sent them had died before they wrote it down."""
    sent = sa.select(deliveries.c.id).order_by(deliveries.c.id).limit(SENT_AGAIN)
    with database.begin() as connection:
        which = [id_ for (id_,) in connection.execute(sent)]
        connection.execute(
            deliveries.update().where(deliveries.c.id.in_(which)).values(status="pending")
        )
