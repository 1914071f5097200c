"""Known cards: a number that is none of the test cards is turned away before anything is written.

oncekey keeps a request while it runs, so that it can be finished without its client. What nobody
may write down must not get that far: the number of a real card, and the code beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from payments import cards
from payments.errors import StripeError, invalid
from payments.gate import App, Receive, Scope, Send, again, in_api, refuse
from payments.reading import refuse_query, values

_DIGITS_MIN = 12
_NO_DIGITS = bytes(range(256)).translate(None, b"0123456789")
_SEPARATOR = re.compile(r"[\W_]")
"""However somebody types a number: with dots, or with the spaces of the page it was copied from."""
_GIVEN_AS = frozenset({"card", "number", "payment_method", "source", "token"})
"""The names under which a card is given."""


class KnownCards:
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
            await self._app(scope, again(body, receive), send)
        else:
            await refuse(send, wrong.status, **wrong.body["error"])


def _may_hold_one(body: bytes) -> bool:
    """Many bodies do not, and are not read twice."""
    return not body.isascii() or len(body.translate(None, _NO_DIGITS)) >= _DIGITS_MIN


def _objection(scope: Scope, body: bytes) -> StripeError | None:
    """What is wrong with a request: there is more than a body, or that cannot be read, or holds the
    number of a card that is not known.
    """
    content_type = next((said for name, said in scope["headers"] if name == b"content-type"), b"")
    try:
        refuse_query(scope["query_string"])
        said = values(content_type.decode("latin-1"), body) if _may_hold_one(body) else {}
    except StripeError as error:
        return error
    for param, value in _given(said):
        number = _SEPARATOR.sub("", value)
        if number.isdecimal() and len(number) >= _DIGITS_MIN and number not in cards.NUMBERS:
            return invalid(f"Invalid {param}: {cards.UNKNOWN}", param, "incorrect_number")
    return None


def _given(said: Any, param: str = "", *, as_card: bool = False) -> Iterator[tuple[str, str]]:
    """All that may be cards, with the parameters that say so: whatever stands under a name of one,
    however deep, also in lists. Metadata is the client's own.
    """
    if not isinstance(said, dict | list):
        if as_card:
            yield param, str(said)
        return
    for name, value in said.items() if isinstance(said, dict) else enumerate(said):
        if name != "metadata":
            within = f"{param}[{name}]" if param else str(name)
            yield from _given(value, within, as_card=as_card or name in _GIVEN_AS)
