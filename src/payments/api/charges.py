"""Charges: a card pays, or is declined.

validate → a pending row → the network, with its own key → ledger, event and response
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy.engine import Connection, Row

from payments.api import lists, objects, schemas, sources
from payments.api.errors import invalid, not_allowed
from payments.api.objects import Object
from payments.api.openapi import documents_body, documents_query, documents_response
from payments.api.parameters import ChargeCapture, ChargeCreate, ChargeList, ChargeUpdate, Nothing
from payments.api.requests import NoQuery, body_as, query_as
from payments.api.transactions import ResumableRequest, write_rows
from payments.money import orders, settlement
from payments.money.amounts import MINIMUM, format_amount
from payments.money.orders import Order
from payments.storage import rows
from payments.storage.tables import charges

router = APIRouter(prefix="/v1/charges", tags=["charges"])


# ------------------------------------------------------------------------------------ create


@router.post("", **documents_response(schemas.Charge, writes=True), **documents_body(ChargeCreate))
def create_charge(
    request: Request, params: Annotated[ChargeCreate, Depends(body_as(ChargeCreate))]
) -> Response:
    check_amount(params.amount, params.currency)
    work = ResumableRequest(request, params, "charge")
    tenant = work.tenant

    def insert(connection: Connection) -> Order:
        source = sources.of_charge(connection, tenant, params.source, params.customer)
        values = params.explicit_values()
        return orders.insert_pending(
            connection,
            work,
            source,
            amount=params.amount,
            currency=params.currency,
            capture=params.capture,
            customer=params.customer,
            description=params.description,
            receipt_email=params.receipt_email,
            statement_descriptor=params.statement_descriptor,
            metadata=rows.merge_metadata(None, values.get("metadata")),
        )

    order = work.begin("pending", insert)
    work.set_resource_id(order["reference"])
    outcome = orders.authorise(work.network, order)

    def settle(connection: Connection) -> tuple[int, Object]:
        charge = settlement.record_authorisation(
            connection, tenant, order["reference"], outcome, work.request_id
        )
        return render_outcome(charge)

    return work.end(settle)


def check_amount(amount: int, currency: str) -> None:
    """Raise for an amount that cannot be charged."""
    least = MINIMUM.get(currency, 1)
    if amount < least:
        raise invalid(
            f"Amount must be at least {format_amount(least, currency)}.",
            "amount",
            "amount_too_small",
        )
    orders.check_step(amount, currency, "amount")


def render_outcome(charge: Row[Any]) -> tuple[int, Object]:
    """Return the status and body for a charge the network has decided about."""
    if charge.status == "failed":
        return 402, {"error": settlement.payment_error(charge)}
    return 200, objects.charge(charge)


# ----------------------------------------------------------------------------------- capture


@router.post(
    "/{id}/capture",
    **documents_response(schemas.Charge, writes=True),
    **documents_body(ChargeCapture),
)
def capture_charge(
    request: Request, id: str, params: Annotated[ChargeCapture, Depends(body_as(ChargeCapture))]
) -> Response:
    work = ResumableRequest(request, params, "charge")
    tenant = work.tenant

    def reserve(connection: Connection) -> Order:
        charge = rows.get(connection, charges, tenant, id, lock=True)
        if charge.payment_intent is not None:
            raise not_allowed(
                f"This charge belongs to {charge.payment_intent}: capture that payment intent."
            )
        return orders.begin_capture(connection, work, charge, params.amount, "amount")

    order = work.begin("capture", reserve)
    work.set_resource_id(id)
    refusal = orders.settle(work.network, order)

    def settle(connection: Connection) -> tuple[int, Object]:
        charge = settlement.record_settlement(
            connection, tenant, order, refusal is None, work.request_id
        )
        return (refusal.status, refusal.body) if refusal else (200, objects.charge(charge))

    return work.end(settle)


# ---------------------------------------------------------------------------- look and change


@router.get("", **documents_response(schemas.Charge, many=True), **documents_query(ChargeList))
def list_charges(
    request: Request, params: Annotated[ChargeList, Depends(query_as(ChargeList))]
) -> Response:
    names = "customer", "payment_intent"
    return lists.list_objects(request, params, charges, objects.charge, *names)


@router.get("/{id}", **documents_response(schemas.Charge), **documents_query(Nothing))
def retrieve_charge(request: Request, id: str, params: NoQuery) -> Response:
    return lists.retrieve(request, params, charges, id, objects.charge)


@router.post(
    "/{id}", **documents_response(schemas.Charge, writes=True), **documents_body(ChargeUpdate)
)
def update_charge(
    request: Request, id: str, params: Annotated[ChargeUpdate, Depends(body_as(ChargeUpdate))]
) -> Response:
    def write(connection: Connection, tenant: str) -> Object:
        charge = rows.get(connection, charges, tenant, id, lock=True)
        values = params.explicit_values()
        if values.get("customer") is not None:
            sources.existing_customer(connection, tenant, values["customer"])
        return objects.charge(rows.update(connection, charges, charge, values))

    return write_rows(request, params, write, "charge.updated")
