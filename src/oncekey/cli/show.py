"""`show`, `list` and `count` records. Nothing here changes one."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing

from oncekey._core.key import short_hash
from oncekey._core.printable import printable
from oncekey._core.record import Record, State
from oncekey._core.verbs import Count, Scan, Steps
from oncekey.cli.output import duration, facts, print_json, table
from oncekey.cli.records import (
    ID_BYTES,
    answer_json,
    answer_text,
    expiry_text,
    find_by_digits,
    find_by_key,
    id_digits,
    record_json,
    record_lines,
    shown_key,
    state_text,
)
from oncekey.errors import Misuse
from oncekey.stores.base import Store
from oncekey.stores.connection import StoreConnection

ID_DIGITS_SHOWN = 16
NOTHING = 1
"""The exit code if there is nothing to show."""


# ------------------------------------------------------------------------ list


def list_(store: Store, args: argparse.Namespace) -> int:
    after = id_digits(args.after).ljust(ID_BYTES * 2, "f") if args.after else ""
    state = State(args.state) if args.state else None
    scan = Scan(args.limit + 1, after=bytes.fromhex(after), state=state, tenant=args.tenant)
    with closing(StoreConnection(store)) as connection:
        [records] = connection.perform([scan])
    more = records[args.limit - 1].id.hex() if len(records) > args.limit else None
    records = records[: args.limit]
    if args.json:
        shown = [record_json(record, show_key=args.show_keys) for record in records]
        print_json({"records": shown, "next": more})
    elif records:
        print(_table(records, show_keys=args.show_keys))
    if not records:
        print("no records" + (" match" if state or args.tenant else ""), file=sys.stderr)
        return NOTHING
    if more:
        print(f"{len(records)} shown, there are more: add --after {more}", file=sys.stderr)
    return 0


def _table(records: list[Record], *, show_keys: bool) -> str:
    header = ["ID", "STATE", "TENANT", "OPERATION", "KEY" if show_keys else "KEY HASH"]
    rows = [
        (
            record.id.hex()[:ID_DIGITS_SHOWN],
            state_text(record),
            record.tenant,
            record.operation,
            shown_key(record, show_key=show_keys),
            record.attempt,
            f"{duration(record.age_s)} ago",
            expiry_text(record),
        )
        for record in records
    ]
    return table([*header, "ATTEMPT", "FIRST ATTEMPT", "EXPIRES"], rows)


# ------------------------------------------------------------------------ show


def show(store: Store, args: argparse.Namespace) -> int:
    if args.key is not None and args.tenant is None:
        raise Misuse("--key needs --tenant: each tenant has its own keys")
    with closing(StoreConnection(store)) as connection:
        record = _find(connection, args)
        if record is None:
            print(_not_found(args), file=sys.stderr)
            return NOTHING
        [steps] = connection.perform([Steps(record.id)])
    if args.json:
        whole = record_json(record, show_key=args.show_keys)
        whole["steps"] = [{"name": step.name, "done": step.result is not None} for step in steps]
        if args.body:
            whole["answer"] = answer_json(record.answer)
        print_json(whole)
        return 0
    print(facts(record_lines(record, steps, show_key=args.show_keys)))
    if args.body and record.answer is not None:
        print(f"\n{answer_text(record.answer)}")
    return 0


def _find(connection: StoreConnection, args: argparse.Namespace) -> Record | None:
    if args.id is not None:
        return find_by_digits(connection, args.id)
    return find_by_key(connection, args.tenant, args.operation, args.key)


def _not_found(args: argparse.Namespace) -> str:
    if args.id:
        return "no record has this id: it expired and was swept, or it is in another store"
    tenant = printable(args.tenant)
    if args.operation:
        what = f"this key for operation {printable(args.operation)!r}: check its spelling"
    else:
        what = "this key for all operations together: add --operation, if keys belong to one"
    return (
        f"tenant {tenant!r} has no record of {what}. `oncekey list --tenant {tenant}` shows what "
        f"there is; the hash of this key is {short_hash(args.key)}"
    )


# ------------------------------------------------------------------------ count


def count(store: Store, args: argparse.Namespace) -> int:
    with closing(StoreConnection(store)) as connection:
        [counts] = connection.perform([Count()])
    by_state = {str(state): counts.get(state, 0) for state in State}
    total = sum(by_state.values())
    if args.json:
        print_json({**by_state, "total": total})
    else:
        print(table(("STATE", "RECORDS"), [*by_state.items(), ("total", total)]))
    return 0
