"""Parameters of each request. Unknown ones are refused by name.

Forms carry only text, JSON carries values; both parse to the same. An empty text means "none", as
in Stripe's API.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from payments.api import cards
from payments.money.amounts import AMOUNT_MAX, CURRENCIES

METADATA_MAX = 50
OVERLAP_S = 86_400
OVERLAP_S_MAX = 7 * 86_400
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_BOOLEANS = {"true": True, "false": False, "True": True, "False": False}
"""As forms write it; capitalised by Stripe's Python clients before 12.1."""


def _parse_integer(value: object) -> object:
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise PydanticCustomError(
        "parameter_invalid_integer", "Invalid integer: {value}", _error_context(value)
    )


def _parse_boolean(value: object) -> object:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in _BOOLEANS:
        return _BOOLEANS[value]
    raise PydanticCustomError(
        "parameter_invalid", "Invalid boolean: {value}", _error_context(value)
    )


def _parse_currency(value: object) -> object:
    if isinstance(value, str) and value.lower() in CURRENCIES:
        return value.lower()
    raise PydanticCustomError(
        "parameter_invalid",
        "{value}. It is a three-letter ISO code in lower case, such as usd.",
        _error_context(value),
    )


def _error_context(value: object) -> dict[str, Any]:
    return {"value": repr(value)[:100]}


def _as_text(value: object) -> object:
    """Convert numbers of JSON clients to the text a form would carry."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


Integer = Annotated[int, BeforeValidator(_parse_integer)]
Amount = Annotated[
    int, Field(ge=1, le=AMOUNT_MAX, examples=[2000]), BeforeValidator(_parse_integer)
]
Boolean = Annotated[bool, BeforeValidator(_parse_boolean)]
Currency = Annotated[
    str,
    Field(json_schema_extra={"enum": sorted(CURRENCIES)}, examples=["eur"]),
    BeforeValidator(_parse_currency),
]
Text = Annotated[str, StringConstraints(max_length=5000)]
Short = Annotated[str, StringConstraints(max_length=255)]
Id = Annotated[str, StringConstraints(max_length=255, pattern="^[A-Za-z0-9_]+$")]
Email = Annotated[str, StringConstraints(max_length=512, pattern="^[^@ ]+@[^@ ]+$")]
Name = Annotated[str, StringConstraints(min_length=1, max_length=40)]
Metadata = Annotated[
    dict[Name, Annotated[str | None, Field(max_length=500), BeforeValidator(_as_text)]],
    Field(max_length=METADATA_MAX),
]
Expand = Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=10)]


class Part(BaseModel):
    """Parameters that belong together."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_none(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: None if value == "" else value for name, value in values.items()}


class Parameters(Part):
    """Parameters that every request may have."""

    expand: Expand | None = None
    """Ids in the response to replace by their objects."""

    def explicit_values(self) -> dict[str, Any]:
        """Return the parameters that the request set, by name."""
        values: dict[str, Any] = self.model_dump(include=self.model_fields_set - {"expand"})
        return values


class Nothing(Parameters):
    """A request that needs no parameters."""


# ------------------------------------------------------------------------------------ cards


class CardNumber(Part):
    """A card, by its number: one of Stripe's test cards."""

    object: Literal["card"] | None = None
    number: str = Field(pattern="^[0-9 -]{12,30}$")
    exp_month: Annotated[int, Field(ge=1, le=12), BeforeValidator(_parse_integer)]
    exp_year: Annotated[int, Field(ge=1970, le=2100), BeforeValidator(_parse_integer)]
    cvc: str | None = Field(None, pattern="^[0-9]{3,4}$")
    name: Short | None = None

    @field_validator("number")
    @classmethod
    def _check_known(cls, number: str) -> str:
        digits = re.sub("[ -]", "", number)
        if digits not in cards.NUMBERS:
            raise PydanticCustomError("incorrect_number", cards.UNKNOWN)
        return digits

    def card(self) -> cards.Card:
        """Return the card as stored."""
        return cards.card(self.number, self.exp_month, self.exp_year, self.name)


class CardToken(Part):
    """A card, by a token."""

    token: Id


class AddressGiven(Part):
    city: Short | None = None
    country: Short | None = None
    line1: Short | None = None
    line2: Short | None = None
    postal_code: Short | None = None
    state: Short | None = None


class BillingGiven(Part):
    """Who pays."""

    address: AddressGiven | None = None
    email: Email | None = None
    name: Short | None = None
    phone: Short | None = None


class MethodData(Part):
    """A new payment method, inline."""

    type: Literal["card"]
    card: CardNumber | CardToken
    billing_details: BillingGiven | None = None
    metadata: Metadata | None = None


class TokenCreate(Parameters):
    card: CardNumber


class MethodCreate(Parameters):
    type: Literal["card"]
    card: CardNumber | CardToken
    billing_details: BillingGiven | None = None
    metadata: Metadata | None = None


class MethodUpdate(Parameters):
    billing_details: BillingGiven | None = None
    metadata: Metadata | None = None


class MethodAttach(Parameters):
    customer: Id


# ---------------------------------------------------------------------------------- charges


class ChargeCreate(Parameters):
    amount: Amount
    currency: Currency
    source: Id | CardNumber | None = Field(None, examples=["tok_visa"])
    customer: Id | None = None
    capture: Boolean = True
    description: Text | None = None
    metadata: Metadata | None = None
    receipt_email: Email | None = None
    statement_descriptor: Annotated[str, Field(max_length=22)] | None = None


class ChargeUpdate(Parameters):
    customer: Id | None = None
    description: Text | None = None
    metadata: Metadata | None = None
    receipt_email: Email | None = None


class ChargeCapture(Parameters):
    amount: Amount | None = None


class RefundCreate(Parameters):
    charge: Id | None = None
    payment_intent: Id | None = None
    amount: Amount | None = None
    reason: Literal["duplicate", "fraudulent", "requested_by_customer"] | None = None
    metadata: Metadata | None = None


class MetadataUpdate(Parameters):
    metadata: Metadata | None = None


# -------------------------------------------------------------------------- payment intents


class AutomaticMethods(Part):
    enabled: Boolean
    allow_redirects: Literal["always", "never"] | None = None


class _Paying(Parameters):
    """For creating and for confirming. No test card needs authentication: parameters for that
    (`return_url`, `off_session`, …) are accepted and have no effect.
    """

    payment_method: Id | None = Field(None, examples=["pm_card_visa"])
    payment_method_data: MethodData | None = None
    payment_method_types: Annotated[list[Literal["card"]], Field(max_length=5)] | None = None
    receipt_email: Email | None = None
    return_url: Annotated[str, Field(max_length=2048)] | None = None
    off_session: Boolean | None = None
    setup_future_usage: Literal["off_session", "on_session"] | None = None
    error_on_requires_action: Boolean | None = None


class IntentCreate(_Paying):
    amount: Amount
    currency: Currency
    customer: Id | None = None
    confirm: Boolean = False
    capture_method: Literal["automatic", "automatic_async", "manual"] = "automatic"
    confirmation_method: Literal["automatic", "manual"] = "automatic"
    automatic_payment_methods: AutomaticMethods | None = None
    description: Text | None = None
    metadata: Metadata | None = None
    statement_descriptor: Annotated[str, Field(max_length=22)] | None = None


class IntentUpdate(Parameters):
    amount: Amount | None = None
    currency: Currency | None = None
    customer: Id | None = None
    payment_method: Id | None = None
    description: Text | None = None
    metadata: Metadata | None = None
    receipt_email: Email | None = None


class IntentConfirm(_Paying):
    capture_method: Literal["automatic", "automatic_async", "manual"] | None = None


class IntentCapture(Parameters):
    amount_to_capture: Amount | None = None


class IntentCancel(Parameters):
    cancellation_reason: (
        Literal["abandoned", "duplicate", "fraudulent", "requested_by_customer"] | None
    ) = None


# -------------------------------------------------------------------------------- customers


class CustomerChange(Parameters):
    description: Text | None = None
    email: Email | None = None
    name: Short | None = None
    phone: Annotated[str, Field(max_length=20)] | None = None
    metadata: Metadata | None = None


class CustomerCreate(CustomerChange):
    payment_method: Id | None = None
    source: Id | None = None


# --------------------------------------------------------------------------------- webhooks

EventType = Annotated[str, Field(max_length=100, pattern=r"^(\*|[a-z_]+(\.[a-z_]+)+)$")]
EventTypes = Annotated[list[EventType], Field(min_length=1, max_length=100)]
Url = Annotated[str, Field(min_length=1, max_length=2048)]


class EndpointCreate(Parameters):
    url: Url
    enabled_events: EventTypes
    api_version: Literal["2026-10-28.endive"] | None = None
    description: Text | None = None
    metadata: Metadata | None = None


class EndpointUpdate(Parameters):
    url: Url | None = None
    enabled_events: EventTypes | None = None
    disabled: Boolean | None = None
    description: Text | None = None
    metadata: Metadata | None = None


class EndpointRoll(Parameters):
    """How long the old secret signs too."""

    overlap_s: Annotated[Integer, Field(ge=0, le=OVERLAP_S_MAX)] = OVERLAP_S


class EventRetry(Parameters):
    webhook_endpoint: Id | None = None


# ------------------------------------------------------------------------------------ lists


class Created(Part):
    """A span of time."""

    gt: Integer | None = None
    gte: Integer | None = None
    lt: Integer | None = None
    lte: Integer | None = None


class Page(Parameters):
    """Which part of a list."""

    limit: Annotated[int, Field(ge=1, le=100), BeforeValidator(_parse_integer)] = 10
    starting_after: Id | None = None
    ending_before: Id | None = None
    created: Integer | Created | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Page:
        if self.starting_after and self.ending_before:
            raise PydanticCustomError(
                "parameter_invalid", "Give starting_after or ending_before, not both."
            )
        return self


class ChargeList(Page):
    customer: Id | None = None
    payment_intent: Id | None = None


class RefundList(Page):
    charge: Id | None = None
    payment_intent: Id | None = None


class IntentList(Page):
    customer: Id | None = None


class CustomerList(Page):
    email: Annotated[str, Field(max_length=512)] | None = None


class MethodList(Page):
    customer: Id | None = None
    type: Literal["card"] | None = None


class EventList(Page):
    type: Short | None = None
    types: Annotated[list[Short], Field(max_length=20)] | None = None
