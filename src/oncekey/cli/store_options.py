"""Opening the store that a command is about: where it is, and whether it is what it should be."""

from __future__ import annotations

import argparse
import os
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

from oncekey._core.notice import NOTICE_ID, read_notice
from oncekey._core.verbs import Find
from oncekey.errors import Misuse, StoreUnfit
from oncekey.stores.base import Store
from oncekey.stores.connection import StoreConnection
from oncekey.stores.sqlite.store import may_hold_records
from oncekey.stores.urls import Unsealed, open_store

ENVIRONMENT = "ONCEKEY_STORE"
SECRETS = "ONCEKEY_SECRETS"


def url_of(args: argparse.Namespace) -> str:
    """Which store a command was given; empty where it was given none, or needs none."""
    return getattr(args, "url", None) or os.environ.get(ENVIRONMENT, "")


def opened(url: str, *, may_create: bool) -> Store:
    """The store of a URL, sealed where the environment has its secrets."""
    if not url:
        raise Misuse(f"which store? Give its URL, or set {ENVIRONMENT}, as in sqlite:///keys.db")
    # Empty is as good as unset here: `must_open` refuses what is sealed, and needs them.
    store = open_store(url, secrets=os.environ.get(SECRETS) or Unsealed.UNSEALED)
    if store.name == "memory":
        raise Misuse("memory:// lives inside the application and cannot be seen from here")
    parts = urlsplit(url)
    if parts.scheme.lower() == "sqlite" and not may_create:
        _must_be_there(Path(unquote(parts.path[1:])).absolute())
    return store


def _must_be_there(path: Path) -> None:
    """Opening a file would make it, or make it a store, and hide that the path is wrong."""
    try:
        path.stat()
    except FileNotFoundError:
        raise Misuse(
            f"there is no file {path}. sqlite:///x is relative to the current folder, "
            "sqlite:////x is absolute; `oncekey migrate` makes a new one"
        ) from None
    except OSError as error:
        raise Misuse(
            f"{path} cannot be reached: {error.strerror}; run this as the user that the "
            "application runs as"
        ) from None
    if not may_hold_records(path):
        raise Misuse(
            f"{path} holds no records of oncekey: is it the right file? If it is meant to, "
            "`oncekey migrate` makes their tables in it"
        )


def must_open(store: Store) -> None:
    """Refuse a sealed store for which no secrets were given: nothing in it would be found, and what
    is written beside it nobody would read.
    """
    with closing(StoreConnection(store)) as line:
        [found] = line.perform([Find(NOTICE_ID)])
    try:
        read_notice(found)
    except StoreUnfit:
        raise Misuse(
            f"the records of this store are sealed: set {SECRETS} to the application's secrets"
        ) from None
