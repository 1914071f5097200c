"""The listener: somebody who is told of charges by webhooks, so that the checkout page can show it.

It stands for a shop's own service. What it knows is in a file of its own; what it is told comes
over HTTP, signed, at least once; and each event is processed once. Somebody may have its next
answer lost: that event is processed, and delivered again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

import oncekey
from oncekey.messaging import Duplicate, Handled
from oncekey.webhooks import Event, Receipt, Receiver, new_secret
from payments import clock
from payments.access.accounts import LOCAL
from payments.api.webhook_endpoints import has_room
from payments.demo.trace import TraceLog
from payments.settings import Settings, file_url
from payments.storage.database import Database
from payments.storage.tables import deliveries, webhook_endpoints
from payments.webhooks.deliveries import current_secrets
from payments.webhooks.senders import Senders

ENDPOINT = "we_checkout"
PATH = "/demo/hook"
WANTED = ["charge.failed", "charge.succeeded"]
LOST_ANSWER = "webhook-answer"
EXPLAINS = "The event is processed, but its sender is told 500."
TIMEOUT_S = 10.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS processed (event TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS processed_event ON processed (event);
CREATE TABLE IF NOT EXISTS faults (times INTEGER NOT NULL);
"""
_THIS = (webhook_endpoints.c.tenant == LOCAL.tenant, webhook_endpoints.c.id == ENDPOINT)


def register(settings: Settings, url: str) -> None:
    """Have charges of the local account told to the server at `url`, from now on; or to nobody, if
    webhooks may not go there, or if the account has no room for one more endpoint.

    Each start calls this. An endpoint that somebody disabled stays so; one that was deleted is made
    again.
    """
    with closing(Database(settings)) as database, database.begin() as connection:
        url = f"{url}{PATH}"
        if Senders(settings).of(LOCAL.tenant).objection(url) is not None:
            connection.execute(webhook_endpoints.delete().where(*_THIS))
            return
        found = webhook_endpoints.update().where(*_THIS).values(url=url, failing_since=None)
        if connection.execute(found).rowcount == 0 and has_room(connection, LOCAL.tenant):
            connection.execute(webhook_endpoints.insert(), _endpoint(url))


def _endpoint(url: str) -> dict[str, Any]:
    return {
        "tenant": LOCAL.tenant,
        "id": ENDPOINT,
        "created": clock.now_s(),
        "url": url,
        "enabled_events": WANTED,
        "secrets": [{"secret": new_secret(), "until": None}],
        "description": "The checkout page's own. Disable it to have nobody listen.",
    }


class Listener:
    """Receives at `PATH`. Its file is made when it is first needed."""

    def __init__(self, database: Database, file: Path, trace: TraceLog) -> None:
        self._database = database
        self._path = file
        self._trace = trace
        self._runtime = oncekey.Runtime(file_url(file))

    def close(self) -> None:
        self._runtime.close()

    # ---------------------------------------------------------------------------------- receiving

    def receive(self, headers: Mapping[str, str], body: bytes) -> Receipt:
        """Process what arrives, unless it was processed before, and say what to answer."""
        with self._database.read() as connection:
            secrets = _secrets(connection)
        if not secrets:
            return Receipt(404, "nobody listens here")
        receiver = Receiver(self._runtime, name="charges", secrets=secrets)
        with self._file() as file:
            receipt = receiver.receive_in_sync(file, headers, body, partial(_process, file))
            lost = receipt.status == 200 and _take_fault(file)
        if receipt.outcome is not None:
            self._tell(receipt, json.loads(body), lost)
        return Receipt(500, "this answer stands for one that was lost") if lost else receipt

    def _tell(self, receipt: Receipt, event: dict[str, Any], lost: bool) -> None:
        with self._database.read() as connection:
            attempts = sum(row.attempts for row in _find_deliveries(connection, [event["id"]]))
        key = event["request"]["idempotency_key"]
        tell = partial(self._trace.add, "webhook", key=key)
        tell("busy", f"delivered, signed: attempt {attempts}")
        match receipt.outcome:
            case Handled():
                tell("good", "processed")
            case Duplicate():
                tell("good", "a duplicate: processed before, not again")
            case _:
                tell("warn", receipt.said)
        if lost:
            tell("warn", "its answer is lost: it will be delivered again")

    # ------------------------------------------------------------------------------------ the page

    def told(self, connection: Connection, events: list[str]) -> dict[str, Any] | None:
        """What became of events here; None if they were for nobody here."""
        sent = _find_deliveries(connection, events)
        if not sent:
            return None
        pending = [row for row in sent if row.status == "pending"]
        return {
            "status": "pending" if pending else sent[-1].status,
            "attempts": sum(row.attempts for row in sent),
            "failed": any(row.last_error is not None for row in pending),
            "processed": self._count_processed(events),
        }

    def _count_processed(self, events: list[str]) -> int:
        marks = ", ".join("?" * len(events))
        query = f"SELECT count(*) FROM processed WHERE event IN ({marks})"  # noqa: S608  (marks only)
        with self._file() as file:
            count: int = file.execute(query, events).fetchone()[0]
            return count

    def faults(self) -> list[dict[str, Any]]:
        """What can go wrong here, as the card network tells what can go wrong there."""
        with self._database.read() as connection:
            if not _secrets(connection):
                return []
        with self._file() as file:
            [[times]] = file.execute("SELECT coalesce(sum(times), 0) FROM faults")
        return [{"fault": LOST_ANSWER, "explains": EXPLAINS, "times": times}]

    def arm(self, times: int) -> None:
        """Let the next `times` answers be lost; 0 disarms it."""
        with self._file() as file:
            file.execute("DELETE FROM faults")
            file.execute("INSERT INTO faults VALUES (?)", (times,))

    @contextmanager
    def _file(self) -> Iterator[sqlite3.Connection]:
        """A transaction in the listener's own file."""
        with closing(sqlite3.connect(self._path, timeout=TIMEOUT_S)) as file:
            file.executescript(_SCHEMA)
            with file:
                yield file


def _process(file: sqlite3.Connection, event: Event) -> None:
    """The effect. Nothing but oncekey keeps it from being there twice."""
    file.execute("INSERT INTO processed VALUES (?)", (event.id,))


def _take_fault(file: sqlite3.Connection) -> bool:
    return file.execute("UPDATE faults SET times = times - 1 WHERE times > 0").rowcount > 0


def _secrets(connection: Connection) -> list[str]:
    """What deliveries to this endpoint are signed with; none where it is gone or disabled."""
    query = sa.select(webhook_endpoints.c.secrets).where(
        *_THIS, webhook_endpoints.c.status == "enabled"
    )
    return list(current_secrets(connection.execute(query).scalar_one_or_none() or [], clock.wall()))


def _find_deliveries(connection: Connection, events: list[str]) -> list[Any]:
    """The deliveries of events to this endpoint, oldest first: several if somebody asked for it."""
    query = (
        sa.select(deliveries)
        .where(deliveries.c.tenant == LOCAL.tenant, deliveries.c.event.in_(events))
        .where(deliveries.c.endpoint == ENDPOINT)
        .order_by(deliveries.c.id)
    )
    return list(connection.execute(query))
