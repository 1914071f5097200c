"""The webhook listener: receives webhooks about charges, so that the checkout page can show them.

It stands for a shop's own service, with its own database file. Webhooks arrive over HTTP, signed,
at least once, and each event is processed once. A fault makes it lose its next response: that event
is processed and delivered again.
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
from payments.api.webhook_endpoints import may_add_endpoint
from payments.demo.trace import TraceLog
from payments.settings import Settings, file_url
from payments.storage.database import Database
from payments.storage.tables import deliveries, webhook_endpoints
from payments.webhooks.deliveries import current_secrets
from payments.webhooks.senders import Senders

ENDPOINT = "we_checkout"
PATH = "/demo/hook"
EVENT_TYPES = ["charge.failed", "charge.succeeded"]
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
    """Register an endpoint at `url` for charges of the local account.

    Does nothing if webhooks may not go there, or if the account has too many endpoints.

    Each start calls this. A disabled endpoint stays disabled; a deleted one is created again.
    """
    with closing(Database(settings)) as database, database.begin() as connection:
        url = f"{url}{PATH}"
        if Senders(settings).of(LOCAL.tenant).objection(url) is not None:
            connection.execute(webhook_endpoints.delete().where(*_THIS))
            return
        found = webhook_endpoints.update().where(*_THIS).values(url=url, failing_since=None)
        if connection.execute(found).rowcount == 0 and may_add_endpoint(connection, LOCAL.tenant):
            connection.execute(webhook_endpoints.insert(), _endpoint(url))


def _endpoint(url: str) -> dict[str, Any]:
    return {
        "tenant": LOCAL.tenant,
        "id": ENDPOINT,
        "created": clock.now_s(),
        "url": url,
        "enabled_events": EVENT_TYPES,
        "secrets": [{"secret": new_secret(), "until": None}],
        "description": "The checkout page's own. Disable it to stop listening.",
    }


class Listener:
    """Receives webhooks at `PATH`. Its file is created when first needed."""

    def __init__(self, database: Database, file: Path, trace: TraceLog) -> None:
        self._database = database
        self._path = file
        self._trace = trace
        self._runtime = oncekey.Runtime(file_url(file))

    def close(self) -> None:
        self._runtime.close()

    # ---------------------------------------------------------------------------------- receiving

    def receive(self, headers: Mapping[str, str], body: bytes) -> Receipt:
        """Process an event, unless it was processed before, and return the response."""
        with self._database.read() as connection:
            secrets = _secrets(connection)
        if not secrets:
            return Receipt(404, "nobody listens here")
        receiver = Receiver(self._runtime, name="charges", secrets=secrets)
        with self._file() as file:
            receipt = receiver.receive_in_sync(file, headers, body, partial(_process, file))
            lost = receipt.status == 200 and _take_fault(file)
        if receipt.outcome is not None:
            self._add_to_trace(receipt, json.loads(body), lost)
        return Receipt(500, "this answer stands for one that was lost") if lost else receipt

    def _add_to_trace(self, receipt: Receipt, event: dict[str, Any], lost: bool) -> None:
        with self._database.read() as connection:
            attempts = sum(row.attempts for row in _find_deliveries(connection, [event["id"]]))
        key = event["request"]["idempotency_key"]
        add = partial(self._trace.add, "webhook", key=key)
        add("busy", f"delivered, signed: attempt {attempts}")
        match receipt.outcome:
            case Handled():
                add("good", "processed")
            case Duplicate():
                add("good", "a duplicate: processed before, not again")
            case _:
                add("warn", receipt.said)
        if lost:
            add("warn", "its answer is lost: it will be delivered again")

    # ----------------------------------------------------------------------------------- the page

    def summary(self, connection: Connection, events: list[str]) -> dict[str, Any] | None:
        """Summarise deliveries of these events to this endpoint; None if there are none."""
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
        """List this listener's faults, in the card network's format."""
        with self._database.read() as connection:
            if not _secrets(connection):
                return []
        with self._file() as file:
            [[times]] = file.execute("SELECT coalesce(sum(times), 0) FROM faults")
        return [{"fault": LOST_ANSWER, "explains": EXPLAINS, "times": times}]

    def arm(self, times: int) -> None:
        """Lose the next `times` responses; 0 disarms."""
        with self._file() as file:
            file.execute("DELETE FROM faults")
            file.execute("INSERT INTO faults VALUES (?)", (times,))

    @contextmanager
    def _file(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction in the listener's file."""
        with closing(sqlite3.connect(self._path, timeout=TIMEOUT_S)) as file:
            file.executescript(_SCHEMA)
            with file:
                yield file


def _process(file: sqlite3.Connection, event: Event) -> None:
    """Apply the effect. Only oncekey prevents applying it twice."""
    file.execute("INSERT INTO processed VALUES (?)", (event.id,))


def _take_fault(file: sqlite3.Connection) -> bool:
    return file.execute("UPDATE faults SET times = times - 1 WHERE times > 0").rowcount > 0


def _secrets(connection: Connection) -> list[str]:
    """Return the endpoint's signing secrets; none if it is deleted or disabled."""
    query = sa.select(webhook_endpoints.c.secrets).where(
        *_THIS, webhook_endpoints.c.status == "enabled"
    )
    return list(current_secrets(connection.execute(query).scalar_one_or_none() or [], clock.wall()))


def _find_deliveries(connection: Connection, events: list[str]) -> list[Any]:
    """Return the deliveries of events to this endpoint, oldest first; several after a resend."""
    query = (
        sa.select(deliveries)
        .where(deliveries.c.tenant == LOCAL.tenant, deliveries.c.event.in_(events))
        .where(deliveries.c.endpoint == ENDPOINT)
        .order_by(deliveries.c.id)
    )
    return list(connection.execute(query))
