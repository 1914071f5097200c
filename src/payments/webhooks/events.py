"""Events: every change of state, written in the transaction of the change, with its deliveries.

So an event exists if and only if the change was committed, and so does a delivery for every
endpoint subscribed at that time. Workers send them afterwards.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

import oncekey
from payments import clock
from payments.api import objects
from payments.storage import ids, rows
from payments.storage.tables import deliveries, events, webhook_endpoints

_ENDPOINTS = sa.select(webhook_endpoints.c.id, webhook_endpoints.c.enabled_events).where(
    webhook_endpoints.c.tenant == sa.bindparam("whose"),
    webhook_endpoints.c.status == "enabled",
)


def record(
    connection: Connection, tenant: str, kind: str, changed: objects.Object, request: str | None
) -> str:
    """Write an event and its deliveries; return its id. `request` is the id of the request."""
    id_, now = ids.new("evt"), clock.wall()
    attempt = oncekey.current_or_none()
    key = None if attempt is None else attempt.key
    connection.execute(
        events.insert(),
        {
            "tenant": tenant,
            "id": id_,
            "created": int(now),
            "type": kind,
            "data": changed,
            "request": request,
            "idempotency_key": None if key is None or ids.is_generated_key(key) else key,
        },
    )
    wanted = [
        {
            "tenant": tenant,
            "id": ids.new("dlv"),
            "created": int(now),
            "event": id_,
            "endpoint": endpoint.id,
            "due": now,
        }
        for endpoint in connection.execute(_ENDPOINTS, {"whose": tenant})
        if wants(endpoint.enabled_events, kind)
    ]
    if wanted:
        connection.execute(deliveries.insert(), wanted)
    return id_


def wants(enabled: list[str], kind: str) -> bool:
    """Whether an endpoint subscribes to this type of event."""
    return "*" in enabled or kind in enabled


def retrieve(connection: Connection, tenant: str, id_: str) -> objects.Object:
    """Return an event as the API and webhooks show it."""
    return render(connection, rows.get(connection, events, tenant, id_))


def render(connection: Connection, row: Row[Any]) -> objects.Object:
    waiting = sa.select(sa.func.count()).where(
        deliveries.c.tenant == row.tenant,
        deliveries.c.event == row.id,
        deliveries.c.status == "pending",
    )
    return objects.event(row, connection.execute(waiting).scalar_one())
