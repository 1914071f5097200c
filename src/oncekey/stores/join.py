"""Joining: asking a store's questions on a connection that is the caller's, in its transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oncekey.core.verbs import Verb
from oncekey.errors import Misuse
from oncekey.stores.base import Store


def perform(store: Store, connection: Any, verbs: Sequence[Verb]) -> list[Any]:
    """Carry out verbs on `connection`, in the transaction that is open there."""
    raise Misuse(f"{store.name} cannot join {type(connection).__name__}")


async def aperform(store: Store, connection: Any, verbs: Sequence[Verb]) -> list[Any]:
    """The same for async connections and sessions."""
    raise Misuse(f"{store.name} cannot join {type(connection).__name__}")
