"""`resolve`: end an unknown outcome after an operator found out what happened."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from oncekey._core.key import short_hash
from oncekey._core.op import run
from oncekey._core.policy import DEFAULTS
from oncekey._core.printable import printable
from oncekey._core.profiles import PROFILES
from oncekey._core.record import Answer, Record, State, Step
from oncekey._core.response_headers import kept_headers
from oncekey._core.verbs import Refused, Steps
from oncekey._engine.guard import Guard
from oncekey._system.clock import SystemClock
from oncekey.cli.output import facts, print_json
from oncekey.cli.records import explain, find_record, record_lines, shown_key, state_text
from oncekey.errors import Misuse
from oncekey.events import Hooks
from oncekey.metrics._logs import LoggingHook
from oncekey.stores.base import Store
from oncekey.stores.batching import Gatherer
from oncekey.stores.connection import StoreConnection
from oncekey.stores.sealed.secrets import CLOSED

NOTHING = 1
NOT_CONFIRMED = 2


def resolve(store: Store, args: argparse.Namespace) -> int:
    answer, by = _answer(args), args.by or _user()
    with closing(StoreConnection(store)) as connection:
        record = find_record(connection, args.record)
        if record is None:
            print(f"there is no record {printable(args.record)}", file=sys.stderr)
            return NOTHING
        [steps] = connection.perform([Steps(record.id)])
        _must_be_unknown(record)
        if not args.yes and not _confirm(record, steps, args, answer):
            print("nothing was changed", file=sys.stderr)
            return NOT_CONFIRMED
    guard = Guard(hooks=Hooks([LoggingHook()]))
    with closing(Gatherer(store)) as gatherer:
        op = guard.resolve(record, answer, by=by, reason=args.reason)
        outcome = run(op, gatherer.ask)
    if isinstance(outcome, Refused):
        now = "gone" if outcome.record is None else state_text(outcome.record)
        raise Misuse(f"the record changed just now and is {now}: look again before you decide")
    _report(record, answer, by, args)
    return 0


def _answer(args: argparse.Namespace) -> Answer | None:
    """Return what retries get from now on; None if the next one is to run."""
    if args.to == "released":
        if not args.reason:
            raise Misuse("--as released needs --reason: why may it run again?")
        if args.status is not None or args.body is not None or args.header:
            raise Misuse("--status, --body and --header belong to --as completed")
        return None
    if args.status is None or args.body is None:
        raise Misuse("--as completed needs --status and --body: the response that retries get")
    headers = tuple(_header(text) for text in args.header)
    kept = kept_headers(headers, DEFAULTS, PROFILES["oncekey"])
    if left_out := [name.decode() for name, _ in headers if name not in dict(kept)]:
        raise Misuse(f"--header {printable(left_out[0])}: this header is never stored or replayed")
    return Answer(args.status, headers, _body(args.body))


def _header(text: str) -> tuple[bytes, bytes]:
    name, colon, content = text.partition(":")
    if not colon or not name.strip() or "\n" in text or "\r" in text:
        raise Misuse(f"--header {printable(text)!r}: write 'name: value'")
    try:
        return name.strip().lower().encode("ascii"), content.strip().encode("latin-1")
    except UnicodeEncodeError:
        raise Misuse(f"--header {printable(text)!r}: only Latin-1 can be sent") from None


def _body(given: str) -> bytes:
    if not given.startswith("@"):
        return os.fsencode(given)  # as typed, even if it is not text
    try:
        return Path(given[1:]).read_bytes()
    except OSError as error:
        raise Misuse(f"--body {given}: {error.strerror}") from None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # as in a container, whose user may be only a number
        raise Misuse("this user has no name here: say who decided, with --by WHO") from None


def _must_be_unknown(record: Record) -> None:
    if record.state is not State.UNKNOWN or record.expired:
        raise Misuse(
            f"record {record.id.hex()[:16]} is {state_text(record)}, not unknown, so there is "
            f"nothing to resolve: {explain(record)}"
        )


def _confirm(
    record: Record, steps: list[Step], args: argparse.Namespace, answer: Answer | None
) -> bool:
    if not sys.stdin.isatty():
        raise Misuse("without a terminal nobody can confirm: add --yes")
    print(facts(record_lines(record, steps, show_key=False)), file=sys.stderr)
    then = "the next retry runs it" if answer is None else f"retries get {answer.status}"
    print(f"Resolve it as {args.to}: {then}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _report(record: Record, answer: Answer | None, by: str, args: argparse.Namespace) -> None:
    """Print the audit line: who, when, what, why."""
    at = datetime.fromtimestamp(SystemClock.wall(), UTC).isoformat(timespec="seconds")
    audit = {
        "at": at,
        "by": by,
        "resolved": record.id.hex(),
        "as": args.to,
        "status": None if answer is None else answer.status,
        "tenant": record.tenant,
        "operation": record.operation,
        "key_hash": None if record.key in ("", CLOSED) else short_hash(record.key),
        "reason": args.reason or None,
    }
    if args.json:
        print_json(audit)
        return
    status = "" if answer is None else f" with status {answer.status}"
    print(
        f"{at} {printable(by)} resolved {record.id.hex()[:16]} "
        f"({printable(record.tenant)}, {printable(record.operation)}, "
        f"key {shown_key(record, show_key=False)}) as {args.to}{status}: "
        f"{printable(args.reason, 1000) or 'no reason given'}"
    )
