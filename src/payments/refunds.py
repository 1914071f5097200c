"""Refunds: money that was taken is given back, never more than was taken.

A refund reserves its amount on the charge before the network is asked, by a change that only holds
while enough is left. However many refunds of one charge run at once, together they fit.
"""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy.engine import Connection, Row

from payments import clock, ids, lists, objects, rows, settlement, shapes
from payments.answers import answer
from payments.charges import Order
from payments.database import Database
from payments.errors import StripeError, invalid, refused
from payments.expanding import expanded
from payments.money import shown
from payments.network import Network, NetworkRefused
from payments.objects import Object
from payments.openapi import answers, asks, takes
from payments.parameters import MetadataUpdate, Nothing, RefundCreate, RefundList
from payments.reading import Looking, body_as, query_as, tenant
from payments.tables import charges, payment_intents, refunds
from payments.work import Work

router = APIRouter(prefix="/v1/refunds", tags=["refunds"])


@router.post("", **answers(shapes.Refund, writes=True), **takes(RefundCreate))
def create_refund(
    request: Request, asked: Annotated[RefundCreate, Depends(body_as(RefundCreate))]
) -> Response:
    if (asked.charge is None) == (asked.payment_intent is None):
        raise invalid("Give the charge or the payment_intent to refund, one of them.", "charge")
    work = Work(request, asked, "refund")
    whose = work.tenant

    def reserve(connection: Connection) -> Order:
        charge = _charge_of(connection, whose, asked)
        amount = _reserve(connection, charge, asked.amount)
        return _insert(connection, charge, amount, asked, work.key("refund"))

    order = work.begin("reserve", reserve)
    work.made(order["reference"])
    given = give_back(work.network, order)

    def settle(connection: Connection) -> tuple[int, Object]:
        refund = settlement.refunded(connection, whose, order["reference"], given, work.request_id)
        return 200, objects.refund(refund)

    return work.end(settle)


def _charge_of(connection: Connection, whose: str, asked: RefundCreate) -> Row[Any]:
    if asked.charge is not None:
        return rows.get(connection, charges, whose, asked.charge, "charge", lock=True)
    intent = rows.get(
        connection, payment_intents, whose, asked.payment_intent or "", "payment_intent"
    )
    if intent.latest_charge is None:
        raise refused(
            f"The payment intent {intent.id} has no charge to refund.", None, "payment_intent"
        )
    return rows.get(connection, charges, whose, intent.latest_charge, lock=True)


def _reserve(connection: Connection, charge: Row[Any], amount: int | None) -> int:
    """Put an amount of a captured charge aside; all that is left if none is said."""
    left = charge.amount_captured - charge.amount_refunded - charge.amount_reserved
    wanted = left if amount is None else amount
    if not charge.captured:
        raise refused(f"The charge {charge.id} has not been captured.", "charge_not_refundable")
    if wanted <= 0:
        raise _too_much(charge, left)
    reserved = rows.change(
        connection,
        charges,
        charge.tenant,
        charge.id,
        charges.c.amount_refunded + charges.c.amount_reserved + wanted <= charges.c.amount_captured,
        amount_reserved=charges.c.amount_reserved + wanted,
    )
    if reserved is None:
        raise _too_much(charge, left)
    return wanted


def _too_much(charge: Row[Any], left: int) -> StripeError:
    if left <= 0:
        return refused(f"Charge {charge.id} has already been refunded.", "charge_already_refunded")
    return refused(
        f"Refund amount is greater than the unrefunded amount on the charge, "
        f"{shown(left, charge.currency)}.",
        "amount_too_large",
        "amount",
    )


def _insert(
    connection: Connection, charge: Row[Any], amount: int, asked: RefundCreate, key: str
) -> Order:
    row = {
        "tenant": charge.tenant,
        "id": ids.new("re"),
        "created": clock.now_s(),
        "amount": amount,
        "currency": charge.currency,
        "charge": charge.id,
        "payment_intent": charge.payment_intent,
        "status": "pending",
        "reason": asked.reason,
        "metadata": rows.merged(None, asked.metadata),
        "network_key": key,
    }
    connection.execute(refunds.insert(), row)
    return order_of(row, charge.authorisation)


def order_of(row: Any, authorisation: str) -> Order:
    """What the network is asked for a pending refund."""
    return {
        "key": row["network_key"],
        "authorisation": authorisation,
        "amount": row["amount"],
        "reference": row["id"],
    }


def give_back(network: Network, order: Order) -> str | None:
    """Ask the network; gives its id for what it gave back, None if it never will."""
    try:
        return network.refund(**order).id
    except NetworkRefused:
        return None


# ---------------------------------------------------------------------------- look and change


@router.get("", **answers(shapes.Refund, many=True), **asks(RefundList))
def list_refunds(
    request: Request, asked: Annotated[RefundList, Depends(query_as(RefundList))]
) -> Response:
    database: Database = request.app.state.database
    conditions: list[sa.ColumnElement[bool]] = []
    if asked.charge is not None:
        conditions.append(refunds.c.charge == asked.charge)
    if asked.payment_intent is not None:
        conditions.append(refunds.c.payment_intent == asked.payment_intent)
    with database.read() as connection:
        found = lists.page(
            connection, refunds, tenant(request), asked, objects.refund, "/v1/refunds", *conditions
        )
    return answer(request, found)


@router.get("/{id}", **answers(shapes.Refund), **asks(Nothing))
def retrieve_refund(request: Request, id: str, asked: Looking) -> Response:
    return lists.one(request, asked, refunds, id, objects.refund)


@router.post("/{id}", **answers(shapes.Refund, writes=True), **takes(MetadataUpdate))
def update_refund(
    request: Request, id: str, asked: Annotated[MetadataUpdate, Depends(body_as(MetadataUpdate))]
) -> Response:
    database: Database = request.app.state.database
    whose = tenant(request)
    with database.rows() as connection:
        refund = rows.get(connection, refunds, whose, id, lock=True)
        if "metadata" in asked.given():
            metadata = rows.merged(refund.metadata, asked.metadata)
            refund = rows.change(connection, refunds, whose, id, metadata=metadata) or refund
        shown = expanded(connection, whose, objects.refund(refund), asked.expand)
    return answer(request, shown)
