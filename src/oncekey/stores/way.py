"""The way of a database server to take an id for as long as a transaction lasts: what atomic mode
asks of it beside the verbs, within the transaction that holds the business rows too.
"""

from __future__ import annotations

from collections.abc import Callable

from oncekey._core.op import Op
from oncekey._core.record import Claim, Record
from oncekey._core.values import value
from oncekey._core.verbs import Swap


@value
class Held:
    """What a transaction found when it asked for an id."""

    ours: bool
    """The id is this transaction's until it ends."""
    record: Record | None


@value
class Way:
    """How one kind of server is asked."""

    hold: Callable[[Claim], Op[Held]]
    """Take the id if nobody has it, and look for its record. Whoever asks waits for nobody."""
    is_ours: Callable[[Claim], Op[bool]]
    """Whether the transaction is still the one that took the id."""
    settle: Callable[[Claim, Swap], Op[bool]]
    """Write a record that did not exist, completed. False if there is one after all, or if the
    transaction is not the one that took the id.
    """
    undoes: Callable[[BaseException], bool] = lambda error: False
    """Whether the server undoes the whole transaction by itself when it raises this."""
