"""`intents`: list, resume or settle what a client's journal holds that was never settled."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from oncekey._core.key import short_hash
from oncekey._core.printable import printable
from oncekey._system.clock import SystemClock
from oncekey.cli.output import duration, one_line, print_json, table
from oncekey.cli.recover import load
from oncekey.client._intent import LIST_MAX, Intent
from oncekey.client._journal import Journal
from oncekey.client._sql_journal import SqlJournal
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.stores.urls import must_be_readable, redact, scrub

NOTHING = 1
"""The exit code when there is nothing to show, or to resume."""
FAILED = 2
ERROR_CHARS_MAX = 300


def intents(args: argparse.Namespace) -> int:
    with open_journal(args.journal) as journal:
        if args.settle is not None:
            return _settle(journal, args)
        return _resume(journal, args) if args.resume else _list(journal, args)


def _list(journal: OpenJournal, args: argparse.Namespace) -> int:
    found = journal.unsettled(args.limit)
    now = SystemClock.wall()
    if args.json:
        print_json({"intents": [_as_json(intent, now, args.show_keys) for intent in found]})
    elif found:
        print(_table(found, now, args.show_keys))
        _advise(found, now)
    if not found:
        print("every intent is settled", file=sys.stderr)
    return 0 if found else NOTHING


def _advise(found: list[Intent], now: float) -> None:
    """Say what to do next."""
    old = sum(now >= intent.until for intent in found)
    if len(found) > old:
        print(
            f"{len(found) - old} can be sent again, with the same key: start the application that "
            "began them, or add --resume MODULE:FUNCTION",
            file=sys.stderr,
        )
    if old:
        print(
            f"{old} cannot: the server has forgotten the key. Find out there whether it was done, "
            "then run with --settle NAME",
            file=sys.stderr,
        )


def _settle(journal: OpenJournal, args: argparse.Namespace) -> int:
    found = journal.find(args.settle)
    if found is None:
        print(f"no unsettled intent is called {args.settle!r}", file=sys.stderr)
        return NOTHING
    journal.settle(found)
    if args.json:
        print_json({"settled": args.settle})
    else:
        print(f"settled {args.settle!r}; beginning it again makes a new key")
    return 0


# ------------------------------------------------------------------------------------------ resume


def _resume(journal: OpenJournal, args: argparse.Namespace) -> int:
    """Call a function of the application with each intent that may be sent, and settle it if the
    function returns. If it fails, the intent stays for the next time and the others go on.
    """
    resume = load(args.resume)
    counts = {"resumed": 0, "failed": 0, "too_old": 0}
    for intent in _all(journal):
        if SystemClock.wall() >= intent.until:  # check now: those before it took time
            counts["too_old"] += 1
            continue
        failed = _failure(resume, intent)
        if failed is None:
            journal.settle(intent)
        counts["resumed" if failed is None else "failed"] += 1
        if not args.json:
            print(f"{printable(intent.name)}: {failed or 'resumed and settled'}")
    if args.json:
        print_json(counts)
    elif counts["too_old"]:
        print(f"{counts['too_old']} too old to send: see `oncekey intents`", file=sys.stderr)
    if counts["failed"]:
        return FAILED
    return 0 if counts["resumed"] else NOTHING


def _all(journal: OpenJournal) -> Iterator[Intent]:
    """Read all pages: intents that stay would otherwise hide those after them."""
    page = journal.unsettled(LIST_MAX)
    yield from page
    while len(page) == LIST_MAX:
        page = journal.unsettled(LIST_MAX, after=page[-1])
        yield from page


def _failure(resume: Any, intent: Intent) -> str | None:
    try:
        result = resume(intent)
        if inspect.isawaitable(result):
            asyncio.run(_await(result))
    except Exception as error:
        message = one_line(str(error), ERROR_CHARS_MAX)
        return f"failed, stays in the journal: {type(error).__name__}: {message}"
    return None


async def _await(result: Any) -> None:
    await result


# -------------------------------------------------------------------------------------------- rows


def _table(found: list[Intent], now: float, show_keys: bool) -> str:
    rows = [
        (
            intent.name,
            intent.key if show_keys else short_hash(intent.key),
            f"{duration(now - intent.begun)} ago",
            f"for {duration(intent.until - now)}" if now < intent.until else "no: too old",
            intent.origin or "-",
        )
        for intent in found
    ]
    header = ["INTENT", "KEY" if show_keys else "KEY HASH", "BEGUN", "MAY BE SENT", "TO"]
    return table(header, rows)


def _as_json(intent: Intent, now: float, show_keys: bool) -> dict[str, object]:
    key = {"key": intent.key} if show_keys else {"key_hash": short_hash(intent.key)}
    return {
        "name": intent.name,
        **key,
        "begun": intent.begun,
        "until": intent.until,
        "may_be_sent": now < intent.until,
        "origin": intent.origin,
        "note": intent.note,
    }


# --------------------------------------------------- the journal: a file, or a database by its URL


class OpenJournal(Protocol):
    """What this command needs of a journal, in a file or in a database."""

    def unsettled(self, limit: int = LIST_MAX, *, after: Intent | None = None) -> list[Intent]: ...

    def find(self, name: str) -> Intent | None: ...

    def settle(self, intent: Intent) -> None:
        """Settle it durably, unless it was settled meanwhile and begun again."""


class _JournalFile:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.unsettled = journal.unsettled
        self.find = journal.find

    def settle(self, intent: Intent) -> None:
        self._journal.settle(intent.name, key=intent.key)
        self._journal.flush()


class _JournalDatabase:
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
def open_journal(where: str) -> Iterator[OpenJournal]:
    """Open the journal that a command line names."""
    scheme, separator, _ = where.partition("://")
    if not separator:
        with _open_file(Path(where)) as journal:
            yield journal
        return
    if scheme not in _CONNECT:
        raise Misuse(
            f"{redact(where)}: give the file that Journal(…) was given, or the URL of the database "
            f"that a SqlJournal is in: {', '.join(f'{each}://…' for each in _CONNECT)}"
        )
    must_be_readable(where, f"{scheme}://user:password@host/database")
    with _translate_errors(where), closing(_CONNECT[scheme](where)) as connection:
        yield _JournalDatabase(connection)


@contextmanager
def _open_file(path: Path) -> Iterator[OpenJournal]:
    if not path.is_file():  # opening would create it and hide a wrong path
        raise Misuse(f"there is no file {path}: give the path that Journal(…) was given")
    if _has_table(path, "oncekey_journal"):
        with _translate_errors(str(path)), closing(sqlite3.connect(path)) as connection:
            yield _JournalDatabase(connection)
    elif _has_table(path, "oncekey_intents"):
        with Journal(path) as journal:
            yield _JournalFile(journal)
    else:
        raise Misuse(f"{path} holds no intents: is it the file that Journal(…) was given?")


def _has_table(path: Path, table: str) -> bool:
    query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            [(count,)] = db.execute(query, (table,)).fetchall()
    except sqlite3.DatabaseError as error:
        raise StoreUnavailable(f"{path} cannot be read: {error}") from error
    return bool(count)


@contextmanager
def _translate_errors(url: str) -> Iterator[None]:
    """Turn a driver's own errors, which may repeat the password, into ours."""
    try:
        yield
    except ImportError as error:
        raise Misuse(f"{redact(url)}: its driver is missing: pip install {error.name}") from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _DRIVERS:
            raise
        message = scrub(url, str(error).replace(url, redact(url)))
        raise StoreUnavailable(f"{redact(url)}: {message}") from None


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
