"""Settlement: turn the card network's outcomes into rows, ledger entries and events.

Call these functions in the last transaction of an operation. They change a row only if it still
waits for the network: the second of two callers changes nothing and gets what the first one wrote.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from payments import clock
from payments.api import objects
from payments.api.objects import Object
from payments.money import ledger
from payments.money.orders import Order
from payments.network import Authorised, Declined
from payments.storage import rows
from payments.storage.tables import charges, payment_intents, refunds
from payments.webhooks import events


def record_authorisation(
    connection: Connection,
    tenant: str,
    id_: str,
    outcome: Authorised | Declined,
    request: str | None,
) -> Row[Any]:
    """Record the network's answer for a pending charge and return the charge."""
    charge = rows.change(
        connection, charges, tenant, id_, charges.c.status == "pending", **_outcome(outcome)
    )
    if charge is None:
        return rows.get(connection, charges, tenant, id_)
    if charge.captured:
        ledger.post(connection, tenant, "charge", id_, charge.amount, charge.currency)
    kind = "charge.succeeded" if charge.status == "succeeded" else "charge.failed"
    events.record(connection, tenant, kind, objects.charge(charge), request)
    if charge.payment_intent is not None:
        _settle_intent(connection, tenant, charge, request)
    return charge


def _outcome(outcome: Authorised | Declined) -> dict[str, Any]:
    if isinstance(outcome, Authorised):
        taken = sa.case((charges.c.capture, charges.c.amount), else_=0)
        return {
            "status": "succeeded",
            "authorisation": outcome.id,
            "captured": charges.c.capture,
            "amount_captured": taken,
        }
    failure = {
        "code": outcome.code,
        "decline_code": outcome.decline_code,
        "message": outcome.message,
    }
    return {"status": "failed", "failure": failure}


def _settle_intent(
    connection: Connection, tenant: str, charge: Row[Any], request: str | None
) -> None:
    changes: dict[str, Any]
    if charge.status == "failed":
        kind = "payment_intent.payment_failed"
        changes = {
            "status": "requires_payment_method",
            "payment_method": None,
            "last_payment_error": payment_error(charge),
        }
    elif charge.captured:
        kind = "payment_intent.succeeded"
        changes = {"status": "succeeded", "amount_received": charge.amount}
    else:
        kind = "payment_intent.amount_capturable_updated"
        changes = {"status": "requires_capture"}
    intent = rows.change(connection, payment_intents, tenant, charge.payment_intent, **changes)
    if intent is not None:
        events.record(connection, tenant, kind, objects.payment_intent(intent), request)


def payment_error(charge: Row[Any]) -> Object:
    """Say why a charge failed, as the API does."""
    failure = charge.failure
    return {
        "type": "card_error",
        "code": failure["code"],
        "decline_code": failure["decline_code"],
        "message": failure["message"],
        "charge": charge.id,
        "payment_method": charge.payment_method,
    }


def record_settlement(
    connection: Connection, tenant: str, order: Order, done: bool, request: str | None
) -> Row[Any]:
    """Record that the network captured a charge or, if the order has no amount, voided it.

    If not `done`, the network refused for good.
    """
    id_, key = order["reference"], order["key"]
    charge = rows.change(
        connection,
        charges,
        tenant,
        id_,
        charges.c.settling == key,
        settling=None,
        settling_since=None,
        **(_effect(order) if done else {}),
    )
    if charge is None:
        return rows.get(connection, charges, tenant, id_)
    if "amount" not in order:
        _end_refund(connection, charge, key, "succeeded" if done else "failed", request)
        if not done and charge.payment_intent is not None:  # it stays uncancelled
            no_reason = {"cancellation_reason": None}
            rows.change(connection, payment_intents, tenant, charge.payment_intent, **no_reason)
    if done and charge.captured:
        _record_capture(connection, charge, request)
    elif done:
        events.record(connection, tenant, "charge.refunded", objects.charge(charge), request)
        if charge.payment_intent is not None:
            cancel_intent(connection, tenant, charge.payment_intent, ("requires_capture",), request)
    return charge


def _effect(order: Order) -> dict[str, Any]:
    if "amount" in order:
        return {"captured": True, "amount_captured": charges.c.settling_amount}
    return {"amount_refunded": charges.c.amount}


def _record_capture(connection: Connection, charge: Row[Any], request: str | None) -> None:
    tenant, taken = charge.tenant, charge.amount_captured
    ledger.post(connection, tenant, "capture", charge.id, taken, charge.currency)
    events.record(connection, tenant, "charge.captured", objects.charge(charge), request)
    if charge.payment_intent is None:
        return
    paid = {"status": "succeeded", "amount_received": taken}
    intent = rows.change(connection, payment_intents, tenant, charge.payment_intent, **paid)
    if intent is not None:
        body = objects.payment_intent(intent)
        events.record(connection, tenant, "payment_intent.succeeded", body, request)


def _end_refund(
    connection: Connection, charge: Row[Any], key: str, status: str, request: str | None
) -> None:
    """Close the refund, if any, that was to void this charge."""
    this = sa.select(refunds.c.id).where(
        refunds.c.tenant == charge.tenant,
        refunds.c.charge == charge.id,
        refunds.c.network_key == key,
    )
    id_ = connection.execute(this).scalar()
    if id_ is not None:
        refund = rows.change(connection, refunds, charge.tenant, id_, status=status)
        _record_refund_event(connection, refund, request)


def cancel_intent(
    connection: Connection,
    tenant: str,
    intent_id: str,
    statuses: tuple[str, ...],
    request: str | None,
    reason: str | None = None,
) -> Row[Any] | None:
    """Cancel an intent; return None if it is in none of these states."""
    why = {"cancellation_reason": reason} if reason is not None else {}
    intent = rows.change(
        connection,
        payment_intents,
        tenant,
        intent_id,
        payment_intents.c.status.in_(statuses),
        status="canceled",
        canceled_at=clock.now_s(),
        **why,
    )
    if intent is not None:
        body = objects.payment_intent(intent)
        events.record(connection, tenant, "payment_intent.canceled", body, request)
    return intent


def record_refund(
    connection: Connection, tenant: str, id_: str, network_id: str | None, request: str | None
) -> Row[Any]:
    """Record that the network paid a refund; or, without an id, that it never will."""
    status = "succeeded" if network_id is not None else "failed"
    refund = rows.change(
        connection,
        refunds,
        tenant,
        id_,
        refunds.c.status == "pending",
        status=status,
        network_id=network_id,
    )
    if refund is None:
        return rows.get(connection, refunds, tenant, id_)
    paid_back = refund.amount if network_id is not None else 0
    charge = rows.change(
        connection,
        charges,
        tenant,
        refund.charge,
        amount_reserved=charges.c.amount_reserved - refund.amount,
        amount_refunded=charges.c.amount_refunded + paid_back,
    )
    if charge is None:
        raise LookupError(f"the charge of {id_} is gone")
    if paid_back:
        ledger.post(connection, tenant, "refund", id_, -paid_back, refund.currency)
        events.record(connection, tenant, "charge.refunded", objects.charge(charge), request)
    _record_refund_event(connection, refund, request)
    return refund


def _record_refund_event(
    connection: Connection, refund: Row[Any] | None, request: str | None
) -> None:
    if refund is not None:
        kind = "refund.updated" if refund.status == "succeeded" else "refund.failed"
        events.record(connection, refund.tenant, kind, objects.refund(refund), request)
