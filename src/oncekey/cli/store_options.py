"""Open the store that a command names, and check that it is one."""

from __future__ import annotations

import argparse
import os
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

from oncekey._core.notice import NOTICE_ID, read_notice
from oncekey._core.verbs import Find
from oncekey.errors import Misuse, StoreUnfit
from oncekey.stores.base import Store, traits_of
from oncekey.stores.connection import StoreConnection
from oncekey.stores.sqlite.store import may_hold_records
from oncekey.stores.urls import Unsealed, open_store

ENVIRONMENT = "ONCEKEY_STORE"
SECRETS = "ONCEKEY_SECRETS"


def url_of(args: argparse.Namespace) -> str:
    """Return the store's URL, from the command line or the environment; empty if there is none."""
    return getattr(args, "url", None) or os.environ.get(ENVIRONMENT, "")


def open_named(url: str, *, may_create: bool) -> Store:
    """Open the store of a URL, with the secrets that the environment has."""
    if not url:
        raise Misuse(f"which store? Give its URL, or set {ENVIRONMENT}, as in sqlite:///keys.db")
    # An empty variable counts as unset: `require_secrets` refuses a sealed store without them.
    store = open_store(url, secrets=os.environ.get(SECRETS) or Unsealed.UNSEALED)
    if traits_of(store).in_process:
        raise Misuse("memory:// lives inside the application and cannot be seen from here")
    parts = urlsplit(url)
    if parts.scheme.lower() == "sqlite" and not may_create:
        _check_file(Path(unquote(parts.path[1:])).absolute())
    return store


def _check_file(path: Path) -> None:
    """Refuse a wrong path: opening it would create the file, or make it a store."""
    try:
        path.stat()
    except FileNotFoundError:
        raise Misuse(
            f"there is no file {path}. sqlite:///x is relative to the current folder, "
            "sqlite:////x is absolute; `oncekey migrate` creates a new one"
        ) from None
    except OSError as error:
        raise Misuse(
            f"{path} cannot be read: {error.strerror}; run this as the user of the application"
        ) from None
    if not may_hold_records(path):
        raise Misuse(
            f"{path} has no tables of oncekey: is it the right file? If it is, `oncekey migrate` "
            "creates them"
        )


def require_secrets(store: Store) -> None:
    """Refuse a sealed store without its secrets: a command would find nothing in it, and nobody
    could read what it wrote.
    """
    with closing(StoreConnection(store)) as connection:
        [found] = connection.perform([Find(NOTICE_ID)])
    try:
        read_notice(found)
    except StoreUnfit:
        raise Misuse(
            f"the records of this store are sealed: set {SECRETS} to the application's secrets"
        ) from None
