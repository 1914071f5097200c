"""Events: what happened to an account's objects, and sending an event again."""

from __future__ import annotations

import functools
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy.engine import Connection

from payments import clock
from payments.api import lists, schemas
from payments.api.errors import not_allowed
from payments.api.expand import check_paths
from payments.api.objects import Object
from payments.api.openapi import documents_body, documents_query, documents_response
from payments.api.parameters import EventList, EventRetry, Nothing
from payments.api.requests import NoQuery, body_as, query_as, tenant_of
from payments.api.responses import respond
from payments.api.transactions import ResumableRequest
from payments.storage import rows
from payments.storage.database import Database
from payments.storage.tables import events, webhook_endpoints
from payments.webhooks import deliveries
from payments.webhooks import events as event_log

router = APIRouter(prefix="/v1/events", tags=["events"])


@router.get("", **documents_response(schemas.Event, many=True), **documents_query(EventList))
def list_events(
    request: Request, params: Annotated[EventList, Depends(query_as(EventList))]
) -> Response:
    database: Database = request.app.state.database
    tenant = tenant_of(request)
    wanted = [_is_type(kind) for kind in (*(params.types or ()), params.type) if kind is not None]
    conditions = [sa.or_(*wanted)] if wanted else []
    with database.read() as connection:
        shape = functools.partial(event_log.render, connection)
        found = lists.page(connection, events, tenant, params, shape, "/v1/events", *conditions)
    return respond(request, found)


def _is_type(kind: str) -> sa.ColumnElement[bool]:
    """Match a type; `charge.*` matches all that begin with `charge.`."""
    if not kind.endswith("*"):
        return events.c.type == kind
    start = kind.removesuffix("*")
    return sa.func.substr(events.c.type, 1, len(start)) == start


@router.get("/{id}", **documents_response(schemas.Event), **documents_query(Nothing))
def retrieve_event(request: Request, id: str, params: NoQuery) -> Response:
    database: Database = request.app.state.database
    tenant = tenant_of(request)
    check_paths("event", params.expand)
    with database.read() as connection:
        return respond(request, event_log.retrieve(connection, tenant, id))


@router.post(
    "/{id}/retry", **documents_response(schemas.Event, writes=True), **documents_body(EventRetry)
)
def retry_event(
    request: Request, id: str, params: Annotated[EventRetry, Depends(body_as(EventRetry))]
) -> Response:
    """Send an event again, to one endpoint or to all subscribers."""
    tenant, endpoint = tenant_of(request), params.webhook_endpoint

    def write(connection: Connection) -> tuple[int, Object]:
        event = rows.get(connection, events, tenant, id, lock=True)
        if endpoint is not None:
            found = rows.get(connection, webhook_endpoints, tenant, endpoint, "webhook_endpoint")
            if found.status != "enabled":
                raise not_allowed("This webhook endpoint is disabled.", param="webhook_endpoint")
        deliveries.send_again(connection, tenant, event, endpoint, clock.wall())
        return 200, event_log.retrieve(connection, tenant, id)

    return ResumableRequest(request, params, "event").end(write)
