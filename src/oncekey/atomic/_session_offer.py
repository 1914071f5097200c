"""The session of a request, for frameworks that make it before the key is claimed.

FastAPI's dependencies run first, so a session that one of them makes cannot be the atomic one: it
is not known yet whether there will be one. It is offered instead. The transaction of the attempt
then begins on it, and whoever has it, works in there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from oncekey._engine import attempt as attempts
from oncekey.errors import Misuse


class Offer:
    """A session, and whether a handler has been lent it."""

    __slots__ = ("adapter", "is_lent", "session")

    def __init__(self, adapter: Any, session: Any) -> None:
        self.adapter = adapter
        self.session: Any = session
        self.is_lent = False
        """Whoever lent it closes it."""


_offers: ContextVar[tuple[Offer, ...]] = ContextVar("oncekey_offers", default=())


@contextmanager
def offered(adapter: Any, session: Any) -> Iterator[Offer]:
    """Offer a session to the transaction that `adapter` may begin for this request."""
    offer = Offer(adapter, session)
    # Not reset: a framework may end a dependency in another context.
    _offers.set((offer, *(other for other in _offers.get() if other.session is not None)))
    try:
        yield offer
    finally:
        offer.session = None


def find_offer(adapter: Any) -> Offer | None:
    """What this request offers, None if it offers nothing."""
    mine = (each for each in _offers.get() if each.adapter is adapter and each.session is not None)
    return next(mine, None)


def borrowed(adapter: Any) -> Any:
    """What the attempt that runs here was lent by `adapter`, None if it was not lent anything."""
    try:
        loan = attempts.current().loan
    except Misuse:  # nothing is claimed, yet or at all
        return None
    return loan.connection if loan is not None and loan.adapter is adapter else None
