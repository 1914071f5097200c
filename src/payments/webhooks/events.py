"""Events: every change of state, written in the transaction of the change, with its deliveries.

So there is an event if and only if the change was committed, and a delivery for every endpoint that
wanted to know of it then. Workers send them afterwards.
"""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy.engine import Connection, Row

import oncekey
from payments import clock
from payments.api import lists, objects, schemas
from payments.api.expand import check
from payments.api.openapi import answers, asks
from payments.api.parameters import EventList, Nothing
from payments.api.reading import Looking, query_as, tenant
from payments.api.responses import answer
from payments.storage import ids, rows
from payments.storage.database import Database
from payments.storage.tables import deliveries, events, webhook_endpoints

router = APIRouter(prefix="/v1/events", tags=["events"])

_ENDPOINTS = sa.select(webhook_endpoints.c.id, webhook_endpoints.c.enabled_events).where(
    webhook_endpoints.c.tenant == sa.bindparam("whose"),
    webhook_endpoints.c.status == "enabled",
)


def record(
    connection: Connection, whose: str, kind: str, changed: objects.Object, request: str | None
) -> str:
    """Write an event and its deliveries; gives its id. `request` is what caused it."""
    id_, now = ids.new("evt"), clock.wall()
    attempt = oncekey.current_or_none()
    key = None if attempt is None else attempt.key
    connection.execute(
        events.insert(),
        {
            "tenant": whose,
            "id": id_,
            "created": int(now),
            "type": kind,
            "data": changed,
            "request": request,
            "idempotency_key": None if key is None or ids.is_own_key(key) else key,
        },
    )
    wanted = [
        {
            "tenant": whose,
            "id": ids.new("dlv"),
            "created": int(now),
            "event": id_,
            "endpoint": endpoint.id,
            "due": now,
        }
        for endpoint in connection.execute(_ENDPOINTS, {"whose": whose})
        if wants(endpoint.enabled_events, kind)
    ]
    if wanted:
        connection.execute(deliveries.insert(), wanted)
    return id_


def wants(enabled: list[str], kind: str) -> bool:
    """Whether an endpoint wants to know of this type of event."""
    return "*" in enabled or kind in enabled


# -------------------------------------------------------------------------------- the routes


@router.get("", **answers(schemas.Event, many=True), **asks(EventList))
def list_events(
    request: Request, asked: Annotated[EventList, Depends(query_as(EventList))]
) -> Response:
    database: Database = request.app.state.database
    whose = tenant(request)
    wanted = [_is_of(kind) for kind in (*(asked.types or ()), asked.type) if kind is not None]
    conditions = [sa.or_(*wanted)] if wanted else []
    with database.read() as connection:
        shape = lambda row: _shaped(connection, row)  # noqa: E731
        found = lists.page(connection, events, whose, asked, shape, "/v1/events", *conditions)
    return answer(request, found)


def _is_of(kind: str) -> sa.ColumnElement[bool]:
    """Of this type; `charge.*` is any that begins so."""
    if not kind.endswith("*"):
        return events.c.type == kind
    start = kind.removesuffix("*")
    return sa.func.substr(events.c.type, 1, len(start)) == start


@router.get("/{id}", **answers(schemas.Event), **asks(Nothing))
def retrieve_event(request: Request, id: str, asked: Looking) -> Response:
    database: Database = request.app.state.database
    whose = tenant(request)
    check("event", asked.expand)
    with database.read() as connection:
        return answer(request, shown(connection, whose, id))


def shown(connection: Connection, whose: str, id_: str) -> objects.Object:
    """An event as it is retrieved, and as it is delivered."""
    return _shaped(connection, rows.get(connection, events, whose, id_))


def _shaped(connection: Connection, row: Row[Any]) -> objects.Object:
    waiting = sa.select(sa.func.count()).where(
        deliveries.c.tenant == row.tenant,
        deliveries.c.event == row.id,
        deliveries.c.status == "pending",
    )
    return objects.event(row, connection.execute(waiting).scalar_one())
