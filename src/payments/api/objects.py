"""API objects: rows in the format of Stripe's API."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Row

from payments.settings import API_VERSION

Object = dict[str, Any]


def _common(row: Row[Any], name: str) -> Object:
    return {
        "id": row.id,
        "object": name,
        "created": row.created,
        "livemode": row.tenant.endswith("/live"),
    }


def charge(row: Row[Any]) -> Object:
    failure = row.failure or {}
    return _common(row, "charge") | {
        "amount": row.amount,
        "amount_captured": row.amount_captured,
        "amount_refunded": row.amount_refunded,
        "balance_transaction": None,
        "billing_details": _billing_details(None),
        "captured": row.captured,
        "currency": row.currency,
        "customer": row.customer,
        "description": row.description,
        "disputed": False,
        "failure_code": failure.get("code"),
        "failure_message": failure.get("message"),
        "metadata": row.metadata or {},
        "outcome": _outcome(row.status, failure),
        "paid": row.status == "succeeded",
        "payment_intent": row.payment_intent,
        "payment_method": row.payment_method,
        "payment_method_details": {"type": "card", "card": _card(row.card)},
        "receipt_email": row.receipt_email,
        "refunded": row.amount_refunded > 0 and row.amount_refunded >= row.amount_captured,
        "statement_descriptor": row.statement_descriptor,
        "status": row.status,
    }


def _outcome(status: str, failure: Object) -> Object | None:
    if status == "pending":
        return None
    if status == "succeeded":
        network, reason, seller, kind = (
            "approved_by_network",
            None,
            "Payment complete.",
            "authorized",
        )
    else:
        network, reason = "declined_by_network", failure.get("decline_code")
        seller, kind = "The card network declined this payment.", "issuer_declined"
    return {"network_status": network, "reason": reason, "seller_message": seller, "type": kind}


def payment_intent(row: Row[Any]) -> Object:
    capturable = row.amount if row.status == "requires_capture" else 0
    return _common(row, "payment_intent") | {
        "amount": row.amount,
        "amount_capturable": capturable,
        "amount_received": row.amount_received,
        "canceled_at": row.canceled_at,
        "cancellation_reason": row.cancellation_reason,
        "capture_method": row.capture_method,
        "client_secret": row.client_secret,
        "confirmation_method": row.confirmation_method,
        "currency": row.currency,
        "customer": row.customer,
        "description": row.description,
        "last_payment_error": row.last_payment_error,
        "latest_charge": row.latest_charge,
        "metadata": row.metadata or {},
        "next_action": None,
        "payment_method": row.payment_method,
        "payment_method_types": ["card"],
        "receipt_email": row.receipt_email,
        "statement_descriptor": row.statement_descriptor,
        "status": row.status,
    }


def refund(row: Row[Any]) -> Object:
    body = _common(row, "refund")
    del body["livemode"]
    return body | {
        "amount": row.amount,
        "balance_transaction": None,
        "charge": row.charge,
        "currency": row.currency,
        "metadata": row.metadata or {},
        "payment_intent": row.payment_intent,
        "reason": row.reason,
        "receipt_number": None,
        "status": row.status,
    }


def customer(row: Row[Any]) -> Object:
    if row.deleted:
        return {"id": row.id, "object": "customer", "deleted": True}
    return _common(row, "customer") | {
        "address": None,
        "balance": 0,
        "currency": None,
        "default_source": None,
        "delinquent": False,
        "description": row.description,
        "email": row.email,
        "metadata": row.metadata or {},
        "name": row.name,
        "phone": row.phone,
    }


def payment_method(row: Row[Any]) -> Object:
    return _common(row, "payment_method") | {
        "billing_details": _billing_details(row.billing_details),
        "card": _card(row.card),
        "customer": row.customer,
        "metadata": row.metadata or {},
        "type": "card",
    }


def token(row: Row[Any]) -> Object:
    card = _card(row.card)
    card["object"] = "card"
    card["id"] = "card_" + row.id.removeprefix("tok_")
    card["name"] = row.card["name"]
    return _common(row, "token") | {
        "card": card,
        "client_ip": None,
        "type": "card",
        "used": row.used,
    }


def event(row: Row[Any], pending_webhooks: int) -> Object:
    return _common(row, "event") | {
        "api_version": API_VERSION,
        "data": {"object": row.data},
        "pending_webhooks": pending_webhooks,
        "request": {"id": row.request, "idempotency_key": row.idempotency_key},
        "type": row.type,
    }


def webhook_endpoint(row: Row[Any]) -> Object:
    """Leave out the secret: only the response that creates the endpoint has it."""
    return _common(row, "webhook_endpoint") | {
        "api_version": API_VERSION,
        "application": None,
        "description": row.description,
        "enabled_events": row.enabled_events,
        "metadata": row.metadata or {},
        "status": row.status,
        "url": row.url,
    }


def delivery(row: Row[Any], attempts: list[Object]) -> Object:
    return _common(row, "webhook_delivery") | {
        "attempts": attempts,
        "event": row.event,
        "next_attempt": None if row.due is None else int(row.due),
        "status": row.status,
        "webhook_endpoint": row.endpoint,
    }


def delivery_attempt(row: Row[Any]) -> Object:
    return {
        "created": row.created,
        "error": row.error,
        "http_status": row.status,
        "took_s": row.took_s,
    }


def balance(tenant: str, amounts: dict[str, int]) -> Object:
    def list_amounts(amounts: dict[str, int]) -> list[Object]:
        return [
            {"amount": amount, "currency": currency, "source_types": {"card": amount}}
            for currency, amount in amounts.items()
        ]

    return {
        "object": "balance",
        "available": list_amounts(amounts or {"usd": 0}),
        "livemode": tenant.endswith("/live"),
        "pending": list_amounts(dict.fromkeys(amounts or {"usd": 0}, 0)),
    }


def _card(card: Object) -> Object:
    visible = ("brand", "country", "exp_month", "exp_year", "fingerprint", "funding", "last4")
    return {name: card[name] for name in visible}


def _billing_details(details: Object | None) -> Object:
    details = details or {}
    address = dict.fromkeys(("city", "country", "line1", "line2", "postal_code", "state"))
    return {
        "address": address | (details.get("address") or {}),
        "email": details.get("email"),
        "name": details.get("name"),
        "phone": details.get("phone"),
    }
