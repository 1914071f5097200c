"""The issuer decides which cards pay. Numbers and codes are Stripe's documented test cards."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decline:
    """Why a card does not pay: a business result, not a failure."""

    code: str
    decline_code: str
    message: str


_DECLINED = "Your card was declined."

DECLINES = {
    "4000000000000002": Decline("card_declined", "generic_decline", _DECLINED),
    "4000000000000341": Decline("card_declined", "generic_decline", _DECLINED),
    "4000000000009995": Decline(
        "card_declined", "insufficient_funds", "Your card has insufficient funds."
    ),
    "4000000000009987": Decline("card_declined", "lost_card", _DECLINED),
    "4000000000009979": Decline("card_declined", "stolen_card", _DECLINED),
    "4000000000006975": Decline("card_declined", "card_velocity_exceeded", _DECLINED),
    "4100000000000019": Decline("card_declined", "fraudulent", _DECLINED),
    "4000000000000069": Decline("expired_card", "expired_card", "Your card has expired."),
    "4000000000000127": Decline(
        "incorrect_cvc", "incorrect_cvc", "Your card's security code is incorrect."
    ),
    "4000000000000119": Decline(
        "processing_error", "processing_error", "Your card could not be processed for now."
    ),
    "4242424242424241": Decline(
        "incorrect_number", "incorrect_number", "Your card number is incorrect."
    ),
}
"""By card number. Every other card pays."""


def decide(card: str) -> Decline | None:
    """Return why the card does not pay, or None if it does."""
    return DECLINES.get(card)
