"""Orders: what the card network is asked, written down before it is asked.

An order is the result of a step and stands in the row that it is about, with the key under which
the network knows it. So every attempt asks the same, and whoever finds the row can ask again.

    authorise   a charge that is pending
    settle      a charge that is authorised: capture it, or (without an amount) let go of it
    give back   a refund that is pending
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
"""In an order, and in a charge's card: it had run out when the charge was made."""
_AUTHORISES = ("reference", "key", "card", "amount", "currency", "capture")

# --------------------------------------------------------------------------------- authorise


def insert_pending(
    connection: Connection, work: ResumableRequest, source: Source, **values: Any
) -> Order:
    """Write down that a card is about to be asked, and what it is asked."""
    id_, now = ids.new("ch"), clock.now_s()
    ran_out = expired_part(source.card["exp_year"], source.card["exp_month"], now) is not None
    row = {
        "tenant": work.tenant,
        "id": id_,
        "created": now,
        "status": "pending",
        "network_key": work.key("authorise", id_),
        "card": source.card | ({_EXPIRED: True} if ran_out else {}),
        "payment_method": source.payment_method,
        **values,
    }
    charge = connection.execute(charges.insert().returning(charges), row).one()
    shown = objects.charge(charge)
    events.record(connection, work.tenant, "charge.pending", shown, work.request_id)
    return of_charge(row)


def of_charge(row: Any) -> Order:
    """What the network is asked for a pending charge. Whether its card was still good stands in the
    row: whoever continues it decides the same, and the network may have been asked already for one
    that an older release wrote, which never looked.
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
    # Left out where it does not apply, so that servers of an older release can go on with it.
    return order | ({_EXPIRED: True} if card.get(_EXPIRED) else {})


def authorise(network: Network, order: Order) -> Authorised | Declined:
    """Ask the network, unless the card had run out. What it will never do is a decline like any
    other.
    """
    if order.get(_EXPIRED):
        return Declined("expired_card", "expired_card", "Your card has expired.")
    try:
        return network.authorise(**{name: order[name] for name in _AUTHORISES})
    except NetworkRefused as error:
        return Declined("processing_error", "processing_error", f"The network refused: {error}")


# ------------------------------------------------------------------------------------ settle


def check_step(amount: int, currency: str, param: str) -> None:
    """Refuse an amount that no network takes in this currency."""
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
    """Take a charge that was authorised only, so that nobody else captures or voids it."""
    taken = charge.amount if amount is None else amount
    if amount is not None:
        check_step(amount, charge.currency, param)
    if taken > charge.amount:
        raise not_allowed(
            f"Only {format_amount(charge.amount, charge.currency)} were authorised.",
            "amount_too_large",
            param,
        )
    return _begin_settling(connection, charge, work.key("capture", charge.id), taken)


def begin_void(connection: Connection, work: ResumableRequest, charge: Row[Any]) -> Order:
    """Take a charge that was authorised only, to let go of it."""
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
        raise _not_to_be_settled(charge)
    return of_settling(changed)


def _not_to_be_settled(charge: Row[Any]) -> StripeError:
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
    """What the network is asked for a charge that is being captured or voided."""
    order = {
        "reference": charge.id,
        "key": charge.settling,
        "authorisation": charge.authorisation,
    }
    return order | ({"amount": charge.settling_amount} if charge.settling_amount else {})


def settle(network: Network, order: Order) -> StripeError | None:
    """Ask the network. Gives what to tell where it will never do it, None where it did."""
    ask = network.capture if "amount" in order else network.void
    try:
        ask(**order)
    except NetworkRefused as error:
        return not_allowed(f"The card network refused: {error}", "processing_error")
    return None


# --------------------------------------------------------------------------------- give back


def of_refund(row: Any, authorisation: str) -> Order:
    """What the network is asked for a pending refund."""
    return {
        "key": row["network_key"],
        "authorisation": authorisation,
        "amount": row["amount"],
        "reference": row["id"],
    }


def give_back(network: Network, order: Order) -> str | None:
    """Ask the network; gives its id for what it gave back, None if it never will."""
    try:
        return network.refund(**order).id
    except NetworkRefused:
        return None
