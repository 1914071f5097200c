"""Stores around another store, which keeps the records: sealed and tiered.

In a separate module because those two need drivers that are optional.
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
    """Whether it only caches: without it no record is lost."""

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
        """Pass on attributes of one kind of store, such as SQLite's file."""
        if name.startswith("_") or name == "inner":  # a copy has no attributes yet
            raise AttributeError(name)
        return getattr(self.inner, name)


def innermost(store: Store) -> Store:
    """Return the store that keeps the records, within encryption and caches."""
    return innermost(store.inner) if isinstance(store, StoreAround) else store


def without_cache(store: Store) -> Store:
    """Return a store of the same records that works while their cache is down."""
    if not isinstance(store, StoreAround):
        return store
    inner = without_cache(store.inner)
    if store.is_cache:
        return inner
    bare = copy.copy(store)
    bare.inner = inner
    return bare
