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
from payments.api.errors import invalid, not_allowed
from payments.api.expand import check
from payments.api.objects import Object
from payments.api.openapi import answers, asks, takes
from payments.api.parameters import (
    EndpointCreate,
    EndpointRoll,
    EndpointUpdate,
    Nothing,
    Page,
)
from payments.api.requests import NoQuery, body_as, query_as, tenant_of
from payments.api.responses import answer
from payments.api.transactions import ResumableRequest
from payments.storage import ids, rows
from payments.storage.database import Database, lock_for_transaction
from payments.storage.tables import deliveries, delivery_attempts, webhook_endpoints
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
    request: Request, params: Annotated[EndpointCreate, Depends(body_as(EndpointCreate))]
) -> Response:
    tenant = tenant_of(request)
    _check_url(request, tenant, params.url)

    def write(connection: Connection) -> tuple[int, Object]:
        if not has_room(connection, tenant):
            raise not_allowed(f"An account has at most {ENDPOINTS_MAX} webhook endpoints.")
        secret = new_secret()
        row = {
            "tenant": tenant,
            "id": ids.new("we"),
            "created": clock.now_s(),
            "url": params.url,
            "enabled_events": params.enabled_events,
            "secrets": [{"secret": secret, "until": None}],
            "description": params.description,
            "metadata": rows.merge_metadata(None, params.metadata),
        }
        made = connection.execute(
            webhook_endpoints.insert().returning(webhook_endpoints), row
        ).one()
        return 200, objects.webhook_endpoint(made) | {"secret": secret}

    return ResumableRequest(request, params, "webhook_endpoint").end(write)


@router.get(_PATH, **answers(schemas.WebhookEndpoint, many=True), **asks(Page))
def list_webhook_endpoints(
    request: Request, params: Annotated[Page, Depends(query_as(Page))]
) -> Response:
    return lists.many(request, params, webhook_endpoints, objects.webhook_endpoint)


@router.get(_PATH + "/{id}", **answers(schemas.WebhookEndpoint), **asks(Nothing))
def retrieve_webhook_endpoint(request: Request, id: str, params: NoQuery) -> Response:
    return lists.one(request, params, webhook_endpoints, id, objects.webhook_endpoint)


@router.post(
    _PATH + "/{id}", **answers(schemas.WebhookEndpoint, writes=True), **takes(EndpointUpdate)
)
def update_webhook_endpoint(
    request: Request, id: str, params: Annotated[EndpointUpdate, Depends(body_as(EndpointUpdate))]
) -> Response:
    tenant = tenant_of(request)
    if params.url is not None:
        _check_url(request, tenant, params.url)

    def write(connection: Connection) -> tuple[int, Object]:
        endpoint = rows.get(connection, webhook_endpoints, tenant, id, lock=True)
        changes = _changes(endpoint, params)
        changed = rows.update(connection, webhook_endpoints, endpoint, changes)
        return 200, objects.webhook_endpoint(changed)

    return ResumableRequest(request, params, "webhook_endpoint").end(write)


def _changes(endpoint: Row[Any], params: EndpointUpdate) -> dict[str, Any]:
    given = params.explicit_values().items()
    blank = ("description", "metadata")  # what may be made so
    changes = {name: said for name, said in given if said is not None or name in blank}
    disabled = changes.pop("disabled", endpoint.status == "disabled")
    # Whoever enables an endpoint again, or moves it, gives it a new chance.
    return changes | {"status": "disabled" if disabled else "enabled", "failing_since": None}


@router.delete(_PATH + "/{id}", **answers(schemas.Deleted, writes=True), **asks(Nothing))
def delete_webhook_endpoint(request: Request, id: str, params: NoQuery) -> Response:
    """What waits to be sent there is canceled when its turn comes."""
    check("webhook_endpoint", params.expand)
    database: Database = request.app.state.database
    tenant = tenant_of(request)
    with database.rows() as connection:
        rows.get(connection, webhook_endpoints, tenant, id, lock=True)
        connection.execute(
            webhook_endpoints.delete().where(
                webhook_endpoints.c.tenant == tenant, webhook_endpoints.c.id == id
            )
        )
    return answer(request, {"id": id, "object": "webhook_endpoint", "deleted": True})


@router.post(
    _PATH + "/{id}/roll_secret",
    **answers(schemas.WebhookEndpoint, writes=True),
    **takes(EndpointRoll),
)
def roll_webhook_secret(
    request: Request, id: str, params: Annotated[EndpointRoll, Depends(body_as(EndpointRoll))]
) -> Response:
    """A new secret, shown here and nowhere else. The old one signs too, for `overlap_s`."""
    tenant, now = tenant_of(request), clock.now_s()

    def write(connection: Connection) -> tuple[int, Object]:
        endpoint = rows.get(connection, webhook_endpoints, tenant, id, lock=True)
        secret = new_secret()
        still = _signing_on(endpoint.secrets, now, now + params.overlap_s)
        secrets = [*still, {"secret": secret, "until": None}]
        rows.change(connection, webhook_endpoints, tenant, id, secrets=secrets)
        return 200, objects.webhook_endpoint(endpoint) | {"secret": secret}

    return ResumableRequest(request, params, "webhook_endpoint").end(write)


def _signing_on(secrets: list[Object], now: int, until: int) -> list[Object]:
    """What signs beside a new secret: all that sign now, for as long as was said of each when it
    was replaced, and none longer than `until`.
    """
    ending = (each | {"until": min(each["until"] or until, until)} for each in secrets)
    return [each for each in ending if now < each["until"]][-(SECRETS_MAX - 1) :]


def _check_url(request: Request, tenant: str, url: str) -> None:
    senders: Senders = request.app.state.senders
    objection = senders.objection(tenant, url)
    if objection is not None:
        raise invalid(f"Nothing can be sent to this URL: {objection}", "url", "url_invalid")


def has_room(connection: Connection, tenant: str) -> bool:
    """Whether one more may be made, in this transaction: whoever else asks waits for its end."""
    lock_for_transaction(connection, f"webhook endpoints of {tenant}")
    query = sa.select(sa.func.count()).where(webhook_endpoints.c.tenant == tenant)
    return connection.execute(query).scalar_one() < ENDPOINTS_MAX


# ----------------------------------------------------------------------------------- deliveries


@router.get(_PATH + "/{id}/deliveries", **answers(schemas.WebhookDelivery, many=True), **asks(Page))
def list_webhook_deliveries(
    request: Request, id: str, params: Annotated[Page, Depends(query_as(Page))]
) -> Response:
    """What was sent to an endpoint, newest first, with a log of every attempt."""
    database: Database = request.app.state.database
    tenant = tenant_of(request)
    with database.read() as connection:
        rows.get(connection, webhook_endpoints, tenant, id)
        found = lists.page(
            connection,
            deliveries,
            tenant,
            params,
            lambda row: objects.delivery(row, []),
            f"{_PATH}/{id}/deliveries",
            deliveries.c.endpoint == id,
        )
        log = _attempts(connection, tenant, [shown["id"] for shown in found["data"]])
    for shown in found["data"]:
        shown["attempts"] = log.get(shown["id"], [])
    return answer(request, found)


def _attempts(connection: Connection, tenant: str, ids: list[str]) -> dict[str, list[Object]]:
    found = connection.execute(
        sa.select(delivery_attempts)
        .where(delivery_attempts.c.tenant == tenant, delivery_attempts.c.delivery.in_(ids))
        .order_by(delivery_attempts.c.delivery, delivery_attempts.c.id)
    )
    return {
        delivery: [objects.delivery_attempt(row) for row in group]
        for delivery, group in groupby(found, key=lambda row: row.delivery)
    }
