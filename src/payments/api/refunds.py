"""Refunds: give captured money back, never more than was captured.

A refund reserves its amount on the charge before the network is called, by a conditional update, so
concurrent refunds of one charge never exceed it together.

A charge that was only authorised is refunded by voiding it: nothing was captured yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy.engine import Connection, Row

from payments import clock
from payments.api import lists, objects, schemas
from payments.api.errors import StripeError, busy, invalid, not_allowed
from payments.api.objects import Object
from payments.api.openapi import documents_body, documents_query, documents_response
from payments.api.parameters import MetadataUpdate, Nothing, RefundCreate, RefundList
from payments.api.requests import NoQuery, body_as, query_as
from payments.api.transactions import ResumableRequest, write_rows
from payments.money import orders, settlement
from payments.money.amounts import format_amount
from payments.money.orders import Order
from payments.storage import ids, rows
from payments.storage.tables import charges, payment_intents, refunds
from payments.webhooks import events

router = APIRouter(prefix="/v1/refunds", tags=["refunds"])

Settle = Callable[[Connection], tuple[int, Object]]


@router.post("", **documents_response(schemas.Refund, writes=True), **documents_body(RefundCreate))
def create_refund(
    request: Request, params: Annotated[RefundCreate, Depends(body_as(RefundCreate))]
) -> Response:
    if (params.charge is None) == (params.payment_intent is None):
        raise invalid("Give the charge or the payment_intent to refund, one of them.", "charge")
    work = ResumableRequest(request, params, "refund")
    tenant = work.tenant

    def reserve(connection: Connection) -> dict[str, Any]:
        charge = _charge_of(connection, tenant, params)
        if charge.status == "pending" or charge.settling is not None:
            raise busy("charge")
        id_ = ids.new("re")
        if charge.captured:
            amount, key = _reserve(connection, charge, params.amount), work.key("refund", id_)
            row = _insert(connection, work, charge, id_, amount, key, params)
            order = orders.of_refund(row, charge.authorisation)
        else:
            _check_voidable(charge, params.amount)
            order = orders.begin_void(connection, work, charge)
            _insert(connection, work, charge, id_, charge.amount, order["key"], params)
        return {"id": id_, "order": order, "lets_go": not charge.captured}

    begun = work.begin("reserve", reserve)
    work.set_resource_id(begun["id"])
    end = _void if begun["lets_go"] else _give_back
    return work.end(end(work, begun["id"], begun["order"]))


def _give_back(work: ResumableRequest, id_: str, order: Order) -> Settle:
    network_id = orders.give_back(work.network, order)

    def settle(connection: Connection) -> tuple[int, Object]:
        refund = settlement.record_refund(connection, work.tenant, id_, network_id, work.request_id)
        return 200, objects.refund(refund)

    return settle


def _void(work: ResumableRequest, id_: str, order: Order) -> Settle:
    """Void the authorisation instead: nothing was captured."""
    done = orders.settle(work.network, order) is None

    def settle(connection: Connection) -> tuple[int, Object]:
        settlement.record_settlement(connection, work.tenant, order, done, work.request_id)
        return 200, objects.refund(rows.get(connection, refunds, work.tenant, id_))

    return settle


def _charge_of(connection: Connection, tenant: str, params: RefundCreate) -> Row[Any]:
    if params.charge is not None:
        return rows.get(connection, charges, tenant, params.charge, "charge", lock=True)
    intent = rows.get(
        connection, payment_intents, tenant, params.payment_intent or "", "payment_intent"
    )
    if intent.latest_charge is None:
        raise not_allowed(
            f"The payment intent {intent.id} has no charge to refund.", None, "payment_intent"
        )
    return rows.get(connection, charges, tenant, intent.latest_charge, lock=True)


def _reserve(connection: Connection, charge: Row[Any], amount: int | None) -> int:
    """Reserve an amount of a captured charge: by default, all that is left."""
    left = charge.amount_captured - charge.amount_refunded - charge.amount_reserved
    wanted = left if amount is None else amount
    if amount is not None:
        orders.check_step(amount, charge.currency, "amount")
    if wanted <= 0:
        raise _amount_too_large(charge, left)
    reserved = rows.change(
        connection,
        charges,
        charge.tenant,
        charge.id,
        charges.c.amount_refunded + charges.c.amount_reserved + wanted <= charges.c.amount_captured,
        amount_reserved=charges.c.amount_reserved + wanted,
    )
    if reserved is None:
        raise _amount_too_large(charge, left)
    return wanted


def _check_voidable(charge: Row[Any], amount: int | None) -> None:
    if charge.payment_intent is not None:
        raise not_allowed(
            f"Nothing was taken for {charge.payment_intent} yet: cancel that payment intent.",
            "charge_not_refundable",
        )
    if amount not in (None, charge.amount):
        raise not_allowed(
            "A charge that was not captured is refunded as a whole, or captured in part.",
            "charge_not_refundable",
            "amount",
        )


def _amount_too_large(charge: Row[Any], left: int) -> StripeError:
    if left <= 0:
        return not_allowed(
            f"Charge {charge.id} has already been refunded.", "charge_already_refunded"
        )
    return not_allowed(
        f"Refund amount is greater than the unrefunded amount on the charge, "
        f"{format_amount(left, charge.currency)}.",
        "amount_too_large",
        "amount",
    )


def _insert(
    connection: Connection,
    work: ResumableRequest,
    charge: Row[Any],
    id_: str,
    amount: int,
    key: str,
    params: RefundCreate,
) -> dict[str, Any]:
    row = {
        "tenant": charge.tenant,
        "id": id_,
        "created": clock.now_s(),
        "amount": amount,
        "currency": charge.currency,
        "charge": charge.id,
        "payment_intent": charge.payment_intent,
        "status": "pending",
        "reason": params.reason,
        "metadata": rows.merge_metadata(None, params.metadata),
        "network_key": key,
    }
    refund = connection.execute(refunds.insert().returning(refunds), row).one()
    body = objects.refund(refund)
    events.record(connection, work.tenant, "refund.created", body, work.request_id)
    return row


# ---------------------------------------------------------------------------- look and change


@router.get("", **documents_response(schemas.Refund, many=True), **documents_query(RefundList))
def list_refunds(
    request: Request, params: Annotated[RefundList, Depends(query_as(RefundList))]
) -> Response:
    return lists.list_objects(request, params, refunds, objects.refund, "charge", "payment_intent")


@router.get("/{id}", **documents_response(schemas.Refund), **documents_query(Nothing))
def retrieve_refund(request: Request, id: str, params: NoQuery) -> Response:
    return lists.retrieve(request, params, refunds, id, objects.refund)


@router.post(
    "/{id}", **documents_response(schemas.Refund, writes=True), **documents_body(MetadataUpdate)
)
def update_refund(
    request: Request, id: str, params: Annotated[MetadataUpdate, Depends(body_as(MetadataUpdate))]
) -> Response:
    def write(connection: Connection, tenant: str) -> Object:
        refund = rows.get(connection, refunds, tenant, id, lock=True)
        return objects.refund(rows.update(connection, refunds, refund, params.explicit_values()))

    return write_rows(request, params, write, "refund.updated")
