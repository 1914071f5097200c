"""Orders: requests to the card network, stored before they are sent.

An order is the result of a step and is also stored in the row it is about, with the key that the
network recognises. So every attempt sends the same request, and anyone who finds the row can resend
it.

    authorise   a pending charge
    settle      an authorised charge: capture it, or (without an amount) void it
    give back   a pending refund
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Connection, Row

from payments import clock
from payments.api import objects
from payments.api.cards import expired_part
from payments.api.errors import StripeError, busy, invalid, not_allowed
from payments.api.sources import Source
from payments.api.transactions import ResumableRequest
from payments.money.amounts import STEP, format_amount
from payments.network import Authorised, Declined, Network, NetworkRefused
from payments.storage import ids, rows
from payments.storage.tables import charges
from payments.webhooks import events

Order = dict[str, Any]

_EXPIRED = "expired"
"""In an order and in a charge's card: it had expired when the charge was created."""
_AUTHORISES = ("reference", "key", "card", "amount", "currency", "capture")

# --------------------------------------------------------------------------------- authorise


def insert_pending(
    connection: Connection, work: ResumableRequest, source: Source, **values: Any
) -> Order:
    """Insert a pending charge and return the order for it."""
    id_, now = ids.new("ch"), clock.now_s()
    expired = expired_part(source.card["exp_year"], source.card["exp_month"], now) is not None
    row = {
        "tenant": work.tenant,
        "id": id_,
        "created": now,
        "status": "pending",
        "network_key": work.key("authorise", id_),
        "card": source.card | ({_EXPIRED: True} if expired else {}),
        "payment_method": source.payment_method,
        **values,
    }
    charge = connection.execute(charges.insert().returning(charges), row).one()
    shown = objects.charge(charge)
    events.record(connection, work.tenant, "charge.pending", shown, work.request_id)
    return of_charge(row)


def of_charge(row: Any) -> Order:
    """Return the order for a pending charge.

    Whether its card had expired is stored in the row, so that every attempt decides the same.
    Older releases did not check: for their rows the network may already have been called.
    """
    card = row["card"]
    order = {
        "reference": row["id"],
        "key": row["network_key"],
        "card": card["number"],
        "amount": row["amount"],
        "currency": row["currency"],
        "capture": row["capture"],
    }
    # Left out if false, so that servers of an older release can continue the charge.
    return order | ({_EXPIRED: True} if card.get(_EXPIRED) else {})


def authorise(network: Network, order: Order) -> Authorised | Declined:
    """Call the network, unless the card had expired. A permanent refusal becomes a decline."""
    if order.get(_EXPIRED):
        return Declined("expired_card", "expired_card", "Your card has expired.")
    try:
        return network.authorise(**{name: order[name] for name in _AUTHORISES})
    except NetworkRefused as error:
        return Declined("processing_error", "processing_error", f"The network refused: {error}")


# ------------------------------------------------------------------------------------ settle


def check_step(amount: int, currency: str, param: str) -> None:
    """Raise for an amount that no network accepts in this currency."""
    step = STEP.get(currency, 1)
    if amount % step:
        raise invalid(
            f"Invalid amount: in {currency.upper()} it must be a multiple of {step}.",
            param,
            "invalid_charge_amount",
        )


def begin_capture(
    connection: Connection, work: ResumableRequest, charge: Row[Any], amount: int | None, param: str
) -> Order:
    """Reserve an authorised charge, so that nobody else captures or voids it."""
    captured = charge.amount if amount is None else amount
    if amount is not None:
        check_step(amount, charge.currency, param)
    if captured > charge.amount:
        raise not_allowed(
            f"Only {format_amount(charge.amount, charge.currency)} were authorised.",
            "amount_too_large",
            param,
        )
    return _begin_settling(connection, charge, work.key("capture", charge.id), captured)


def begin_void(connection: Connection, work: ResumableRequest, charge: Row[Any]) -> Order:
    """Reserve an authorised charge, to void it."""
    return _begin_settling(connection, charge, work.key("void", charge.id), 0)


def _begin_settling(connection: Connection, charge: Row[Any], key: str, amount: int) -> Order:
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
    if changed is None:
        raise _why_not_settled(charge)
    return of_settling(changed)


def _why_not_settled(charge: Row[Any]) -> StripeError:
    if charge.captured:
        return not_allowed("This charge has already been captured.", "charge_already_captured")
    if charge.amount_refunded:
        return not_allowed(
            "This charge was refunded: nothing is held any more.", "charge_already_refunded"
        )
    if charge.status == "failed":
        return not_allowed("This charge was not authorised.", "charge_not_authorised")
    return busy("charge")  # it is being authorised, captured or released


def of_settling(charge: Row[Any]) -> Order:
    """Return the order for a charge that is being captured or voided."""
    order = {
        "reference": charge.id,
        "key": charge.settling,
        "authorisation": charge.authorisation,
    }
    return order | ({"amount": charge.settling_amount} if charge.settling_amount else {})


def settle(network: Network, order: Order) -> StripeError | None:
    """Call the network; return the error for the client if it refuses for good."""
    ask = network.capture if "amount" in order else network.void
    try:
        ask(**order)
    except NetworkRefused as error:
        return not_allowed(f"The card network refused: {error}", "processing_error")
    return None


# --------------------------------------------------------------------------------- give back


def of_refund(row: Any, authorisation: str) -> Order:
    """Return the order for a pending refund."""
    return {
        "key": row["network_key"],
        "authorisation": authorisation,
        "amount": row["amount"],
        "reference": row["id"],
    }


def give_back(network: Network, order: Order) -> str | None:
    """Call the network; return its id for the refund, or None if it refuses for good."""
    try:
        return network.refund(**order).id
    except NetworkRefused:
        return None
