"""Sources: find the card that pays, by token, payment method, customer or number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from payments import clock
from payments.api import cards
from payments.api.errors import StripeError, invalid, not_allowed, not_found
from payments.api.parameters import CardNumber, CardToken, MethodData
from payments.storage import ids, rows
from payments.storage.tables import customers, payment_methods, tokens


@dataclass(frozen=True, slots=True)
class Source:
    """A card, and its payment method, if it has one."""

    card: cards.Card
    payment_method: str | None = None


def by_id(connection: Connection, tenant: str, id_: str, param: str) -> Source:
    """Find a token or payment method, a documented or a stored one."""
    test_card = cards.find_test_card(id_)
    if test_card is not None:
        return Source(test_card)
    if id_.startswith("tok_"):
        return Source(_use_token(connection, tenant, id_, param))
    method = rows.get(connection, payment_methods, tenant, id_, param)
    return Source(method.card, id_)


def by_number(card_params: CardNumber) -> cards.Card:
    """Return a card from its number. A past expiry is refused as a typing error."""
    part = cards.expired_part(card_params.exp_year, card_params.exp_month, clock.now_s())
    if part is not None:
        raise StripeError(
            402,
            "card_error",
            f"Your card's expiration {part} is invalid.",
            code=f"invalid_expiry_{part}",
            param=f"exp_{part}",
            no_effect=True,
        )
    return card_params.card()


def _use_token(connection: Connection, tenant: str, id_: str, param: str) -> cards.Card:
    """Use up a stored token and return its card."""
    token = rows.change(connection, tokens, tenant, id_, tokens.c.used.is_(False), used=True)
    if token is None:
        rows.get(connection, tokens, tenant, id_, param)
        raise not_allowed(
            f"You cannot use a token more than once: {id_}.", "token_already_used", param
        )
    card: cards.Card = token.card
    return card


def of_charge(
    connection: Connection,
    tenant: str,
    source: str | CardNumber | None,
    customer: str | None,
) -> Source:
    """Find the card that pays for a charge."""
    if customer is not None:
        existing_customer(connection, tenant, customer)
    if isinstance(source, CardNumber):
        return Source(by_number(source))
    if source is not None:
        found = by_id(connection, tenant, source, "source")
        _check_owner(connection, tenant, found, customer)
        return found
    if customer is None:
        raise invalid("Must provide source or customer.", "source", "parameter_missing")
    newest = (
        sa.select(payment_methods)
        .where(payment_methods.c.tenant == tenant, payment_methods.c.customer == customer)
        .order_by(payment_methods.c.id.desc())
        .limit(1)
    )
    method = connection.execute(newest).first()
    if method is None:
        raise invalid("Cannot charge a customer that has no active card.", "customer", "missing")
    return Source(method.card, method.id)


def of_intent(
    connection: Connection,
    tenant: str,
    method: str | None,
    data: MethodData | None,
    customer: str | None,
) -> Source | None:
    """Find the card that pays for an intent; None if the client has not chosen one.

    Documented test methods and inline data become new payment methods.
    """
    if data is not None:
        card = card_of(connection, tenant, data.card)
        billing = data.billing_details.model_dump() if data.billing_details else None
        return Source(card, add_method(connection, tenant, card, billing, data.metadata).id)
    if method is None:
        return None
    found = by_id(connection, tenant, method, "payment_method")
    if found.payment_method is None:
        return Source(found.card, add_method(connection, tenant, found.card).id)
    _check_owner(connection, tenant, found, customer)
    return found


def _check_owner(connection: Connection, tenant: str, source: Source, customer: str | None) -> None:
    if source.payment_method is None:
        return
    method = rows.get(connection, payment_methods, tenant, source.payment_method)
    if method.customer is not None and method.customer != customer:
        raise invalid(
            f"The payment method {method.id} belongs to a customer: name that one as customer.",
            "payment_method",
        )


def card_of(connection: Connection, tenant: str, card_params: CardNumber | CardToken) -> cards.Card:
    """Return the card that a request describes."""
    if isinstance(card_params, CardNumber):
        return by_number(card_params)
    if not card_params.token.startswith("tok_"):
        raise not_found("token", card_params.token, "card[token]")
    return by_id(connection, tenant, card_params.token, "card[token]").card


def add_method(
    connection: Connection,
    tenant: str,
    card: cards.Card,
    billing_details: dict[str, Any] | None = None,
    metadata: dict[str, str | None] | None = None,
    customer: str | None = None,
) -> Row[Any]:
    """Create a payment method from a card."""
    return connection.execute(
        payment_methods.insert().returning(payment_methods),
        {
            "tenant": tenant,
            "id": ids.new("pm"),
            "created": clock.now_s(),
            "customer": customer,
            "card": card,
            "billing_details": billing_details,
            "metadata": rows.merge_metadata(None, metadata),
        },
    ).one()


def attach(connection: Connection, tenant: str, method: str, customer: str) -> Row[Any]:
    """Attach a payment method to a customer, unless it belongs to another one."""
    owner = payment_methods.c.customer
    free = sa.or_(owner.is_(None), owner == customer)
    attached = rows.change(connection, payment_methods, tenant, method, free, customer=customer)
    if attached is None:
        raise not_allowed("The payment method you provided is attached to another customer.")
    return attached


def existing_customer(
    connection: Connection, tenant: str, id_: str, param: str = "customer"
) -> Row[Any]:
    """Return a customer that is not deleted."""
    found = rows.get(connection, customers, tenant, id_, param)
    if found.deleted:
        raise not_found("customer", id_, param)
    return found
