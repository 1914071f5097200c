"""Stores around stores: asked like the one within, which keeps the records.

Here, and not beside those that are one, because they need drivers that not everybody has.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

from oncekey.stores.base import Durability, Store


class Around:
    """A store around another one."""

    is_cache: ClassVar = False
    """Whether nothing is lost without it."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.name: str = inner.name
        self.durability: Durability = inner.durability

    def __getattr__(self, name: str) -> Any:
        """What only one kind of store has, such as the file of SQLite."""
        if name.startswith("_") or name == "inner":  # a copy has nothing yet when it is asked
            raise AttributeError(name)
        return getattr(self.inner, name)


def keeper(store: Store) -> Store:
    """The store that keeps the records: within what seals them, and behind what remembers them."""
    return keeper(store.inner) if isinstance(store, Around) else store


def without_cache(store: Store) -> Store:
    """A store of the same records that can be asked while their cache is down."""
    if not isinstance(store, Around):
        return store
    inner = without_cache(store.inner)
    if store.is_cache:
        return inner
    bare = copy.copy(store)
    bare.inner = inner
    return bare
