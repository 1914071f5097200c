"""Migrate: bring a store's schema up to date from code, as the command `oncekey migrate` does."""

from __future__ import annotations

from contextlib import closing

from oncekey._core.op import run
from oncekey.stores.base import Store
from oncekey.stores.urls import as_store


def migrate(store: str | Store) -> list[str]:
    """Create or change what a store keeps its records in; the names of what was applied, none if it
    is up to date. Safe to run twice, and beside running code. Raises `StoreUnavailable`.
    """
    opened = as_store(store)
    with closing(opened.connect()) as connection:
        return run(opened.migrate(), connection.ask)
