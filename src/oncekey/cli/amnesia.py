"""`amnesia`: raise, lower or show the guard for a store that lost acknowledged records."""

from __future__ import annotations

import argparse
from contextlib import closing
from datetime import UTC, datetime

from oncekey._core.notice import (
    AMNESIA,
    NOTICE_ID,
    Amnesia,
    encode_amnesia,
    notice_claim,
    read_notice,
)
from oncekey._core.record import Record
from oncekey._core.reserved_records import reserved_swap
from oncekey._core.verbs import Done, Find, Insert
from oncekey._engine.notices import LOOK_EVERY_S
from oncekey._system.chance import random_token
from oncekey.cli.output import duration, print_json
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.stores.base import Store
from oncekey.stores.connection import StoreConnection
from oncekey.stores.wrapper import without_cache

ROUNDS_MAX = 8


def amnesia(store: Store, args: argparse.Namespace) -> int:
    if args.lower and args.until is not None:
        raise Misuse("--until raises the guard, --lower ends it: give one of them")
    # The guard is in no cache: it can be raised and lowered while that is down.
    with closing(StoreConnection(without_cache(store))) as connection:
        if args.until is not None or args.lower:
            raised = None if args.lower else Amnesia(args.until, args.skew_s)
            _write(connection, raised, args.for_s)
        [found] = connection.perform([Find(NOTICE_ID)])
    guard = read_notice(found)
    ends_in_s = 0.0 if guard is None or found is None else found.expires_in_s
    if args.json:
        fields = None if guard is None else {"until": guard.until, "skew_s": guard.skew_s}
        print_json({"guard": fields, "ends_in_s": round(ends_in_s, 3)})
        return 0
    print(_describe(guard, ends_in_s))
    if args.until is not None or args.lower:
        print(f"running processes see this within {LOOK_EVERY_S:g} s, others at once")
    return 0


def _write(connection: StoreConnection, guard: Amnesia | None, for_s: float) -> None:
    for _ in range(ROUNDS_MAX):
        found: Record | None
        [found] = connection.perform([Find(NOTICE_ID)])
        if found is None:
            connection.perform([Insert(notice_claim(AMNESIA, random_token(), for_s))])
            continue
        read_notice(found)
        swap = reserved_swap(found, encode_amnesia(guard), random_token(), for_s)
        [outcome] = connection.perform([swap])
        if isinstance(outcome, Done):
            return
    raise StoreUnavailable("other commands keep changing the guard: try again", sent=True)


def _describe(guard: Amnesia | None, ends_in_s: float) -> str:
    if guard is None:
        return "the amnesia guard is not raised"
    lost = datetime.fromtimestamp(guard.until, UTC).isoformat(timespec="seconds")
    return (
        f"the amnesia guard is raised for another {duration(ends_in_s)}: a key that has no record "
        f"is not run unless it was made after {lost} (and {guard.skew_s:g} s). Its outcome is "
        "unknown: `oncekey list --unknown`"
    )
