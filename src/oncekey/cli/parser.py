"""The command line: all commands, and the options of each."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import TypeAlias

from oncekey._core.policy import DEFAULTS
from oncekey._core.record import State
from oncekey._engine.recovery import CONCURRENCY, EVERY_S, PATIENCE_S
from oncekey._engine.sweeper import SWEEP_EVERY_S
from oncekey.cli import (
    amnesia,
    doctor,
    intents,
    maintenance,
    parsing,
    plan,
    recover,
    resolve,
    secrets,
    show,
)
from oncekey.cli.store_options import ENVIRONMENT, SECRETS, open_named, require_secrets, url_of
from oncekey.stores.base import Store
from oncekey.stores.postgres.layouts import LAYOUTS
from oncekey.stores.urls import redact

ROWS_MAX = 1_000_000
LIST_ROWS = 50
LIST_ROWS_MAX = 10_000
CONCURRENCY_MAX = 1_000

Command = Callable[[Store, argparse.Namespace], int]
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # has no public name

_WITHOUT_SECRETS: tuple[Command, ...] = (
    maintenance.migrate,
    maintenance.sweep,
    show.count,
    secrets.secrets,
)
"""Commands that work without the secrets of a sealed store."""

EXAMPLES = f"""\
Name the store by its URL, or by the environment variable {ENVIRONMENT}, which keeps passwords
out of the process list:

  export {ENVIRONMENT}=postgresql://oncekey:secret@db.internal/shop
  oncekey list --unknown

If records are sealed, set {SECRETS} to the application's secrets, or to @FILE.

`oncekey COMMAND --help` explains each. Exit codes: 0 done, 1 nothing found, 2 failed.
"""


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line; ends the process if it is wrong.

    The URL may also come last, after options: argparse looks for it only beside RECORD.
    """
    top = parser()
    args, rest = top.parse_known_args(argv)
    if len(rest) == 1 and not rest[0].startswith("-") and getattr(args, "url", "") is None:
        args.url = rest.pop()
    if rest:
        top.error(f"unrecognized arguments: {' '.join(map(redact, rest))}")
    return args


def parser() -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="oncekey",
        description="Inspect and maintain a store of idempotency keys.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"oncekey {version('oncekey')}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for add in (
        *(_migrate, _sweep, _recover, _show, _list, _resolve, _count, _purge, _intents),
        *(_doctor, _plan, _secrets, _amnesia),
    ):
        add(commands)
    return top


def _command(
    commands: Commands,
    name: str,
    run: Command,
    what: str,
    examples: str,
    about: tuple[str, str] | None = None,
) -> argparse.ArgumentParser:
    """Add a command that works on a store: it takes the URL, after its other argument."""
    added = _without_store(commands, name, what, examples)
    if about is not None:
        added.add_argument(about[0].lower(), metavar=about[0], help=about[1])
    _store(added)
    added.set_defaults(run=_on_store(run))
    return added


def _on_store(command: Command) -> Callable[[argparse.Namespace], int]:
    """Wrap a command so that it gets the store that the command line names."""

    def run(args: argparse.Namespace) -> int:
        store = open_named(url_of(args), may_create=command is maintenance.migrate)
        if command not in _WITHOUT_SECRETS:
            require_secrets(store)
        return command(store, args)

    return run


def _without_store(
    commands: Commands, name: str, what: str, examples: str
) -> argparse.ArgumentParser:
    """Add a command with what all have: help with examples, and --json."""
    lines = "\n".join(f"  oncekey {line}" for line in examples.splitlines())
    added = commands.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=f"examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    added.add_argument("--json", action="store_true", help="print JSON, for programs")
    return added


def _migrate(commands: Commands) -> None:
    added = _command(
        commands,
        "migrate",
        maintenance.migrate,
        "create the store's tables or update them; safe to repeat, and while the application runs",
        "migrate postgresql://oncekey@db.internal/shop\nmigrate sqlite:///keys.db\n"
        "migrate --layout inline postgresql://oncekey@db.internal/shop",
    )
    added.add_argument(
        "--layout",
        choices=LAYOUTS,
        help="where PostgreSQL keeps answers; moves those that are elsewhere, in small batches",
    )


def _doctor(commands: Commands) -> None:
    added = _without_store(
        commands,
        "doctor",
        "check the store's settings, clock, privileges and backlog, and say what to do",
        "doctor postgresql://oncekey@db.internal/shop\ndoctor --json",
    )
    _store(added)
    added.set_defaults(run=lambda args: doctor.doctor(url_of(args), args))


def _plan(commands: Commands) -> None:
    added = _without_store(
        commands,
        "plan",
        "size a store: records, disk, writes, CPUs, connections, parts",
        "plan --rps 10000 --retention 24h --answer-bytes 800\n"
        "plan --rps 50 --retention 7d --answer-bytes 2000 --engine sqlite",
    )
    added.add_argument(
        "--rps",
        metavar="N",
        type=parsing.number(1e7),
        required=True,
        help="requests/s with new keys",
    )
    added.add_argument(
        "--retention",
        metavar="TIME",
        type=parsing.duration,
        default=plan.DAY_S,
        help="how long records are kept: 90s, 30m, 24h, 7d (default: 24h)",
    )
    added.add_argument(
        "--answer-bytes",
        metavar="N",
        type=lambda text: round(parsing.number(1e8, least=0)(text)),
        default=800,
        help="the length of an answer's body (default: 800)",
    )
    added.add_argument("--engine", choices=plan.ENGINES, help="only this one")
    added.add_argument(
        "--node-gb",
        metavar="N",
        type=parsing.number(1e5),
        default=plan.NODE_GB,
        help=f"memory of a Redis node (default: {plan.NODE_GB:g} GB)",
    )
    added.add_argument(
        "--process-rps",
        metavar="N",
        type=parsing.number(1e6),
        default=plan.PROCESS_RPS,
        help=f"requests/s that one of your processes serves (default: {plan.PROCESS_RPS:g})",
    )
    added.set_defaults(run=plan.plan)


def _sweep(commands: Commands) -> None:
    added = _command(
        commands,
        "sweep",
        maintenance.sweep,
        "remove expired records, in small batches; what is live or unresolved stays",
        "sweep sqlite:///keys.db\nsweep --limit 10000 redis://redis.internal/0\nsweep --watch",
    )
    _limit(added, ROWS_MAX, ROWS_MAX, "remove at most this many")
    added.add_argument("--watch", action="store_true", help="repeat until interrupted")
    added.add_argument(
        "--every-s",
        metavar="S",
        type=parsing.seconds(),
        default=SWEEP_EVERY_S,
        help="pause of --watch (default: 60 s)",
    )


def _recover(commands: Commands) -> None:
    added = _without_store(
        commands,
        "recover",
        "finish requests whose process died and whose client did not come back",
        "recover shop.main:app\nrecover --once --json shop.main:app",
    )
    added.add_argument("app", metavar="MODULE:APP", help="the application, as for a server")
    added.add_argument("--once", action="store_true", help="recover what is abandoned, then exit")
    added.add_argument(
        "--every-s",
        metavar="S",
        type=parsing.seconds(),
        default=EVERY_S,
        help="pause between two rounds (default: 1 s)",
    )
    added.add_argument(
        "--concurrency",
        metavar="N",
        type=parsing.rows(CONCURRENCY_MAX),
        default=CONCURRENCY,
        help=f"how many at a time (default: {CONCURRENCY})",
    )
    added.add_argument(
        "--patience-s",
        metavar="S",
        type=parsing.seconds(),
        default=PATIENCE_S,
        help="how long to leave what cannot be finished here to its client and to other processes, "
        f"before declaring its outcome unknown (default: {PATIENCE_S:g} s)",
    )
    added.set_defaults(run=recover.recover)


def _resolve(commands: Commands) -> None:
    added = _command(
        commands,
        "resolve",
        resolve.resolve,
        "end an unknown outcome after you found out what happened",
        "resolve 20b1115a58cb9487 --as completed --status 201 --body @answer.json\n"
        "resolve 'acme/POST /charges/order-17' --as released --reason 'not at the provider'",
        about=("RECORD", "the digits of its id, or TENANT/OPERATION/KEY"),
    )
    added.add_argument(
        "--as",
        dest="to",
        choices=("completed", "released"),
        required=True,
        help="completed: retries get the response that you give; released: the next retry runs it",
    )
    added.add_argument(
        "--status", metavar="N", type=parsing.status, help="the status of the response"
    )
    added.add_argument("--body", metavar="TEXT", help="the body of the response, or @FILE")
    added.add_argument(
        "--header", metavar="LINE", action="append", default=[], help="'name: value'; repeatable"
    )
    added.add_argument("--reason", metavar="TEXT", default="", help="why, for the audit line")
    added.add_argument("--by", metavar="WHO", help="who decided (default: the user)")
    added.add_argument("--yes", action="store_true", help="do not ask")


def _show(commands: Commands) -> None:
    added = _command(
        commands,
        "show",
        show.show,
        "show one record, and what the next request with its key gets",
        "show --id 9f86d081884c7d65\n"
        "show --tenant acme --operation 'POST /charges' --key order-17\n"
        "show --tenant single --key order-17 --body",
    )
    which = added.add_mutually_exclusive_group(required=True)
    which.add_argument("--id", metavar="HEX", help="the record's id, or its first digits")
    which.add_argument("--key", help="the key that the client sent; needs --tenant")
    added.add_argument("--tenant", help="the key's tenant (`single` if there is only one)")
    added.add_argument(
        "--operation", help="the key's operation; omit it if the scope is the tenant"
    )
    added.add_argument("--body", action="store_true", help="show the stored headers and body")
    _show_keys(added)


def _list(commands: Commands) -> None:
    added = _command(
        commands,
        "list",
        show.list_,
        "list records, without their content",
        "list --unknown\nlist --tenant acme --limit 200\nlist --json sqlite:///keys.db",
    )
    which = added.add_mutually_exclusive_group()
    which.add_argument("--state", choices=[str(state) for state in State])
    which.add_argument(
        "--unknown",
        dest="state",
        action="store_const",
        const=str(State.UNKNOWN),
        help="what you have to resolve: short for --state unknown",
    )
    added.add_argument("--tenant", type=parsing.text, help="only this tenant's records")
    _limit(added, LIST_ROWS, LIST_ROWS_MAX, f"at most this many (default: {LIST_ROWS})")
    added.add_argument("--after", metavar="HEX", help="continue after this id")
    _show_keys(added)


def _count(commands: Commands) -> None:
    _command(commands, "count", show.count, "count records by state", "count\ncount --json")


def _purge(commands: Commands) -> None:
    added = _command(
        commands,
        "purge",
        maintenance.purge,
        "erase the keys and answers of a tenant for good; ids stay, so that nothing runs twice",
        "purge --tenant acme postgresql://oncekey@db.internal/shop",
    )
    added.add_argument("--tenant", required=True, type=parsing.text)
    _limit(added, ROWS_MAX, ROWS_MAX, "erase at most this many")


def _secrets(commands: Commands) -> None:
    added = _command(
        commands,
        "secrets",
        secrets.secrets,
        "show which secrets open a sealed store, by their ids",
        "secrets\nsecrets --forget 9f86d081",
    )
    added.add_argument(
        "--forget", metavar="ID", help="revoke this secret; no process may still be using it"
    )


def _amnesia(commands: Commands) -> None:
    added = _command(
        commands,
        "amnesia",
        amnesia.amnesia,
        "after the store lost records: do not run again what may have run before the loss",
        "amnesia --until 2026-01-31T12:00:00Z\namnesia\namnesia --lower",
    )
    added.add_argument(
        "--until",
        metavar="TIME",
        type=parsing.moment,
        help="raise the guard: what was acknowledged before this time may be lost",
    )
    added.add_argument(
        "--for-s",
        metavar="S",
        type=parsing.seconds(366 * 86_400),
        default=DEFAULTS.retention_s,
        help="how long the guard stays: as long as clients may retry (default: 86400 s)",
    )
    added.add_argument(
        "--skew-s",
        metavar="S",
        type=parsing.seconds(86_400),
        default=300.0,
        help="how far ahead the clocks of clients that make time-ordered keys may be "
        "(default: 300 s)",
    )
    added.add_argument("--lower", action="store_true", help="lower the guard now")


def _intents(commands: Commands) -> None:
    added = _without_store(
        commands,
        "intents",
        "list the intents in a client's journal that were never settled",
        "intents intents.db\nintents intents.db --resume shop.payments:pay_again\n"
        "intents postgresql://shop@db.internal/shop --settle order-42/pay",
    )
    added.add_argument(
        "journal",
        metavar="JOURNAL",
        help="the file that Journal(…) was given, or the URL of the database of a SqlJournal",
    )
    does = added.add_mutually_exclusive_group()
    does.add_argument("--settle", metavar="NAME", help="settle this one, after you found out")
    does.add_argument(
        "--resume",
        metavar="MODULE:FUNCTION",
        help="call it with each intent that may be sent again; settle those for which it returns",
    )
    _limit(added, LIST_ROWS, LIST_ROWS_MAX, f"at most this many (default: {LIST_ROWS})")
    _show_keys(added)
    added.set_defaults(run=intents.intents)


def _store(added: argparse.ArgumentParser) -> None:
    added.add_argument("url", metavar="URL", nargs="?", help=f"the store; default: ${ENVIRONMENT}")


def _limit(added: argparse.ArgumentParser, default: int, rows_max: int, says: str) -> None:
    kind = parsing.rows(rows_max)
    added.add_argument("--limit", metavar="N", type=kind, default=default, help=says)


def _show_keys(added: argparse.ArgumentParser) -> None:
    added.add_argument("--show-keys", action="store_true", help="show keys instead of their hashes")
