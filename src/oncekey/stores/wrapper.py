"""Stores around stores: asked like the one within, which keeps the records.

Here, and not beside those that are one, because they need drivers that not everybody has.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import Any, ClassVar

from oncekey.stores.base import (
    Durability,
    Store,
    Traits,
    Transactions,
    location_of,
    outbox_of,
    traits_of,
    transactions_of,
)
from oncekey.stores.outbox import OutboxTable


class StoreAround:
    """A store around another one, with the capabilities of that one."""

    is_cache: ClassVar = False
    """Whether nothing is lost without it."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.name: str = inner.name
        self.durability: Durability = inner.durability

    @property
    def traits(self) -> Traits:
        return traits_of(self.inner)

    @property
    def transactions(self) -> Transactions | None:
        return transactions_of(self.inner)

    @property
    def outbox(self) -> OutboxTable | None:
        return outbox_of(self.inner)

    @property
    def location(self) -> Hashable:
        """A cache changes nothing; another store around it keeps records of its own."""
        inner = location_of(self.inner)
        return inner if self.is_cache else (type(self).__name__, inner)

    def __getattr__(self, name: str) -> Any:
        """What only one kind of store has, such as the file of SQLite."""
        if name.startswith("_") or name == "inner":  # a copy has nothing yet when it is asked
            raise AttributeError(name)
        return getattr(self.inner, name)


def keeper(store: Store) -> Store:
    """The store that keeps the records: within what seals them, and behind what remembers them."""
    return keeper(store.inner) if isinstance(store, StoreAround) else store


def without_cache(store: Store) -> Store:
    """A store of the same records that can be asked while their cache is down."""
    if not isinstance(store, StoreAround):
        return store
    inner = without_cache(store.inner)
    if store.is_cache:
        return inner
    bare = copy.copy(store)
    bare.inner = inner
    return bare
