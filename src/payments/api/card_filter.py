"""Known cards: a number that is none of the test cards is turned away before anything is written.

oncekey keeps a request while it runs, so that it can be finished without its client, and its key
for longer. What nobody may write down must not get that far: the number of a real card, and the
code beside it. What people write for people, descriptions and metadata, is their own.
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
"""However somebody types a number: with dots, or with the spaces of the page it was copied from."""
_GIVEN_AS = frozenset({"card", "number", "payment_method", "source", "token"})
"""The names under which a card is given."""
_TEXT = frozenset(
    {
        *("address", "billing_details", "description", "email", "name", "phone", "receipt_email"),
        *("return_url", "statement_descriptor", "url"),
    }
)
"""The names under which people write for people, unless it is on a card."""

# Together, or in groups as they stand on a card. A UUID has no such groups, a fraction is none.
_WRITTEN = re.compile(
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
    """Lets through what names no card, or one that is known. Bodies must come whole."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not in_api(scope) or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = (await receive()).get("body", b"")
        wrong = _objection(scope, body)
        if wrong is None:
            await self._app(scope, replay_body(body, receive), send)
        else:
            await refuse(send, wrong.status, **wrong.body["error"])


def _may_hold_one(body: bytes) -> bool:
    """Many bodies do not, and are not read twice."""
    return not body.isascii() or len(body.translate(None, _NO_DIGITS)) >= _DIGITS_MIN


def _objection(scope: Scope, body: bytes) -> StripeError | None:
    """What is wrong with a request: there is more than a body, or that cannot be read, or holds the
    number of a card that is not known.
    """
    if (elsewhere := _elsewhere(scope)) is not None:
        return elsewhere
    content_type = next((said for name, said in scope["headers"] if name == b"content-type"), b"")
    try:
        refuse_query(scope["query_string"])
        said = parse_body(content_type.decode("latin-1"), body) if _may_hold_one(body) else {}
    except StripeError as error:
        return error
    param = next(_cards(said), None)
    if param is None:
        return None
    where = f"Invalid {param}: " if param else "The name of a parameter is the number of a card. "
    return invalid(where + cards.UNKNOWN, param or None, "incorrect_number")


def _elsewhere(scope: Scope) -> StripeError | None:
    """Of a number that stands where nobody looks for one, and which would be kept with the rest."""
    if contains_card_number(scope["path"]):
        return invalid("The URL holds the number of a card.", None, "incorrect_number")
    keys = (said.decode("latin-1") for name, said in scope["headers"] if name == b"idempotency-key")
    if any(map(contains_card_number, keys)):
        message = (
            "The Idempotency-Key holds what looks like the number of a card. Keys are kept: make "
            "them by chance, such as a UUID, not of what is paid or with what."
        )
        return invalid(message, None, "incorrect_number")
    return None


def _cards(said: Any, param: str = "", *, as_card: bool = False) -> Iterator[str]:
    """The parameters that hold numbers of cards, however deep, also in lists; where their names do,
    those around them. What stands under a name of a card must not even look like one.
    """
    if not isinstance(said, dict | list):
        if contains_card_number(str(said)) or (as_card and _looks_like_one(str(said))):
            yield param
        return
    for name, value in said.items() if isinstance(said, dict) else enumerate(said):
        if name == "metadata" or (name in _TEXT and not as_card):
            continue
        if contains_card_number(str(name)):
            yield param
        within = f"{param}[{name}]" if param else str(name)
        yield from _cards(value, within, as_card=as_card or name in _GIVEN_AS)


def _looks_like_one(text: str) -> bool:
    number = _SEPARATOR.sub("", text)
    return number.isdecimal() and len(number) >= _DIGITS_MIN and number not in cards.NUMBERS


# ------------------------------------------------------------------------------- card numbers


def contains_card_number(text: str) -> bool:
    """Whether a text holds the number of a card that is none of the test cards.

    >>> contains_card_number("4111111111111111")
    True
    >>> contains_card_number("4111111111111112") or contains_card_number("4242424242424242")
    False
    """
    return any(_is_card_number(re.sub(r"\D", "", found[0])) for found in _WRITTEN.finditer(text))


def _is_card_number(number: str) -> bool:
    if not _BRANDS.fullmatch(number) or number in cards.NUMBERS:
        return False
    return sum(_luhn_value(digit, place) for place, digit in enumerate(reversed(number))) % 10 == 0


def _luhn_value(digit: str, place: int) -> int:
    """What a digit adds to the sum that must be a multiple of ten (Luhn)."""
    return sum(divmod(int(digit) * (1 + place % 2), 10))
