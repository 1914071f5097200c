"""A database with endpoints and events, and a courier whose clock is in the test's hands."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from oncekey.webhooks import LOOPBACK, Schedule, new_secret
from payments import clock
from payments.settings import Settings
from payments.storage import ids
from payments.storage.database import Database
from payments.storage.tables import deliveries, delivery_attempts, webhook_endpoints
from payments.storage.tables import events as event_rows
from payments.webhooks import events
from payments.webhooks.senders import Senders
from payments.webhooks.worker import DeliveryWorker, WorkerSettings

PACE = WorkerSettings(schedule=Schedule(retries_s=(10.0, 100.0), spread=0.0), poll_s=0.05)


class DeliverySetup:
    """What the tests of deliveries work with."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = Database(settings)
        self.database.create_tables()
        self.tenant = f"acct_{uuid.uuid4().hex}/test"
        self.ahead_s = 0.0
        self._workers: list[DeliveryWorker] = []
        with self.database.begin() as connection:
            for table in (deliveries, delivery_attempts, event_rows):
                connection.execute(table.delete())  # what other tests have left

    def now(self) -> float:
        return clock.wall() + self.ahead_s

    def worker(self, senders: Senders | None = None, **pace: Any) -> DeliveryWorker:
        worker = DeliveryWorker(
            self.database,
            senders or Senders(self.settings),
            pace=replace(PACE, **pace),
            now=self.now,
            chance=lambda: 0.0,
        )
        self._workers.append(worker)
        return worker

    def close(self) -> None:
        """No courier goes on, whatever became of its test: on a database that others share it would
        deliver what they wait for.
        """
        for worker in self._workers:
            worker.stop()
        self.database.close()

    def endpoint(self, url: str, *enabled: str, secrets: list[Any] | None = None) -> str:
        row = {
            "tenant": self.tenant,
            "id": ids.new("we"),
            "created": clock.now_s(),
            "url": url,
            "enabled_events": list(enabled) or ["*"],
            "secrets": secrets or [{"secret": new_secret(), "until": None}],
        }
        with self.database.begin() as connection:
            connection.execute(webhook_endpoints.insert(), row)
        return str(row["id"])

    def change(self, endpoint: str, **values: Any) -> None:
        with self.database.begin() as connection:
            connection.execute(
                webhook_endpoints.update()
                .where(
                    webhook_endpoints.c.id == endpoint, webhook_endpoints.c.tenant == self.tenant
                )
                .values(**values)
            )

    def event(self, kind: str = "charge.succeeded", **data: Any) -> str:
        with self.database.begin() as connection:
            return events.record(connection, self.tenant, kind, {"object": "x", **data}, None)

    def rows(self, table: sa.Table) -> list[Any]:
        query = sa.select(table).where(table.c.tenant == self.tenant).order_by(table.c.id)
        with self.database.read() as connection:
            return list(connection.execute(query))

    def deliveries(self) -> list[Any]:
        return self.rows(deliveries)

    def attempts(self) -> list[Any]:
        return self.rows(delivery_attempts)

    def endpoints(self) -> list[Any]:
        return self.rows(webhook_endpoints)

    def events(self) -> list[Any]:
        return self.rows(event_rows)


@contextmanager
def delivery_setup(url: str, folder: Path) -> Iterator[DeliverySetup]:
    post = DeliverySetup(Settings(data=folder, database_url=url, webhook_networks=LOOPBACK))
    with closing(post):
        yield post


@pytest.fixture(params=["sqlite", "postgres"])
def post(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DeliverySetup]:
    """On each kind of database in turn."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    with delivery_setup(url, tmp_path) as made:
        yield made


def until(condition: Callable[[], bool], wait: Callable[[float], object]) -> None:
    """Until it holds: for what happens in other threads."""
    for _ in range(2_000):
        if condition():
            return
        wait(0.01)
    raise AssertionError("it never came to pass")
