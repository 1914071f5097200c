"""Maintain a store: `migrate`, `sweep`, `purge`."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable
from contextlib import closing

from oncekey._core.record import State
from oncekey._core.reserved_records import TENANT as OWN
from oncekey._core.verbs import Purge, Scan, Sweep
from oncekey._engine.sweeper import SWEEP_PAUSE_S, SWEEP_ROWS_MAX
from oncekey.cli.output import Progress, one_line, print_json
from oncekey.errors import Misuse, StoreUnavailable, StoreUnfit
from oncekey.stores import urls
from oncekey.stores.base import Store
from oncekey.stores.connection import StoreConnection
from oncekey.stores.postgres.layouts import MoveProgress, move


def migrate(store: Store, args: argparse.Namespace) -> int:
    applied = urls.migrate(store)
    moved = None if args.layout is None else _move_answers(store, args.layout)
    if args.json:
        print_json({"applied": applied} | ({} if moved is None else {"moved": moved}))
        return 0
    print("\n".join(f"applied {name}" for name in applied) or "up to date: nothing to apply")
    if moved is not None:
        print(f"layout {args.layout}: moved {_records(moved)}")
    return 0


def _move_answers(store: Store, layout: str) -> int:
    """Move responses that are in another layout, and pause after each batch that moved some."""
    progress, pause, before = Progress(), threading.Event(), 0

    def watch(moved: MoveProgress | None) -> None:
        nonlocal before
        if moved is None:
            progress.say("waiting for transactions that began earlier")
            pause.wait(SWEEP_PAUSE_S)
            return
        progress.say(f"to {moved.to}: {moved.share:.0%}, {_records(moved.records)} moved")
        if moved.records != before:
            pause.wait(SWEEP_PAUSE_S)
        before = moved.records

    try:
        return move(store, layout, watch)
    finally:
        progress.clear()


# ------------------------------------------------------------------------ sweep


def sweep(store: Store, args: argparse.Namespace) -> int:
    with closing(StoreConnection(store)) as connection:
        if not args.watch:
            _report_sweep(_sweep(connection, args.limit), args)
            return 0
        return _watch(connection, args)


def _watch(connection: StoreConnection, args: argparse.Namespace) -> int:
    """Sweep again and again until interrupted. A store that is unavailable for a while does not end
    it, nor one that becomes unfit, as during a failover.
    """
    if not args.json:
        print(f"sweeping every {args.every_s:g} s; Ctrl-C ends it", file=sys.stderr)
    pause, was_fit = threading.Event(), False
    try:
        while True:
            try:
                _report_sweep(_sweep(connection, args.limit), args)
                was_fit = True
            except (StoreUnavailable, StoreUnfit) as error:
                if isinstance(error, StoreUnfit) and not was_fit:
                    raise
                message = one_line(str(error))
                print(f"oncekey: {message}; trying again in {args.every_s:g} s", file=sys.stderr)
            pause.wait(args.every_s)
    except KeyboardInterrupt:
        return 0


def _sweep(connection: StoreConnection, limit: int) -> int:
    return in_batches(
        lambda rows: int(connection.perform([Sweep(rows)])[0]), limit, "removed {:,} so far"
    )


def _report_sweep(removed: int, args: argparse.Namespace) -> None:
    stopped = removed >= args.limit
    if args.json:
        print_json({"removed": removed, "limit_reached": stopped})
        return
    more = f"; stopped at --limit {args.limit}, there may be more" if stopped else ""
    print(f"removed {_records(removed, 'expired ')}{more}", flush=True)


# ------------------------------------------------------------------------ purge


def purge(store: Store, args: argparse.Namespace) -> int:
    if args.tenant == OWN:
        raise Misuse(
            f"the records of tenant {OWN!r} belong to oncekey itself, not to an account: without "
            "them, processes would not start or would run finished requests again"
        )
    with closing(StoreConnection(store)) as connection:
        blanked = in_batches(
            lambda rows: int(connection.perform([Purge(args.tenant, rows)])[0]),
            args.limit,
            "blanked {:,} so far",
        )
        [running] = connection.perform([Scan(1, state=State.RUNNING, tenant=args.tenant)])
    left = bool(running) or blanked >= args.limit
    if args.json:
        print_json({"blanked": blanked, "complete": not left})
        return 0
    if blanked:
        print(
            f"blanked {_records(blanked)} of tenant {args.tenant!r}; "
            "their ids stay until they expire"
        )
    else:
        print(
            f"nothing to blank: tenant {args.tenant!r} has no finished records, or they are blank "
            "already; `oncekey list` shows the tenants"
        )
    if left:
        print(
            "not complete: requests of this tenant still run, or --limit was reached; run it again",
            file=sys.stderr,
        )
    return 0


# ------------------------------------------------------------------------ both


def in_batches(batch: Callable[[int], int], limit: int, says: str) -> int:
    """Call `batch` with a number of rows until it finds no more or `limit` is reached.

    Pauses after each batch, so that maintenance does not slow the store down.
    """
    total, progress, pause = 0, Progress(), threading.Event()
    try:
        while total < limit:
            count = batch(min(SWEEP_ROWS_MAX, limit - total))
            total += count
            if count == 0:
                break
            progress.say(says.format(total))
            pause.wait(SWEEP_PAUSE_S if count >= SWEEP_ROWS_MAX else 0)
    finally:
        progress.clear()
    return total


def _records(count: int, what: str = "") -> str:
    return f"{count:,} {what}record{'' if count == 1 else 's'}"
