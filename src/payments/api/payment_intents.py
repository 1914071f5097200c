"""Payment intents: a payment, over as many tries as it takes, and never twice.

An intent that is being paid is `processing`. It leaves every state by a conditional update, so of
two requests that confirm, capture or cancel it at once only one succeeds.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy.engine import Connection, Row

from payments import clock
from payments.api import lists, objects, schemas, sources
from payments.api.charges import check_amount
from payments.api.errors import StripeError, busy, invalid, not_allowed
from payments.api.objects import Object
from payments.api.openapi import documents_body, documents_query, documents_response
from payments.api.parameters import (
    IntentCancel,
    IntentCapture,
    IntentConfirm,
    IntentCreate,
    IntentList,
    IntentUpdate,
    Nothing,
)
from payments.api.requests import NoQuery, body_as, query_as
from payments.api.sources import Source
from payments.api.transactions import ResumableRequest, write_rows
from payments.money import orders, settlement
from payments.money.orders import Order
from payments.storage import ids, rows
from payments.storage.tables import charges, payment_intents
from payments.webhooks import events

router = APIRouter(prefix="/v1/payment_intents", tags=["payment_intents"])

_OPEN = ("requires_payment_method", "requires_confirmation")
_COPIED = (
    "amount",
    "currency",
    "customer",
    "capture_method",
    "confirmation_method",
    "description",
    "receipt_email",
    "statement_descriptor",
)
_ANSWER = documents_response(schemas.PaymentIntent, writes=True)


# ------------------------------------------------------------------------- create and confirm


@router.post("", **_ANSWER, **documents_body(IntentCreate))
def create_payment_intent(
    request: Request, params: Annotated[IntentCreate, Depends(body_as(IntentCreate))]
) -> Response:
    check_amount(params.amount, params.currency)
    if params.confirm and params.payment_method is None and params.payment_method_data is None:
        raise invalid(
            "To confirm a payment intent, give a payment_method.",
            "payment_method",
            "parameter_missing",
        )
    work = ResumableRequest(request, params, "payment_intent")
    tenant = work.tenant

    def insert(connection: Connection) -> Order:
        intent, source = _insert(connection, tenant, params, work.request_id)
        if not params.confirm or source is None:
            return {"reference": None, "intent": intent.id}
        return _begin_paying(connection, work, intent, source)

    return _pay(work, tenant, work.begin("pending", insert))


def _insert(
    connection: Connection, tenant: str, params: IntentCreate, request: str
) -> tuple[Row[Any], Source | None]:
    if params.customer is not None:
        sources.existing_customer(connection, tenant, params.customer)
    source = sources.of_intent(
        connection, tenant, params.payment_method, params.payment_method_data, params.customer
    )
    id_ = ids.new("pi")
    row = {
        "tenant": tenant,
        "id": id_,
        "created": clock.now_s(),
        "status": "requires_confirmation" if source else "requires_payment_method",
        "payment_method": source.payment_method if source else None,
        "client_secret": f"{id_}_secret_{ids.random_letters(24)}",
        "metadata": rows.merge_metadata(None, params.metadata),
    }
    row |= {name: getattr(params, name) for name in _COPIED}
    intent = connection.execute(payment_intents.insert().returning(payment_intents), row).one()
    _record_event(connection, intent, "payment_intent.created", request)
    return intent, source


@router.post("/{id}/confirm", **_ANSWER, **documents_body(IntentConfirm))
def confirm_payment_intent(
    request: Request, id: str, params: Annotated[IntentConfirm, Depends(body_as(IntentConfirm))]
) -> Response:
    work = ResumableRequest(request, params, "payment_intent")
    tenant = work.tenant

    def begin(connection: Connection) -> Order:
        intent = rows.get(connection, payment_intents, tenant, id, lock=True)
        method = params.payment_method or intent.payment_method
        source = sources.of_intent(
            connection, tenant, method, params.payment_method_data, intent.customer
        )
        if intent.status not in _OPEN:
            raise _unexpected_state(intent, "confirm")
        if source is None:
            raise not_allowed(
                "You cannot confirm this payment intent because it is missing a payment method.",
                "payment_intent_unexpected_state",
                "payment_method",
            )
        values = {"receipt_email": params.receipt_email, "capture_method": params.capture_method}
        changes = {name: value for name, value in values.items() if value is not None}
        return _begin_paying(connection, work, intent, source, **changes)

    return _pay(work, tenant, work.begin("pending", begin))


def _begin_paying(
    connection: Connection, work: ResumableRequest, intent: Row[Any], source: Source, **changes: Any
) -> Order:
    """Set the intent to `processing` and insert a pending charge."""
    updated = rows.change(
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
    if updated is None:
        raise _unexpected_state(intent, "confirm")
    order = orders.insert_pending(
        connection,
        work,
        source,
        amount=updated.amount,
        currency=updated.currency,
        capture=updated.capture_method != "manual",
        payment_intent=updated.id,
        customer=updated.customer,
        description=updated.description,
        receipt_email=updated.receipt_email,
        statement_descriptor=updated.statement_descriptor,
        metadata=updated.metadata,
    )
    charge = order["reference"]
    updated = rows.change(
        connection, payment_intents, updated.tenant, updated.id, latest_charge=charge
    )
    _record_event(connection, updated, "payment_intent.processing", work.request_id)
    return order | {"intent": intent.id}


def _record_event(connection: Connection, intent: Row[Any] | None, kind: str, request: str) -> None:
    assert intent is not None  # noqa: S101  (it is locked, or new)
    events.record(connection, intent.tenant, kind, objects.payment_intent(intent), request)


def _pay(work: ResumableRequest, tenant: str, order: Order) -> Response:
    """Call the network, if there is an order, and respond with the intent."""
    intent_id = order.pop("intent")
    work.set_resource_id(intent_id)
    charge_id = order["reference"]
    outcome = orders.authorise(work.network, order) if charge_id is not None else None

    def settle(connection: Connection) -> tuple[int, Object]:
        failed = None
        if outcome is not None:
            charge = settlement.record_authorisation(
                connection, tenant, charge_id, outcome, work.request_id
            )
            failed = charge if charge.status == "failed" else None
        intent = objects.payment_intent(rows.get(connection, payment_intents, tenant, intent_id))
        if failed is not None:
            return 402, {"error": settlement.payment_error(failed) | {"payment_intent": intent}}
        return 200, intent

    return work.end(settle)


def _unexpected_state(intent: Row[Any], verb: str) -> StripeError:
    if intent.status == "processing":
        return busy("payment intent")
    doing = {"confirm": "confirmed", "capture": "captured", "cancel": "canceled"}.get(verb, verb)
    return not_allowed(
        f"This PaymentIntent could not be {doing} because it has a status of {intent.status}.",
        "payment_intent_unexpected_state",
    )


# ------------------------------------------------------------------------- capture and cancel


@router.post("/{id}/capture", **_ANSWER, **documents_body(IntentCapture))
def capture_payment_intent(
    request: Request, id: str, params: Annotated[IntentCapture, Depends(body_as(IntentCapture))]
) -> Response:
    work = ResumableRequest(request, params, "payment_intent")
    tenant = work.tenant

    def reserve(connection: Connection) -> Order:
        # Not locked: charges are always locked before their intents.
        intent = rows.get(connection, payment_intents, tenant, id)
        if intent.status != "requires_capture":
            raise _unexpected_state(intent, "capture")
        charge = rows.get(connection, charges, tenant, intent.latest_charge, lock=True)
        amount = params.amount_to_capture
        return orders.begin_capture(connection, work, charge, amount, "amount_to_capture")

    order = work.begin("capture", reserve)
    work.set_resource_id(id)
    return _settle(work, tenant, id, order)


@router.post("/{id}/cancel", **_ANSWER, **documents_body(IntentCancel))
def cancel_payment_intent(
    request: Request, id: str, params: Annotated[IntentCancel, Depends(body_as(IntentCancel))]
) -> Response:
    work = ResumableRequest(request, params, "payment_intent")
    tenant = work.tenant

    def begin(connection: Connection) -> Order | None:
        intent = rows.get(connection, payment_intents, tenant, id)
        reason = params.cancellation_reason
        if intent.status == "requires_capture":
            charge = rows.get(connection, charges, tenant, intent.latest_charge, lock=True)
            order = orders.begin_void(connection, work, charge)
            rows.change(connection, payment_intents, tenant, id, cancellation_reason=reason)
            return order
        if intent.status == "processing":
            raise busy("payment intent")
        if settlement.cancel_intent(connection, tenant, id, _OPEN, work.request_id, reason) is None:
            raise _unexpected_state(rows.get(connection, payment_intents, tenant, id), "cancel")
        return None

    order = work.begin("cancel", begin)
    work.set_resource_id(id)
    return _settle(work, tenant, id, order)


def _settle(work: ResumableRequest, tenant: str, id_: str, order: Order | None) -> Response:
    """Let the network capture or void, if there is an order, and respond with the intent."""
    refusal = orders.settle(work.network, order) if order is not None else None

    def settle(connection: Connection) -> tuple[int, Object]:
        if order is not None:
            settlement.record_settlement(
                connection, tenant, order, refusal is None, work.request_id
            )
        if refusal is not None:
            return refusal.status, refusal.body
        return 200, objects.payment_intent(rows.get(connection, payment_intents, tenant, id_))

    return work.end(settle)


# ---------------------------------------------------------------------------- look and change


@router.get(
    "", **documents_response(schemas.PaymentIntent, many=True), **documents_query(IntentList)
)
def list_payment_intents(
    request: Request, params: Annotated[IntentList, Depends(query_as(IntentList))]
) -> Response:
    return lists.list_objects(request, params, payment_intents, objects.payment_intent, "customer")


@router.get("/{id}", **documents_response(schemas.PaymentIntent), **documents_query(Nothing))
def retrieve_payment_intent(request: Request, id: str, params: NoQuery) -> Response:
    return lists.retrieve(request, params, payment_intents, id, objects.payment_intent)


@router.post("/{id}", **_ANSWER, **documents_body(IntentUpdate))
def update_payment_intent(
    request: Request, id: str, params: Annotated[IntentUpdate, Depends(body_as(IntentUpdate))]
) -> Response:
    def write(connection: Connection, tenant: str) -> Object:
        intent = rows.get(connection, payment_intents, tenant, id, lock=True)
        changes = _changes(connection, intent, params)
        return objects.payment_intent(rows.update(connection, payment_intents, intent, changes))

    return write_rows(request, params, write, "payment_intent.updated")


def _changes(connection: Connection, intent: Row[Any], params: IntentUpdate) -> Object:
    values = params.explicit_values()
    if intent.status not in _OPEN and values.keys() - {"metadata", "description", "receipt_email"}:
        raise _unexpected_state(intent, "updated")
    for name in ("amount", "currency"):
        if values.get(name, ...) is None:
            raise invalid(f"{name} cannot be empty.", name, "parameter_invalid_empty")
    if values.keys() & {"amount", "currency"}:
        check_amount(values.get("amount", intent.amount), values.get("currency", intent.currency))
    customer = values.get("customer", intent.customer)
    if values.get("customer") is not None:
        sources.existing_customer(connection, intent.tenant, customer)
    if "payment_method" in values:
        source = sources.of_intent(
            connection, intent.tenant, values["payment_method"], None, customer
        )
        values["payment_method"] = source.payment_method if source else None
        values["status"] = "requires_confirmation" if source else "requires_payment_method"
    return values
