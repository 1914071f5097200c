"""Cards: Stripe's documented test cards and tokens. No others are accepted: nobody is charged.

The network decides whether a card pays; this module only knows what a card looks like.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

UNKNOWN = "Only Stripe's documented test cards are taken here, such as 4242424242424242."


@dataclass(frozen=True, slots=True)
class CardKind:
    """What a card's number says about it."""

    brand: str
    funding: str = "credit"
    country: str = "US"


_VISA = CardKind("visa")

NUMBERS = {
    "4242424242424242": _VISA,
    "4242424242424241": _VISA,
    "4000056655665556": CardKind("visa", "debit"),
    "4000000760000002": CardKind("visa", country="BR"),
    "4000001240000000": CardKind("visa", country="CA"),
    "4000002500000003": CardKind("visa", country="FR"),
    "4000002760000016": CardKind("visa", country="DE"),
    "4000008260000000": CardKind("visa", country="GB"),
    "5555555555554444": CardKind("mastercard"),
    "5200828282828210": CardKind("mastercard", "debit"),
    "5105105105105100": CardKind("mastercard", "prepaid"),
    "378282246310005": CardKind("amex"),
    "371449635398431": CardKind("amex"),
    "6011111111111117": CardKind("discover"),
    "3056930009020004": CardKind("diners"),
    "3566002020360505": CardKind("jcb"),
    "6200000000000005": CardKind("unionpay"),
    "4000000000000077": _VISA,
    "4000000000000002": _VISA,
    "4000000000000341": _VISA,
    "4000000000009995": _VISA,
    "4000000000009987": _VISA,
    "4000000000009979": _VISA,
    "4000000000006975": _VISA,
    "4100000000000019": _VISA,
    "4000000000000069": _VISA,
    "4000000000000127": _VISA,
    "4000000000000119": _VISA,
}

_NAMED = {
    "visa": "4242424242424242",
    "visa_debit": "4000056655665556",
    "mastercard": "5555555555554444",
    "mastercard_debit": "5200828282828210",
    "mastercard_prepaid": "5105105105105100",
    "amex": "378282246310005",
    "discover": "6011111111111117",
    "diners": "3056930009020004",
    "jcb": "3566002020360505",
    "unionpay": "6200000000000005",
    "us": "4242424242424242",
    "br": "4000000760000002",
    "ca": "4000001240000000",
    "fr": "4000002500000003",
    "de": "4000002760000016",
    "gb": "4000008260000000",
    "bypassPending": "4000000000000077",
    "chargeCustomerFail": "4000000000000341",
    "chargeDeclined": "4000000000000002",
    "chargeDeclinedInsufficientFunds": "4000000000009995",
    "chargeDeclinedLostCard": "4000000000009987",
    "chargeDeclinedStolenCard": "4000000000009979",
    "chargeDeclinedVelocityLimitExceeded": "4000000000006975",
    "chargeDeclinedFraudulent": "4100000000000019",
    "chargeDeclinedExpiredCard": "4000000000000069",
    "chargeDeclinedIncorrectCvc": "4000000000000127",
    "chargeDeclinedProcessingError": "4000000000000119",
    "chargeDeclinedIncorrectNumber": "4242424242424241",
    "radarBlock": "4100000000000019",
}
TOKENS = {f"tok_{name}": number for name, number in _NAMED.items()}
METHODS = {f"pm_card_{name}": number for name, number in _NAMED.items()} | {
    f"pm_card_visa_{name}": number for name, number in _NAMED.items() if name.startswith("charge")
}

Card = dict[str, Any]
"""A card as stored: with its number, which never leaves the API."""


def card(number: str, exp_month: int = 12, exp_year: int = 2034, name: str | None = None) -> Card:
    """Return a card as stored. The number must be one of `NUMBERS`."""
    kind = NUMBERS[number]
    return {
        "number": number,
        "brand": kind.brand,
        "funding": kind.funding,
        "country": kind.country,
        "last4": number[-4:],
        "exp_month": exp_month,
        "exp_year": exp_year,
        "fingerprint": hashlib.sha256(number.encode()).hexdigest()[:16],
        "name": name,
    }


def expired_part(year: int, month: int, at_s: float) -> Literal["year", "month"] | None:
    """Return which part of a card's expiry was past at this time; None if it was valid."""
    at = datetime.fromtimestamp(at_s, UTC)
    if year < at.year:
        return "year"
    return "month" if (year, month) < (at.year, at.month) else None


def find_test_card(id_: str) -> Card | None:
    """Return the card of a documented token or payment method, if it is one."""
    number = TOKENS.get(id_) or METHODS.get(id_)
    return None if number is None else card(number)
