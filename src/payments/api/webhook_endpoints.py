"""Webhook endpoints: where an account wants to be told of its events, and what it was told.

A URL is looked at when it is given, and again whenever something is sent there: a name may lead
elsewhere by then. Looking takes time, so it is done before the transaction, not within.
"""

from __future__ import annotations

from itertools import groupby
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy.engine import Connection, Row

from oncekey.webhooks import new_secret
from payments import clock
from payments.api import lists, objects, schemas
from payments.api.errors import invalid, refused
from payments.api.expand import check
from payments.api.objects import Object
from payments.api.openapi import answers, asks, takes
from payments.api.parameters import (
    EndpointCreate,
    EndpointRoll,
    EndpointUpdate,
    EventRetry,
    Nothing,
    Page,
)
from payments.api.reading import Looking, body_as, query_as, tenant
from payments.api.responses import answer
from payments.money.work import Work
from payments.storage import ids, rows
from payments.storage.database import Database, take_turns
from payments.storage.tables import deliveries as delivery_rows
from payments.storage.tables import delivery_attempts, events, webhook_endpoints
from payments.webhooks import deliveries
from payments.webhooks import events as event_log
from payments.webhooks.senders import Senders

router = APIRouter(tags=["webhooks"])

ENDPOINTS_MAX = 16
"""Per account and mode: each event is written and sent so often."""
SECRETS_MAX = 5
"""Per endpoint: each delivery is signed with all of them."""
_PATH = "/v1/webhook_endpoints"

# ------------------------------------------------------------------------------------ endpoints


@router.post(_PATH, **answers(schemas.WebhookEndpoint, writes=True), **takes(EndpointCreate))
def create_webhook_endpoint(
    request: Request, asked: Annotated[EndpointCreate, Depends(body_as(EndpointCreate))]
) -> Response:
    whose = tenant(request)
    _check_url(request, whose, asked.url)

    def write(connection: Connection) -> tuple[int, Object]:
        if not has_room(connection, whose):
            raise refused(f"An account has at most {ENDPOINTS_MAX} webhook endpoints.")
        secret = new_secret()
        row = {
            "tenant": whose,
            "id": ids.new("we"),
            "created": clock.now_s(),
            "url": asked.url,
            "enabled_events": asked.enabled_events,
            "secrets": [{"secret": secret, "until": None}],
            "description": asked.description,
            "metadata": rows.merged(None, asked.metadata),
        }
        made = connection.execute(
            webhook_endpoints.insert().returning(webhook_endpoints), row
        ).one()
        return 200, objects.webhook_endpoint(made) | {"secret": secret}

    return Work(request, asked, "webhook_endpoint").end(write)


@router.get(_PATH, **answers(schemas.WebhookEndpoint, many=True), **asks(Page))
def list_webhook_endpoints(
    request: Request, asked: Annotated[Page, Depends(query_as(Page))]
) -> Response:
    return lists.many(request, asked, webhook_endpoints, objects.webhook_endpoint)


@router.get(_PATH + "/{id}", **answers(schemas.WebhookEndpoint), **asks(Nothing))
def retrieve_webhook_endpoint(request: Request, id: str, asked: Looking) -> Response:
    return lists.one(request, asked, webhook_endpoints, id, objects.webhook_endpoint)


@router.post(
    _PATH + "/{id}", **answers(schemas.WebhookEndpoint, writes=True), **takes(EndpointUpdate)
)
def update_webhook_endpoint(
    request: Request, id: str, asked: Annotated[EndpointUpdate, Depends(body_as(EndpointUpdate))]
) -> Response:
    whose = tenant(request)
    if asked.url is not None:
        _check_url(request, whose, asked.url)

    def write(connection: Connection) -> tuple[int, Object]:
        endpoint = rows.get(connection, webhook_endpoints, whose, id, lock=True)
        changes = _changes(endpoint, asked)
        changed = rows.update(connection, webhook_endpoints, endpoint, changes)
        return 200, objects.webhook_endpoint(changed)

    return Work(request, asked, "webhook_endpoint").end(write)


def _changes(endpoint: Row[Any], asked: EndpointUpdate) -> dict[str, Any]:
    given = asked.given().items()
    blank = ("description", "metadata")  # what may be made so
    changes = {name: said for name, said in given if said is not None or name in blank}
    disabled = changes.pop("disabled", endpoint.status == "disabled")
    # Whoever enables an endpoint again, or moves it, gives it a new chance.
    return changes | {"status": "disabled" if disabled else "enabled", "failing_since": None}


@router.delete(_PATH + "/{id}", **answers(schemas.Deleted, writes=True), **asks(Nothing))
def delete_webhook_endpoint(request: Request, id: str, asked: Looking) -> Response:
    """What waits to be sent there is canceled when its turn comes."""
    check("webhook_endpoint", asked.expand)
    database: Database = request.app.state.database
    whose = tenant(request)
    with database.rows() as connection:
        rows.get(connection, webhook_endpoints, whose, id, lock=True)
        connection.execute(
            webhook_endpoints.delete().where(
                webhook_endpoints.c.tenant == whose, webhook_endpoints.c.id == id
            )
        )
    return answer(request, {"id": id, "object": "webhook_endpoint", "deleted": True})


@router.post(
    _PATH + "/{id}/roll_secret",
    **answers(schemas.WebhookEndpoint, writes=True),
    **takes(EndpointRoll),
)
def roll_webhook_secret(
    request: Request, id: str, asked: Annotated[EndpointRoll, Depends(body_as(EndpointRoll))]
) -> Response:
    """A new secret, shown here and nowhere else. The old one signs too, for `overlap_s`."""
    whose, now = tenant(request), clock.now_s()

    def write(connection: Connection) -> tuple[int, Object]:
        endpoint = rows.get(connection, webhook_endpoints, whose, id, lock=True)
        secret = new_secret()
        still = _signing_on(endpoint.secrets, now, now + asked.overlap_s)
        secrets = [*still, {"secret": secret, "until": None}]
        rows.change(connection, webhook_endpoints, whose, id, secrets=secrets)
        return 200, objects.webhook_endpoint(endpoint) | {"secret": secret}

    return Work(request, asked, "webhook_endpoint").end(write)


def _signing_on(secrets: list[Object], now: int, until: int) -> list[Object]:
    """What signs beside a new secret: all that sign now, for as long as was said of each when it
    was replaced, and none longer than `until`.
    """
    ending = (each | {"until": min(each["until"] or until, until)} for each in secrets)
    return [each for each in ending if now < each["until"]][-(SECRETS_MAX - 1) :]


def _check_url(request: Request, whose: str, url: str) -> None:
    senders: Senders = request.app.state.senders
    objection = senders.objection(whose, url)
    if objection is not None:
        raise invalid(f"Nothing can be sent to this URL: {objection}", "url", "url_invalid")


def has_room(connection: Connection, whose: str) -> bool:
    """Whether one more may be made, in this transaction: whoever else asks waits for its end."""
    take_turns(connection, f"webhook endpoints of {whose}")
    query = sa.select(sa.func.count()).where(webhook_endpoints.c.tenant == whose)
    return connection.execute(query).scalar_one() < ENDPOINTS_MAX


# ----------------------------------------------------------------------------------- deliveries


@router.get(_PATH + "/{id}/deliveries", **answers(schemas.WebhookDelivery, many=True), **asks(Page))
def list_webhook_deliveries(
    request: Request, id: str, asked: Annotated[Page, Depends(query_as(Page))]
) -> Response:
    """What was sent to an endpoint, newest first, with a log of every attempt."""
    database: Database = request.app.state.database
    whose = tenant(request)
    with database.read() as connection:
        rows.get(connection, webhook_endpoints, whose, id)
        found = lists.page(
            connection,
            delivery_rows,
            whose,
            asked,
            lambda row: objects.delivery(row, []),
            f"{_PATH}/{id}/deliveries",
            delivery_rows.c.endpoint == id,
        )
        log = _attempts(connection, whose, [shown["id"] for shown in found["data"]])
    for shown in found["data"]:
        shown["attempts"] = log.get(shown["id"], [])
    return answer(request, found)


def _attempts(connection: Connection, whose: str, ids: list[str]) -> dict[str, list[Object]]:
    found = connection.execute(
        sa.select(delivery_attempts)
        .where(delivery_attempts.c.tenant == whose, delivery_attempts.c.delivery.in_(ids))
        .order_by(delivery_attempts.c.delivery, delivery_attempts.c.id)
    )
    return {
        delivery: [objects.delivery_attempt(row) for row in group]
        for delivery, group in groupby(found, key=lambda row: row.delivery)
    }


@router.post("/v1/events/{id}/retry", **answers(schemas.Event, writes=True), **takes(EventRetry))
def retry_event(
    request: Request, id: str, asked: Annotated[EventRetry, Depends(body_as(EventRetry))]
) -> Response:
    """Send an event again: to one endpoint, or to all that want it."""
    whose, endpoint = tenant(request), asked.webhook_endpoint

    def write(connection: Connection) -> tuple[int, Object]:
        event = rows.get(connection, events, whose, id, lock=True)
        if endpoint is not None:
            found = rows.get(connection, webhook_endpoints, whose, endpoint, "webhook_endpoint")
            if found.status != "enabled":
                raise refused("This webhook endpoint is disabled.", param="webhook_endpoint")
        deliveries.send_again(connection, whose, event, endpoint, clock.wall())
        return 200, event_log.shown(connection, whose, id)

    return Work(request, asked, "event").end(write)
