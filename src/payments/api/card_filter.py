"""Card filter: refuses requests that contain a card number other than the test cards.

oncekey stores a request while it runs, so that recovery can finish it, and its key for longer. The
number of a real card and its security code must never be stored, so such requests are refused
before oncekey sees them. Free text, such as descriptions and metadata, is up to the client.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from payments.access.middleware import App, Receive, Scope, Send, in_api, refuse, replay_body
from payments.api import cards
from payments.api.errors import StripeError, invalid
from payments.api.requests import parse_body, refuse_query

_DIGITS_MIN = 12
_NO_DIGITS = bytes(range(256)).translate(None, b"0123456789")
_SEPARATOR = re.compile(r"[\W_]")
"""What people type between digits, such as dots or special spaces from a web page."""
_CARD_PARAMETERS = frozenset({"card", "number", "payment_method", "source", "token"})
"""Parameters that hold a card."""
_TEXT_PARAMETERS = frozenset(
    {
        *("address", "billing_details", "description", "email", "name", "phone", "receipt_email"),
        *("return_url", "statement_descriptor", "url"),
    }
)
"""Parameters with free text, unless they are part of a card."""

# In one piece, or in groups as on a card. UUIDs have no such groups; fractions are excluded.
_CANDIDATE = re.compile(
    r"(?<![^\W_])(?<!\d\.)"
    r"(?:\d{13,19}|\d{4}([ .-])\d{4}\1\d{4}\1\d{4}|\d{4}([ .-])\d{6}\2\d{4,5})"
    r"(?![^\W_])"
)
_BRANDS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})"  # Visa
    r"|(?:5[1-5]|2[2-7])\d{14}"  # Mastercard
    r"|3[47]\d{13}"  # American Express
    r"|3[0689]\d{12}"  # Diners Club
    r"|35\d{14}"  # JCB
    r"|6(?:011|2\d\d|4[4-9]\d|5\d\d)\d{12,15}"  # Discover, UnionPay
)


class CardFilter:
    """Passes requests without card numbers, or with test cards only. Bodies must come whole."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not in_api(scope) or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = (await receive()).get("body", b"")
        error = _objection(scope, body)
        if error is None:
            await self._app(scope, replay_body(body, receive), send)
        else:
            await refuse(send, error.status, **error.body["error"])


def _may_contain_card(body: bytes) -> bool:
    """Whether a body may contain a card number: most do not, and are not parsed twice."""
    return not body.isascii() or len(body.translate(None, _NO_DIGITS)) >= _DIGITS_MIN


def _objection(scope: Scope, body: bytes) -> StripeError | None:
    """Return why a request is refused: a query, an unreadable body, or an unknown card number."""
    if (error_outside := _refuse_outside_body(scope)) is not None:
        return error_outside
    content_type = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    try:
        refuse_query(scope["query_string"])
        value = parse_body(content_type.decode("latin-1"), body) if _may_contain_card(body) else {}
    except StripeError as error:
        return error
    param = next(_find_cards(value), None)
    if param is None:
        return None
    where = f"Invalid {param}: " if param else "The name of a parameter is the number of a card. "
    return invalid(where + cards.UNKNOWN, param or None, "incorrect_number")


def _refuse_outside_body(scope: Scope) -> StripeError | None:
    """Refuse a card number in the path or the idempotency key, which are stored too."""
    if contains_card_number(scope["path"]):
        return invalid("The URL holds the number of a card.", None, "incorrect_number")
    keys = (
        value.decode("latin-1") for name, value in scope["headers"] if name == b"idempotency-key"
    )
    if any(map(contains_card_number, keys)):
        message = (
            "The Idempotency-Key looks like it contains a card number. Keys are stored: use a "
            "random value such as a UUID, not something made of the payment."
        )
        return invalid(message, None, "incorrect_number")
    return None


def _find_cards(value: Any, param: str = "", *, as_card: bool = False) -> Iterator[str]:
    """Yield the parameters that contain card numbers, at any depth; if a name does, its parent.

    A value in a parameter for cards must not even look like a number.
    """
    if not isinstance(value, dict | list):
        if contains_card_number(str(value)) or (as_card and _looks_like_card(str(value))):
            yield param
        return
    for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if name == "metadata" or (name in _TEXT_PARAMETERS and not as_card):
            continue
        if contains_card_number(str(name)):
            yield param
        within = f"{param}[{name}]" if param else str(name)
        yield from _find_cards(inner, within, as_card=as_card or name in _CARD_PARAMETERS)


def _looks_like_card(text: str) -> bool:
    number = _SEPARATOR.sub("", text)
    return number.isdecimal() and len(number) >= _DIGITS_MIN and number not in cards.NUMBERS


# ------------------------------------------------------------------------------- card numbers


def contains_card_number(text: str) -> bool:
    """Whether a text contains a card number that is not a test card's.

    Checks the length, the prefixes of the large brands, and the check digit. One in forty random
    numbers of sixteen digits still looks like a card; timestamps of our days do not.

    >>> contains_card_number("4111111111111111")
    True
    >>> contains_card_number("4111111111111112") or contains_card_number("4242424242424242")
    False
    """
    return any(_is_card_number(re.sub(r"\D", "", found[0])) for found in _CANDIDATE.finditer(text))


def _is_card_number(number: str) -> bool:
    if not _BRANDS.fullmatch(number) or number in cards.NUMBERS:
        return False
    return sum(_luhn_value(digit, place) for place, digit in enumerate(reversed(number))) % 10 == 0


def _luhn_value(digit: str, place: int) -> int:
    """Return what a digit adds to the sum that must be a multiple of ten (Luhn)."""
    return sum(divmod(int(digit) * (1 + place % 2), 10))
