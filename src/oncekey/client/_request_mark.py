"""The mark that is left on a caller's request when it is sent, so that it is known again.

The same request, sent again, is a retry; and what follows a redirect belongs to the request that
was redirected. Both go on under its key.
"""

from __future__ import annotations

from dataclasses import replace

from oncekey._core.values import value
from oncekey.client._errors import show
from oncekey.client._key_placement import origin_of, stays_at

DELIVERY = "oncekey"
"""Under this name a request has its mark, and an answer, or an error, what became of it."""


@value
class Given:
    """A key that the caller gives beside a request, and what is known of it."""

    key: str
    first_sent: float | None = None
    until: float | None = None
    """How long it may be sent; both in seconds since 1970."""

    __repr__ = show


@value
class Mark:
    """What a request that is sent again, or redirected, brings along."""

    key: str
    url: object
    """Where it was first sent: its key may be shown within that origin."""
    body: object
    """What was sent there, as its library has it."""
    first_sent: float
    until: float | None = None
    spent: Spent | None = None
    """If it was redirected."""
    shown: bool = False
    """Its key stands in that request because we wrote it there, for whoever inspects it."""

    __repr__ = show

    @property
    def origin(self) -> str:
        return origin_of(str(self.url))

    def deadline(self, anew: float) -> float:
        """Following a redirect is part of the time that its request has."""
        return anew if self.spent is None else self.spent.deadline

    @property
    def attempts(self) -> int:
        """So is counting: which attempt the next one is."""
        return 1 if self.spent is None else 1 + self.spent.retried

    def again(self, request: object) -> Mark:
        """What this request brings along: what it left itself is not the mark of a redirect."""
        if self.spent is None or self.spent.request != id(request):
            return self
        return replace(self, spent=None)

    def redirected(self, request: object, deadline: float, retried: int) -> Mark:
        """What is left on a request whose answer may make somebody follow."""
        return replace(self, spent=Spent(id(request), deadline, retried))

    def is_shown_after(self, location: str | None) -> bool:
        """Whether what we wrote may stay: whoever follows elsewhere copies the request's headers,
        and may do so past our transport.
        """
        return self.shown and (location is None or stays_at(str(self.url), location))


@value
class Spent:
    """What a request has used up when it is redirected."""

    request: int
    """Its id. The very same one again is no redirect, but its caller's own retry, and has time of
    its own.
    """
    deadline: float
    retried: int
