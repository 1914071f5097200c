"""Webhook endpoints: where an account receives its events, and what was delivered there.

A URL is checked when it is set and again before each delivery: by then its name may resolve to
another address. Checking takes time, so it happens before the transaction, not in it.
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
from payments.api.expand import check_paths
from payments.api.objects import Object
from payments.api.openapi import documents_body, documents_query, documents_response
from payments.api.parameters import (
    EndpointCreate,
    EndpointRoll,
    EndpointUpdate,
    Nothing,
    Page,
)
from payments.api.requests import NoQuery, body_as, query_as, tenant_of
from payments.api.responses import respond
from payments.api.transactions import ResumableRequest
from payments.storage import ids, rows
from payments.storage.database import Database, lock_for_transaction
from payments.storage.tables import deliveries, delivery_attempts, webhook_endpoints
from payments.webhooks.senders import Senders

router = APIRouter(tags=["webhooks"])

ENDPOINTS_MAX = 16
"""Per account and mode: each event is written and sent this often."""
SECRETS_MAX = 5
"""Per endpoint: each delivery is signed with all of them."""
_PATH = "/v1/webhook_endpoints"

# ------------------------------------------------------------------------------------ endpoints


@router.post(
    _PATH,
    **documents_response(schemas.WebhookEndpoint, writes=True),
    **documents_body(EndpointCreate),
)
def create_webhook_endpoint(
    request: Request, params: Annotated[EndpointCreate, Depends(body_as(EndpointCreate))]
) -> Response:
    tenant = tenant_of(request)
    _check_url(request, tenant, params.url)

    def write(connection: Connection) -> tuple[int, Object]:
        if not may_add_endpoint(connection, tenant):
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
        created = connection.execute(
            webhook_endpoints.insert().returning(webhook_endpoints), row
        ).one()
        return 200, objects.webhook_endpoint(created) | {"secret": secret}

    return ResumableRequest(request, params, "webhook_endpoint").end(write)


@router.get(
    _PATH, **documents_response(schemas.WebhookEndpoint, many=True), **documents_query(Page)
)
def list_webhook_endpoints(
    request: Request, params: Annotated[Page, Depends(query_as(Page))]
) -> Response:
    return lists.list_objects(request, params, webhook_endpoints, objects.webhook_endpoint)


@router.get(
    _PATH + "/{id}", **documents_response(schemas.WebhookEndpoint), **documents_query(Nothing)
)
def retrieve_webhook_endpoint(request: Request, id: str, params: NoQuery) -> Response:
    return lists.retrieve(request, params, webhook_endpoints, id, objects.webhook_endpoint)


@router.post(
    _PATH + "/{id}",
    **documents_response(schemas.WebhookEndpoint, writes=True),
    **documents_body(EndpointUpdate),
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
    values = params.explicit_values().items()
    nullable = ("description", "metadata")
    changes = {name: value for name, value in values if value is not None or name in nullable}
    disabled = changes.pop("disabled", endpoint.status == "disabled")
    # Enabling or moving an endpoint forgives its failures.
    return changes | {"status": "disabled" if disabled else "enabled", "failing_since": None}


@router.delete(
    _PATH + "/{id}", **documents_response(schemas.Deleted, writes=True), **documents_query(Nothing)
)
def delete_webhook_endpoint(request: Request, id: str, params: NoQuery) -> Response:
    """Delete an endpoint; its pending deliveries are canceled when they come due."""
    check_paths("webhook_endpoint", params.expand)
    database: Database = request.app.state.database
    tenant = tenant_of(request)
    with database.rows() as connection:
        rows.get(connection, webhook_endpoints, tenant, id, lock=True)
        connection.execute(
            webhook_endpoints.delete().where(
                webhook_endpoints.c.tenant == tenant, webhook_endpoints.c.id == id
            )
        )
    return respond(request, {"id": id, "object": "webhook_endpoint", "deleted": True})


@router.post(
    _PATH + "/{id}/roll_secret",
    **documents_response(schemas.WebhookEndpoint, writes=True),
    **documents_body(EndpointRoll),
)
def roll_webhook_secret(
    request: Request, id: str, params: Annotated[EndpointRoll, Depends(body_as(EndpointRoll))]
) -> Response:
    """Replace the secret, which only this response shows. The old one signs for `overlap_s`."""
    tenant, now = tenant_of(request), clock.now_s()

    def write(connection: Connection) -> tuple[int, Object]:
        endpoint = rows.get(connection, webhook_endpoints, tenant, id, lock=True)
        secret = new_secret()
        kept = _keep_secrets(endpoint.secrets, now, now + params.overlap_s)
        secrets = [*kept, {"secret": secret, "until": None}]
        rows.change(connection, webhook_endpoints, tenant, id, secrets=secrets)
        return 200, objects.webhook_endpoint(endpoint) | {"secret": secret}

    return ResumableRequest(request, params, "webhook_endpoint").end(write)


def _keep_secrets(secrets: list[Object], now: int, until: int) -> list[Object]:
    """Return the secrets that sign beside a new one: all current ones, each until its own end, at
    latest `until`.
    """
    ending = (each | {"until": min(each["until"] or until, until)} for each in secrets)
    return [each for each in ending if now < each["until"]][-(SECRETS_MAX - 1) :]


def _check_url(request: Request, tenant: str, url: str) -> None:
    senders: Senders = request.app.state.senders
    objection = senders.objection(tenant, url)
    if objection is not None:
        raise invalid(f"Nothing can be sent to this URL: {objection}", "url", "url_invalid")


def may_add_endpoint(connection: Connection, tenant: str) -> bool:
    """Whether one more endpoint fits; others that ask wait until this transaction ends."""
    lock_for_transaction(connection, f"webhook endpoints of {tenant}")
    query = sa.select(sa.func.count()).where(webhook_endpoints.c.tenant == tenant)
    return connection.execute(query).scalar_one() < ENDPOINTS_MAX


# ----------------------------------------------------------------------------------- deliveries


@router.get(
    _PATH + "/{id}/deliveries",
    **documents_response(schemas.WebhookDelivery, many=True),
    **documents_query(Page),
)
def list_webhook_deliveries(
    request: Request, id: str, params: Annotated[Page, Depends(query_as(Page))]
) -> Response:
    """List the deliveries to an endpoint, newest first, with a log of every attempt."""
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
        log = _attempts(connection, tenant, [delivery["id"] for delivery in found["data"]])
    for delivery in found["data"]:
        delivery["attempts"] = log.get(delivery["id"], [])
    return respond(request, found)


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
