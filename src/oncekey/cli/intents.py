"""`intents`: what a client's journal holds that was begun and never settled."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from oncekey.cli.table import duration, print_json, table
from oncekey.client.intent import Intent
from oncekey.client.journal import Journal
from oncekey.clock import SystemClock
from oncekey.core.key import short_hash
from oncekey.errors import Misuse

NOTHING = 1
"""The exit code when there is nothing to show."""


def intents(args: argparse.Namespace) -> int:
    if not Path(args.file).is_file():  # opening it would make it, and hide that the path is wrong
        raise Misuse(f"there is no file {args.file}: give the path that Journal(…) was given")
    with Journal(args.file) as journal:
        return _settle(journal, args) if args.settle else _list(journal, args)


def _list(journal: Journal, args: argparse.Namespace) -> int:
    found = journal.unsettled(args.limit)
    now = SystemClock.wall()
    if args.json:
        print_json({"intents": [_described(intent, now, args.show_keys) for intent in found]})
    elif found:
        print(_listed(found, now, args.show_keys))
    if not found:
        print("every intent is settled", file=sys.stderr)
    return 0 if found else NOTHING


def _settle(journal: Journal, args: argparse.Namespace) -> int:
    known = {intent.name for intent in journal.unsettled()}
    if args.settle not in known:
        print(f"no unsettled intent is called {args.settle!r}", file=sys.stderr)
        return NOTHING
    journal.settle(args.settle)
    journal.flush()
    if args.json:
        print_json({"settled": args.settle})
    else:
        print(f"settled {args.settle!r}; whoever begins it anew gets a new key")
    return 0


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
