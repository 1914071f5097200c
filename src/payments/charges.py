"""Charges: a card is asked for money, and pays, or not.

validate → a pending row → the network, under a key of its own → ledger, event and answer.
"""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy.engine import Connection, Row

from payments import clock, events, ids, lists, objects, rows, settlement, shapes, sources
from payments.answers import answer, request_id
from payments.database import Database
from payments.errors import invalid, refused
from payments.expanding import expanded
from payments.money import MINIMUM, shown
from payments.network import Authorised, Declined, Network, NetworkRefused
from payments.objects import Object
from payments.openapi import answers, asks, takes
from payments.parameters import ChargeCapture, ChargeCreate, ChargeList, ChargeUpdate, Nothing
from payments.reading import Looking, body_as, query_as, tenant
from payments.sources import Source
from payments.tables import charges
from payments.work import Work

router = APIRouter(prefix="/v1/charges", tags=["charges"])

Order = dict[str, Any]
"""What the network is asked: kept as the result of a step, so every attempt asks the same."""


# ------------------------------------------------------------------------------------ create


@router.post("", **answers(shapes.Charge, writes=True), **takes(ChargeCreate))
def create_charge(
    request: Request, asked: Annotated[ChargeCreate, Depends(body_as(ChargeCreate))]
) -> Response:
    check_amount(asked.amount, asked.currency)
    work = Work(request, asked, "charge")
    whose = work.tenant

    def pending(connection: Connection) -> Order:
        source = sources.of_charge(connection, whose, asked.source, asked.customer)
        given = asked.given()
        return insert_pending(
            connection,
            whose,
            work.key("authorise"),
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
    said = authorise(work.network, order)

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


def insert_pending(
    connection: Connection, whose: str, key: str, source: Source, **values: Any
) -> Order:
    """Write down that a card is about to be asked, and what it is asked."""
    row = {
        "tenant": whose,
        "id": ids.new("ch"),
        "created": clock.now_s(),
        "status": "pending",
        "network_key": key,
        "card": source.card,
        "payment_method": source.payment_method,
        **values,
    }
    connection.execute(charges.insert(), row)
    return order_of(row)


def order_of(row: Any) -> Order:
    """What the network is asked for a pending charge."""
    return {
        "reference": row["id"],
        "key": row["network_key"],
        "card": row["card"]["number"],
        "amount": row["amount"],
        "currency": row["currency"],
        "capture": row["capture"],
    }


def authorise(network: Network, order: Order) -> Authorised | Declined:
    """Ask the network. What it will never do is a decline like any other."""
    try:
        return network.authorise(**order)
    except NetworkRefused as error:
        return Declined("processing_error", "processing_error", f"The network refused: {error}")


def told(charge: Row[Any]) -> tuple[int, Object]:
    """What a client is told of a settled charge."""
    if charge.status == "failed":
        return 402, {"error": settlement.payment_error(charge)}
    return 200, objects.charge(charge)


# ----------------------------------------------------------------------------------- capture


@router.post("/{id}/capture", **answers(shapes.Charge, writes=True), **takes(ChargeCapture))
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
        return begin_capture(connection, charge, asked.amount, work.key("capture"), "amount")

    order = work.begin("capture", reserve)
    work.made(id)
    work.network.capture(**order)

    def settle(connection: Connection) -> tuple[int, Object]:
        charge = settlement.captured(connection, whose, id, order["key"], work.request_id)
        return 200, objects.charge(charge)

    return work.end(settle)


def begin_capture(
    connection: Connection, charge: Row[Any], amount: int | None, key: str, param: str
) -> Order:
    """Take a charge that was authorised only, so that nobody else captures or voids it."""
    taken = charge.amount if amount is None else amount
    if taken > charge.amount:
        raise refused(
            f"Only {shown(charge.amount, charge.currency)} were authorised.",
            "amount_too_large",
            param,
        )
    begin_settling(connection, charge, key, taken)
    return {
        "key": key,
        "authorisation": charge.authorisation,
        "amount": taken,
        "reference": charge.id,
    }


def begin_settling(connection: Connection, charge: Row[Any], key: str, amount: int) -> None:
    """Mark an authorised charge as being captured or (amount 0) voided: only one can."""
    changed = rows.change(
        connection,
        charges,
        charge.tenant,
        charge.id,
        charges.c.status == "succeeded",
        charges.c.captured.is_(False),
        charges.c.amount_refunded == 0,
        charges.c.settling.is_(None),
        settling=key,
        settling_amount=amount,
        settling_since=clock.now_s(),
    )
    if changed is not None:
        return
    if charge.captured:
        raise refused("This charge has already been captured.", "charge_already_captured")
    if charge.amount_refunded:
        raise refused(
            "This charge was refunded: nothing is held any more.", "charge_already_refunded"
        )
    if charge.status != "succeeded":
        raise refused("This charge was not authorised.", "charge_not_authorised")
    raise refused("This charge is being captured or released by another request.", "lock_timeout")


# ---------------------------------------------------------------------------- look and change


@router.get("", **answers(shapes.Charge, many=True), **asks(ChargeList))
def list_charges(
    request: Request, asked: Annotated[ChargeList, Depends(query_as(ChargeList))]
) -> Response:
    database: Database = request.app.state.database
    conditions: list[sa.ColumnElement[bool]] = []
    if asked.customer is not None:
        conditions.append(charges.c.customer == asked.customer)
    if asked.payment_intent is not None:
        conditions.append(charges.c.payment_intent == asked.payment_intent)
    with database.read() as connection:
        found = lists.page(
            connection, charges, tenant(request), asked, objects.charge, "/v1/charges", *conditions
        )
    return answer(request, found)


@router.get("/{id}", **answers(shapes.Charge), **asks(Nothing))
def retrieve_charge(request: Request, id: str, asked: Looking) -> Response:
    return lists.one(request, asked, charges, id, objects.charge)


@router.post("/{id}", **answers(shapes.Charge, writes=True), **takes(ChargeUpdate))
def update_charge(
    request: Request, id: str, asked: Annotated[ChargeUpdate, Depends(body_as(ChargeUpdate))]
) -> Response:
    database: Database = request.app.state.database
    whose = tenant(request)
    with database.rows() as connection:
        charge = rows.get(connection, charges, whose, id, lock=True)
        given = asked.given()
        if given.get("customer") is not None:
            sources.existing_customer(connection, whose, given["customer"])
        if "metadata" in given:
            given["metadata"] = rows.merged(charge.metadata, given["metadata"])
        changed = rows.change(connection, charges, whose, id, **given) if given else charge
        assert changed is not None  # noqa: S101  (it is locked)
        shown = objects.charge(changed)
        events.record(connection, whose, "charge.updated", shown, request_id(request))
        expanded(connection, whose, shown, asked.expand)
    return answer(request, shown)
