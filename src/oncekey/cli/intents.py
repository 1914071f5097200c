"""`intents`: what a client's journal holds that was begun and never settled."""

from __future__ import annotations

import argparse
import asyncio
import inspect
import sys
from collections.abc import Iterator
from typing import Any

from oncekey._core.key import short_hash
from oncekey._core.printable import printable
from oncekey._system.clock import SystemClock
from oncekey.cli.journals import Book, opened
from oncekey.cli.output import duration, one_line, print_json, table
from oncekey.cli.recover import load
from oncekey.client._intent import LIST_MAX, Intent

NOTHING = 1
"""The exit code when there is nothing to show, or to resume."""
FAILED = 2
ERROR_CHARS_MAX = 300


def intents(args: argparse.Namespace) -> int:
    with opened(args.journal) as book:
        if args.settle is not None:
            return _settle(book, args)
        return _resume(book, args) if args.resume else _list(book, args)


def _list(book: Book, args: argparse.Namespace) -> int:
    found = book.unsettled(args.limit)
    now = SystemClock.wall()
    if args.json:
        print_json({"intents": [_described(intent, now, args.show_keys) for intent in found]})
    elif found:
        print(_listed(found, now, args.show_keys))
        _advise(found, now)
    if not found:
        print("every intent is settled", file=sys.stderr)
    return 0 if found else NOTHING


def _advise(found: list[Intent], now: float) -> None:
    """Whose move it is."""
    old = sum(now >= intent.until for intent in found)
    if len(found) > old:
        print(
            f"{len(found) - old} may be sent again, with the same key: start the application that "
            "began them, or give --resume MODULE:FUNCTION",
            file=sys.stderr,
        )
    if old:
        print(
            f"{old} may not: the server has forgotten the key. Find out there whether it was done, "
            "then --settle NAME",
            file=sys.stderr,
        )


def _settle(book: Book, args: argparse.Namespace) -> int:
    found = book.find(args.settle)
    if found is None:
        print(f"no unsettled intent is called {args.settle!r}", file=sys.stderr)
        return NOTHING
    book.settle(found)
    if args.json:
        print_json({"settled": args.settle})
    else:
        print(f"settled {args.settle!r}; whoever begins it anew gets a new key")
    return 0


# ------------------------------------------------------------------------------------------ resume


def _resume(book: Book, args: argparse.Namespace) -> int:
    """Give each that may be sent to a function of the application; what it returns from is settled.

    One that fails does not keep the others: it stays, for the next time.
    """
    resume = load(args.resume)
    counts = {"resumed": 0, "failed": 0, "too_old": 0}
    for intent in _all(book):
        if SystemClock.wall() >= intent.until:  # by now: those before it took their time
            counts["too_old"] += 1
            continue
        failed = _failure(resume, intent)
        if failed is None:
            book.settle(intent)
        counts["resumed" if failed is None else "failed"] += 1
        if not args.json:
            print(f"{printable(intent.name)}: {failed or 'resumed and settled'}")
    if args.json:
        print_json(counts)
    elif counts["too_old"]:
        print(f"{counts['too_old']} too old to be sent: see `oncekey intents`", file=sys.stderr)
    if counts["failed"]:
        return FAILED
    return 0 if counts["resumed"] else NOTHING


def _all(book: Book) -> Iterator[Intent]:
    """However many there are: those that stay would hide the others for good."""
    page = book.unsettled(LIST_MAX)
    yield from page
    while len(page) == LIST_MAX:
        page = book.unsettled(LIST_MAX, after=page[-1])
        yield from page


def _failure(resume: Any, intent: Intent) -> str | None:
    try:
        made = resume(intent)
        if inspect.isawaitable(made):
            asyncio.run(_awaited(made))
    except Exception as error:
        said = one_line(str(error), ERROR_CHARS_MAX)
        return f"failed, and stays: {type(error).__name__}: {said}"
    return None


async def _awaited(made: Any) -> None:
    await made


# -------------------------------------------------------------------------------------------- rows


def _listed(found: list[Intent], now: float, show_keys: bool) -> str:
    rows = [
        (
            intent.name,
            intent.key if show_keys else short_hash(intent.key),
            f"{duration(now - intent.begun)} ago",
            f"for {duration(intent.until - now)}" if now < intent.until else "no more: look first",
            intent.origin or "-",
        )
        for intent in found
    ]
    header = ["INTENT", "KEY" if show_keys else "KEY HASH", "BEGUN", "MAY BE SENT", "TO"]
    return table(header, rows)


def _described(intent: Intent, now: float, show_keys: bool) -> dict[str, object]:
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
