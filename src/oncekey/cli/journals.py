"""Where the intents of a client are kept: a file, or a database by its URL."""

from __future__ import annotations

import importlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from oncekey.client._intent import LIST_MAX, Intent
from oncekey.client._journal import Journal
from oncekey.client._sql_journal import SqlJournal
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.stores.urls import must_be_readable, redact, scrub


class Book(Protocol):
    """What both kinds of journals can do here."""

    def unsettled(self, limit: int = LIST_MAX, *, after: Intent | None = None) -> list[Intent]: ...

    def find(self, name: str) -> Intent | None: ...

    def settle(self, intent: Intent) -> None:
        """Durably, at once; unless somebody has settled it meanwhile, and begun it anew."""


class _File:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.unsettled = journal.unsettled
        self.find = journal.find

    def settle(self, intent: Intent) -> None:
        self._journal.settle(intent.name, key=intent.key)
        self._journal.flush()


class _Database:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._journal = SqlJournal()

    def unsettled(self, limit: int = LIST_MAX, *, after: Intent | None = None) -> list[Intent]:
        found = self._journal.unsettled(within=self._connection, limit=limit, after=after)
        self._connection.commit()
        return found

    def find(self, name: str) -> Intent | None:
        found = self._journal.find(name, within=self._connection)
        self._connection.commit()
        return found

    def settle(self, intent: Intent) -> None:
        self._journal.settle(intent.name, within=self._connection, key=intent.key)
        self._connection.commit()


@contextmanager
def opened(where: str) -> Iterator[Book]:
    """The journal that somebody names on the command line."""
    scheme, separator, _ = where.partition("://")
    if not separator:
        with _opened_file(Path(where)) as book:
            yield book
        return
    if scheme not in _CONNECT:
        raise Misuse(
            f"{redact(where)}: give the file that Journal(…) was given, or the URL of the database "
            f"that a SqlJournal is in: {', '.join(f'{each}://…' for each in _CONNECT)}"
        )
    must_be_readable(where, f"{scheme}://user:password@host/database")
    with _telling(where), closing(_CONNECT[scheme](where)) as connection:
        yield _Database(connection)


@contextmanager
def _opened_file(path: Path) -> Iterator[Book]:
    if not path.is_file():  # opening it would make it, and hide that the path is wrong
        raise Misuse(f"there is no file {path}: give the path that Journal(…) was given")
    if _holds(path, "oncekey_journal"):
        with _telling(str(path)), closing(sqlite3.connect(path)) as connection:
            yield _Database(connection)
    elif _holds(path, "oncekey_intents"):
        with Journal(path) as journal:
            yield _File(journal)
    else:
        raise Misuse(f"{path} holds no intents: is it the file that Journal(…) was given?")


def _holds(path: Path, table: str) -> bool:
    query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            [(count,)] = db.execute(query, (table,)).fetchall()
    except sqlite3.DatabaseError as error:
        raise StoreUnavailable(f"{path} cannot be read: {error}") from error
    return bool(count)


@contextmanager
def _telling(url: str) -> Iterator[None]:
    """A driver's own errors are many, and may repeat the password."""
    try:
        yield
    except ImportError as error:
        raise Misuse(f"{redact(url)}: its driver is missing: pip install {error.name}") from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _DRIVERS:
            raise
        said = scrub(url, str(error).replace(url, redact(url)))
        raise StoreUnavailable(f"{redact(url)}: {said}") from None


def _postgres(url: str) -> Any:
    return importlib.import_module("psycopg").connect(url)


def _mysql(url: str) -> Any:
    parts = urlsplit(url)
    return importlib.import_module("pymysql").connect(
        host=parts.hostname or "localhost",
        port=parts.port or 3306,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=unquote(parts.path.lstrip("/")),
    )


_DRIVERS = ("psycopg", "pymysql", "sqlite3")
_CONNECT: dict[str, Callable[[str], Any]] = {
    "postgresql": _postgres,
    "postgres": _postgres,
    "mysql": _mysql,
    "mariadb": _mysql,
}
