"""A transaction: what atomic mode asks in it, what its server knows of it, and what its client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from oncekey._core.op import Op
from oncekey._core.values import value
from oncekey._core.verbs import Verb
from oncekey.stores.memory import MemoryStore
from oncekey.stores.postgres.transactions import TRANSACTIONS

if TYPE_CHECKING:
    from simulator.task import Task


@value
class Asked:
    """Verbs, to be carried out within the transaction."""

    verbs: tuple[Verb, ...]


@value
class Write:
    """The handler writes its business row."""


class Joined(MemoryStore):
    """The store as `Work` sees it: whatever it asks is for the transaction to answer."""

    name = "postgres"
    transactions = TRANSACTIONS  # type: ignore[assignment]

    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        outcomes: list[Any] = yield Asked(tuple(verbs))
        return outcomes


JOINED = Joined()


class Transaction:
    """As the server knows it."""

    __slots__ = ("business_rows", "id", "locked", "mark", "open", "row", "runs", "task", "writes")

    def __init__(self, task: Task) -> None:
        self.task = task
        self.id = task.claim.id
        self.open = True
        self.locked = False
        """It has the id."""
        self.runs = False
        """A handler was started in it."""
        self.mark = ""
        self.row: Any = None
        """The record as only this transaction sees it."""
        self.writes: list[tuple[Verb, Any, float]] = []
        """What was carried out, with the outcome and by which time."""
        self.business_rows = 0


class Connection:
    """A connection as its client knows it."""

    __slots__ = ("arrives_at", "broken", "transaction")

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.broken = False
        self.arrives_at = 0.0
        """When the server will have carried out what was sent last."""
