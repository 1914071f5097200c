"""Schemas of the API's objects, for the OpenAPI document and the tests.

They describe what `objects` returns, field by field; nothing is converted with them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Card(Shape):
    brand: str
    country: str
    exp_month: int
    exp_year: int
    fingerprint: str
    funding: Literal["credit", "debit", "prepaid"]
    last4: str


class Address(Shape):
    city: str | None
    country: str | None
    line1: str | None
    line2: str | None
    postal_code: str | None
    state: str | None


class BillingDetails(Shape):
    address: Address
    email: str | None
    name: str | None
    phone: str | None


class Outcome(Shape):
    network_status: Literal["approved_by_network", "declined_by_network"]
    reason: str | None
    seller_message: str
    type: Literal["authorized", "issuer_declined"]


class CardDetails(Shape):
    type: Literal["card"]
    card: Card


class _Object(Shape):
    id: str
    created: int
    livemode: bool


class Charge(_Object):
    object: Literal["charge"]
    amount: int
    amount_captured: int
    amount_refunded: int
    balance_transaction: None
    billing_details: BillingDetails
    captured: bool
    currency: str
    customer: str | Customer | Deleted | None
    description: str | None
    disputed: Literal[False]
    failure_code: str | None
    failure_message: str | None
    metadata: dict[str, str]
    outcome: Outcome | None
    paid: bool
    payment_intent: str | PaymentIntent | None
    payment_method: str | PaymentMethod | None
    payment_method_details: CardDetails
    receipt_email: str | None
    refunded: bool
    statement_descriptor: str | None
    status: Literal["pending", "succeeded", "failed"]


class PaymentError(Shape):
    type: Literal["card_error"]
    code: str
    decline_code: str
    message: str
    charge: str
    payment_method: str | None


IntentStatus = Literal[
    "requires_payment_method",
    "requires_confirmation",
    "processing",
    "requires_capture",
    "succeeded",
    "canceled",
]


class PaymentIntent(_Object):
    object: Literal["payment_intent"]
    amount: int
    amount_capturable: int
    amount_received: int
    canceled_at: int | None
    cancellation_reason: str | None
    capture_method: Literal["automatic", "automatic_async", "manual"]
    client_secret: str
    confirmation_method: Literal["automatic", "manual"]
    currency: str
    customer: str | Customer | Deleted | None
    description: str | None
    last_payment_error: PaymentError | None
    latest_charge: str | Charge | None
    metadata: dict[str, str]
    next_action: None
    payment_method: str | PaymentMethod | None
    payment_method_types: list[Literal["card"]]
    receipt_email: str | None
    statement_descriptor: str | None
    status: IntentStatus


class Refund(Shape):
    id: str
    object: Literal["refund"]
    created: int
    amount: int
    balance_transaction: None
    charge: str | Charge
    currency: str
    metadata: dict[str, str]
    payment_intent: str | PaymentIntent | None
    reason: str | None
    receipt_number: None
    status: Literal["pending", "succeeded", "failed"]


class Customer(_Object):
    object: Literal["customer"]
    address: None
    balance: int
    currency: None
    default_source: None
    delinquent: Literal[False]
    description: str | None
    email: str | None
    metadata: dict[str, str]
    name: str | None
    phone: str | None


class Deleted(Shape):
    id: str
    object: str
    deleted: Literal[True]


class PaymentMethod(_Object):
    object: Literal["payment_method"]
    billing_details: BillingDetails
    card: Card
    customer: str | Customer | Deleted | None
    metadata: dict[str, str]
    type: Literal["card"]


class TokenCard(Card):
    id: str
    object: Literal["card"]
    name: str | None


class Token(_Object):
    object: Literal["token"]
    card: TokenCard
    client_ip: None
    type: Literal["card"]
    used: bool


class EventData(Shape):
    object: dict[str, Any]


class EventRequest(Shape):
    id: str | None
    idempotency_key: str | None


class Event(_Object):
    object: Literal["event"]
    api_version: str
    data: EventData
    pending_webhooks: int
    request: EventRequest
    type: str


class WebhookEndpoint(Shape):
    id: str
    object: Literal["webhook_endpoint"]
    created: int
    livemode: bool
    api_version: str
    application: None
    description: str | None
    enabled_events: list[str]
    metadata: dict[str, str]
    status: Literal["enabled", "disabled"]
    url: str
    secret: str | None = None
    """Only in the response that creates it."""


class DeliveryAttempt(Shape):
    created: int
    error: str | None
    http_status: int | None
    took_s: float


class WebhookDelivery(Shape):
    id: str
    object: Literal["webhook_delivery"]
    created: int
    livemode: bool
    attempts: list[DeliveryAttempt]
    event: str
    next_attempt: int | None
    status: Literal["pending", "delivered", "failed", "canceled"]
    webhook_endpoint: str


class BalanceLine(Shape):
    amount: int
    currency: str
    source_types: dict[str, int]


class Balance(Shape):
    object: Literal["balance"]
    available: list[BalanceLine]
    livemode: bool
    pending: list[BalanceLine]


class ErrorDetail(Shape):
    """What is wrong. `param` names the parameter, `code` is what to compare."""

    type: Literal["api_error", "card_error", "idempotency_error", "invalid_request_error"]
    message: str
    code: str | None = Field(default=None)
    param: str | None = None
    decline_code: str | None = None
    charge: str | None = None
    payment_intent: PaymentIntent | None = None
    payment_method: str | None = None
    doc_url: str | None = None


class Error(Shape):
    error: ErrorDetail
