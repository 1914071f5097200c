"""Payment intents: what is to be paid, over as many tries as it takes, and never twice.

An intent that is being paid is `processing`. It leaves every state by a conditional change, so two
requests that confirm, capture or cancel it at once cannot both have their way.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy.engine import Connection, Row

from payments import clock
from payments.api import lists, objects, schemas, sources
from payments.api.charges import check_amount
from payments.api.errors import StripeError, busy, invalid, refused
from payments.api.objects import Object
from payments.api.openapi import answers, asks, takes
from payments.api.parameters import (
    IntentCancel,
    IntentCapture,
    IntentConfirm,
    IntentCreate,
    IntentList,
    IntentUpdate,
    Nothing,
)
from payments.api.reading import Looking, body_as, query_as
from payments.api.sources import Source
from payments.money import orders, settlement
from payments.money.orders import Order
from payments.money.work import Work
from payments.storage import ids, rows
from payments.storage.tables import charges, payment_intents
from payments.storage.transactions import written
from payments.webhooks import events

router = APIRouter(prefix="/v1/payment_intents", tags=["payment_intents"])

_OPEN = ("requires_payment_method", "requires_confirmation")
_SAID = (
    "amount",
    "currency",
    "customer",
    "capture_method",
    "confirmation_method",
    "description",
    "receipt_email",
    "statement_descriptor",
)
_ANSWER = answers(schemas.PaymentIntent, writes=True)


# ------------------------------------------------------------------------- create and confirm


@router.post("", **_ANSWER, **takes(IntentCreate))
def create_payment_intent(
    request: Request, asked: Annotated[IntentCreate, Depends(body_as(IntentCreate))]
) -> Response:
    check_amount(asked.amount, asked.currency)
    if asked.confirm and asked.payment_method is None and asked.payment_method_data is None:
        raise invalid(
            "To confirm a payment intent, give a payment_method.",
            "payment_method",
            "parameter_missing",
        )
    work = Work(request, asked, "payment_intent")
    whose = work.tenant

    def insert(connection: Connection) -> Order:
        intent, source = _insert(connection, whose, asked, work.request_id)
        if not asked.confirm or source is None:
            return {"reference": None, "intent": intent.id}
        return _begin_paying(connection, work, intent, source)

    return _pay(work, whose, work.begin("pending", insert))


def _insert(
    connection: Connection, whose: str, asked: IntentCreate, request: str
) -> tuple[Row[Any], Source | None]:
    if asked.customer is not None:
        sources.existing_customer(connection, whose, asked.customer)
    source = sources.of_intent(
        connection, whose, asked.payment_method, asked.payment_method_data, asked.customer
    )
    id_ = ids.new("pi")
    row = {
        "tenant": whose,
        "id": id_,
        "created": clock.now_s(),
        "status": "requires_confirmation" if source else "requires_payment_method",
        "payment_method": source.payment_method if source else None,
        "client_secret": f"{id_}_secret_{ids.letters(24)}",
        "metadata": rows.merged(None, asked.metadata),
    }
    row |= {name: getattr(asked, name) for name in _SAID}
    intent = connection.execute(payment_intents.insert().returning(payment_intents), row).one()
    _tell(connection, intent, "payment_intent.created", request)
    return intent, source


@router.post("/{id}/confirm", **_ANSWER, **takes(IntentConfirm))
def confirm_payment_intent(
    request: Request, id: str, asked: Annotated[IntentConfirm, Depends(body_as(IntentConfirm))]
) -> Response:
    work = Work(request, asked, "payment_intent")
    whose = work.tenant

    def begin(connection: Connection) -> Order:
        intent = rows.get(connection, payment_intents, whose, id, lock=True)
        method = asked.payment_method or intent.payment_method
        source = sources.of_intent(
            connection, whose, method, asked.payment_method_data, intent.customer
        )
        if intent.status not in _OPEN:
            raise _unexpected(intent, "confirm")
        if source is None:
            raise refused(
                "You cannot confirm this payment intent because it is missing a payment method.",
                "payment_intent_unexpected_state",
                "payment_method",
            )
        given = {"receipt_email": asked.receipt_email, "capture_method": asked.capture_method}
        changes = {name: value for name, value in given.items() if value is not None}
        return _begin_paying(connection, work, intent, source, **changes)

    return _pay(work, whose, work.begin("pending", begin))


def _begin_paying(
    connection: Connection, work: Work, intent: Row[Any], source: Source, **changes: Any
) -> Order:
    """The intent becomes `processing`, with a charge that is pending."""
    taken = rows.change(
        connection,
        payment_intents,
        intent.tenant,
        intent.id,
        payment_intents.c.status.in_(_OPEN),
        status="processing",
        payment_method=source.payment_method,
        last_payment_error=None,
        **changes,
    )
    if taken is None:
        raise _unexpected(intent, "confirm")
    order = orders.insert_pending(
        connection,
        work,
        source,
        amount=taken.amount,
        currency=taken.currency,
        capture=taken.capture_method != "manual",
        payment_intent=taken.id,
        customer=taken.customer,
        description=taken.description,
        receipt_email=taken.receipt_email,
        statement_descriptor=taken.statement_descriptor,
        metadata=taken.metadata,
    )
    charge = order["reference"]
    taken = rows.change(connection, payment_intents, taken.tenant, taken.id, latest_charge=charge)
    _tell(connection, taken, "payment_intent.processing", work.request_id)
    return order | {"intent": intent.id}


def _tell(connection: Connection, intent: Row[Any] | None, kind: str, request: str) -> None:
    assert intent is not None  # noqa: S101  (it is locked, or new)
    events.record(connection, intent.tenant, kind, objects.payment_intent(intent), request)


def _pay(work: Work, whose: str, order: Order) -> Response:
    """Ask the network, if there is something to ask, and tell how the intent stands now."""
    intent_id = order.pop("intent")
    work.made(intent_id)
    charge_id = order["reference"]
    said = orders.authorise(work.network, order) if charge_id is not None else None

    def settle(connection: Connection) -> tuple[int, Object]:
        failed = None
        if said is not None:
            charge = settlement.authorised(connection, whose, charge_id, said, work.request_id)
            failed = charge if charge.status == "failed" else None
        intent = objects.payment_intent(rows.get(connection, payment_intents, whose, intent_id))
        if failed is not None:
            return 402, {"error": settlement.payment_error(failed) | {"payment_intent": intent}}
        return 200, intent

    return work.end(settle)


def _unexpected(intent: Row[Any], verb: str) -> StripeError:
    if intent.status == "processing":
        return busy("payment intent")
    doing = {"confirm": "confirmed", "capture": "captured", "cancel": "canceled"}.get(verb, verb)
    return refused(
        f"This PaymentIntent could not be {doing} because it has a status of {intent.status}.",
        "payment_intent_unexpected_state",
    )


# ------------------------------------------------------------------------- capture and cancel


@router.post("/{id}/capture", **_ANSWER, **takes(IntentCapture))
def capture_payment_intent(
    request: Request, id: str, asked: Annotated[IntentCapture, Depends(body_as(IntentCapture))]
) -> Response:
    work = Work(request, asked, "payment_intent")
    whose = work.tenant

    def reserve(connection: Connection) -> Order:
        # Not locked: charges are locked before their intents, here as at the end.
        intent = rows.get(connection, payment_intents, whose, id)
        if intent.status != "requires_capture":
            raise _unexpected(intent, "capture")
        charge = rows.get(connection, charges, whose, intent.latest_charge, lock=True)
        amount = asked.amount_to_capture
        return orders.begin_capture(connection, work, charge, amount, "amount_to_capture")

    order = work.begin("capture", reserve)
    work.made(id)
    return _settle(work, whose, id, order)


@router.post("/{id}/cancel", **_ANSWER, **takes(IntentCancel))
def cancel_payment_intent(
    request: Request, id: str, asked: Annotated[IntentCancel, Depends(body_as(IntentCancel))]
) -> Response:
    work = Work(request, asked, "payment_intent")
    whose = work.tenant

    def begin(connection: Connection) -> Order | None:
        intent = rows.get(connection, payment_intents, whose, id)
        reason = asked.cancellation_reason
        if intent.status == "requires_capture":
            charge = rows.get(connection, charges, whose, intent.latest_charge, lock=True)
            order = orders.begin_void(connection, work, charge)
            rows.change(connection, payment_intents, whose, id, cancellation_reason=reason)
            return order
        if intent.status == "processing":
            raise busy("payment intent")
        if settlement.cancelled(connection, whose, id, _OPEN, work.request_id, reason) is None:
            raise _unexpected(rows.get(connection, payment_intents, whose, id), "cancel")
        return None

    order = work.begin("cancel", begin)
    work.made(id)
    return _settle(work, whose, id, order)


def _settle(work: Work, whose: str, id_: str, order: Order | None) -> Response:
    """Let the network capture or void, if it must, and tell how the intent stands now."""
    never = orders.settle(work.network, order) if order is not None else None

    def settle(connection: Connection) -> tuple[int, Object]:
        if order is not None:
            settlement.settled(connection, whose, order, never is None, work.request_id)
        if never is not None:
            return never.status, never.body
        return 200, objects.payment_intent(rows.get(connection, payment_intents, whose, id_))

    return work.end(settle)


# ---------------------------------------------------------------------------- look and change


@router.get("", **answers(schemas.PaymentIntent, many=True), **asks(IntentList))
def list_payment_intents(
    request: Request, asked: Annotated[IntentList, Depends(query_as(IntentList))]
) -> Response:
    return lists.many(request, asked, payment_intents, objects.payment_intent, "customer")


@router.get("/{id}", **answers(schemas.PaymentIntent), **asks(Nothing))
def retrieve_payment_intent(request: Request, id: str, asked: Looking) -> Response:
    return lists.one(request, asked, payment_intents, id, objects.payment_intent)


@router.post("/{id}", **_ANSWER, **takes(IntentUpdate))
def update_payment_intent(
    request: Request, id: str, asked: Annotated[IntentUpdate, Depends(body_as(IntentUpdate))]
) -> Response:
    def write(connection: Connection, whose: str) -> Object:
        intent = rows.get(connection, payment_intents, whose, id, lock=True)
        changes = _changes(connection, intent, asked)
        return objects.payment_intent(rows.update(connection, payment_intents, intent, changes))

    return written(request, asked, write, "payment_intent.updated")


def _changes(connection: Connection, intent: Row[Any], asked: IntentUpdate) -> Object:
    given = asked.given()
    if intent.status not in _OPEN and given.keys() - {"metadata", "description", "receipt_email"}:
        raise _unexpected(intent, "updated")
    for name in ("amount", "currency"):
        if given.get(name, ...) is None:
            raise invalid(f"{name} cannot be empty.", name, "parameter_invalid_empty")
    if given.keys() & {"amount", "currency"}:
        check_amount(given.get("amount", intent.amount), given.get("currency", intent.currency))
    customer = given.get("customer", intent.customer)
    if given.get("customer") is not None:
        sources.existing_customer(connection, intent.tenant, customer)
    if "payment_method" in given:
        source = sources.of_intent(
            connection, intent.tenant, given["payment_method"], None, customer
        )
        given["payment_method"] = source.payment_method if source else None
        given["status"] = "requires_confirmation" if source else "requires_payment_method"
    return given
