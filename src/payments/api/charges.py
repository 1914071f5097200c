"""Charges: a card is asked for money, and pays, or not.

validate → a pending row → the network, under a key of its own → ledger, event and answer.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy.engine import Connection, Row

from payments.api import lists, objects, schemas, sources
from payments.api.errors import invalid, refused
from payments.api.objects import Object
from payments.api.openapi import answers, asks, takes
from payments.api.parameters import ChargeCapture, ChargeCreate, ChargeList, ChargeUpdate, Nothing
from payments.api.reading import Looking, body_as, query_as
from payments.money import orders, settlement
from payments.money.amounts import MINIMUM, shown
from payments.money.orders import Order
from payments.money.work import Work
from payments.storage import rows
from payments.storage.tables import charges
from payments.storage.transactions import written

router = APIRouter(prefix="/v1/charges", tags=["charges"])


# ------------------------------------------------------------------------------------ create


@router.post("", **answers(schemas.Charge, writes=True), **takes(ChargeCreate))
def create_charge(
    request: Request, asked: Annotated[ChargeCreate, Depends(body_as(ChargeCreate))]
) -> Response:
    check_amount(asked.amount, asked.currency)
    work = Work(request, asked, "charge")
    whose = work.tenant

    def pending(connection: Connection) -> Order:
        source = sources.of_charge(connection, whose, asked.source, asked.customer)
        given = asked.given()
        return orders.insert_pending(
            connection,
            work,
            source,
            amount=asked.amount,
            currency=asked.currency,
            capture=asked.capture,
            customer=asked.customer,
            description=asked.description,
            receipt_email=asked.receipt_email,
            statement_descriptor=asked.statement_descriptor,
            metadata=rows.merged(None, given.get("metadata")),
        )

    order = work.begin("pending", pending)
    work.made(order["reference"])
    said = orders.authorise(work.network, order)

    def settle(connection: Connection) -> tuple[int, Object]:
        charge = settlement.authorised(connection, whose, order["reference"], said, work.request_id)
        return told(charge)

    return work.end(settle)


def check_amount(amount: int, currency: str) -> None:
    """Refuse what no card is charged for."""
    least = MINIMUM.get(currency, 1)
    if amount < least:
        raise invalid(
            f"Amount must be at least {shown(least, currency)}.", "amount", "amount_too_small"
        )
    orders.check_step(amount, currency, "amount")


def told(charge: Row[Any]) -> tuple[int, Object]:
    """What a client is told of a settled charge."""
    if charge.status == "failed":
        return 402, {"error": settlement.payment_error(charge)}
    return 200, objects.charge(charge)


# ----------------------------------------------------------------------------------- capture


@router.post("/{id}/capture", **answers(schemas.Charge, writes=True), **takes(ChargeCapture))
def capture_charge(
    request: Request, id: str, asked: Annotated[ChargeCapture, Depends(body_as(ChargeCapture))]
) -> Response:
    work = Work(request, asked, "charge")
    whose = work.tenant

    def reserve(connection: Connection) -> Order:
        charge = rows.get(connection, charges, whose, id, lock=True)
        if charge.payment_intent is not None:
            raise refused(
                f"This charge belongs to {charge.payment_intent}: capture that payment intent."
            )
        return orders.begin_capture(connection, work, charge, asked.amount, "amount")

    order = work.begin("capture", reserve)
    work.made(id)
    never = orders.settle(work.network, order)

    def settle(connection: Connection) -> tuple[int, Object]:
        charge = settlement.settled(connection, whose, order, never is None, work.request_id)
        return (never.status, never.body) if never else (200, objects.charge(charge))

    return work.end(settle)


# ---------------------------------------------------------------------------- look and change


@router.get("", **answers(schemas.Charge, many=True), **asks(ChargeList))
def list_charges(
    request: Request, asked: Annotated[ChargeList, Depends(query_as(ChargeList))]
) -> Response:
    names = "customer", "payment_intent"
    return lists.many(request, asked, charges, objects.charge, *names)


@router.get("/{id}", **answers(schemas.Charge), **asks(Nothing))
def retrieve_charge(request: Request, id: str, asked: Looking) -> Response:
    return lists.one(request, asked, charges, id, objects.charge)


@router.post("/{id}", **answers(schemas.Charge, writes=True), **takes(ChargeUpdate))
def update_charge(
    request: Request, id: str, asked: Annotated[ChargeUpdate, Depends(body_as(ChargeUpdate))]
) -> Response:
    def write(connection: Connection, whose: str) -> Object:
        charge = rows.get(connection, charges, whose, id, lock=True)
        given = asked.given()
        if given.get("customer") is not None:
            sources.existing_customer(connection, whose, given["customer"])
        return objects.charge(rows.update(connection, charges, charge, given))

    return written(request, asked, write, "charge.updated")
