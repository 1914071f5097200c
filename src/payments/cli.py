"""The command line: `./dev payments serve | migrate | account | resend | reconcile | run`."""

from __future__ import annotations

import argparse
import ipaddress
import logging
import os
import re
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy.exc

import oncekey
from payments import clock
from payments.access.accounts import (
    LOCAL,
    LOCAL_KEY,
    OVERLAP_S,
    Account,
    AccountNotFoundError,
    Accounts,
    Key,
)
from payments.access.rate_limits import Rates
from payments.api.errors import StripeError
from payments.money import reconcile
from payments.server import CannotServeError, ListenOptions, migrate, serve, welcome_text
from payments.settings import Settings, make_folder
from payments.storage import rows
from payments.storage.database import Database
from payments.storage.tables import events
from payments.webhooks import deliveries

_USUAL = Settings()
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

ABOUT = """\
A Stripe-compatible payments API that never charges twice.

  serve       serve the API alone; `./dev run` starts the whole system
  migrate     create missing tables, before servers of a new release start
  account     create and list accounts; rotate and revoke their keys
  resend      deliver an event to its webhook endpoints again
  reconcile   compare the ledger with the card network's book and print every difference
  run         start the whole system on this machine, like `./dev run`

Options of a command: ./dev payments serve --help
"""


def main(words: list[str]) -> int:
    """Run one command. 0: done; 1: failed, the reason is printed; 2: not understood."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    if words[:1] == ["reconcile"]:
        return reconcile.main(words[1:])
    if words[:1] == ["run"]:
        from payments.demo import supervisor

        return supervisor.main(words[1:])
    args = parser().parse_args(words)
    try:
        command: int = args.command(args)
        return command
    except (CannotServeError, AccountNotFoundError, StripeError) as error:
        print(error, file=sys.stderr)
    except (sqlalchemy.exc.DBAPIError, oncekey.StoreError) as error:
        print(
            f"Cannot use the database: {getattr(error, 'orig', error)}\n"
            "Check --database or --data. Create tables with: ./dev payments migrate",
            file=sys.stderr,
        )
    except ValueError as error:  # an invalid setting
        print(error, file=sys.stderr)
    return 1


# ------------------------------------------------------------------------------ the commands


def _serve(args: argparse.Namespace) -> int:
    settings = Settings(
        data=args.data,
        database_url=args.database,
        redis_url=args.redis or None,
        network_url=args.network,
        body_bytes_max=args.body_bytes_max,
        rates=Rates().but(args.limit),
        webhook_networks=tuple(args.webhook_network),
        wait_s=args.wait_s,
        events_kept_s=args.events_kept,
    )
    listening = ListenOptions(
        host=args.host,
        port=args.port,
        workers=args.workers,
        certificate=args.certificate,
        private_key=args.private_key,
        proxies=",".join(args.trusted_proxy),
        drain_s_max=args.drain_s_max,
    )
    return serve(settings, listening, lambda: print(welcome_text(settings, listening), flush=True))


def _migrate(args: argparse.Namespace) -> int:
    settings = _settings(args)
    if settings.keeps_files:
        make_folder(settings.data)
    migrate(settings)
    print("All tables exist.")
    return 0


def _create(args: argparse.Namespace) -> int:
    with closing(Database(_settings(args))) as database:
        account, key = Accounts(database).create(args.name, args.mode)
    print(f"account  {account.id}\nkey      {key}\n{_ONCE}")
    return 0


def _list(args: argparse.Namespace) -> int:
    settings = _settings(args)
    with closing(Database(settings)) as database:
        found = Accounts(database).all()
    for account in found:
        print(f"{account.id}  {account.name}")
        for key in account.keys:
            print(f"    {key.hint}  created {_date(key.created)}, {_key_status(key)}")
    if settings.takes_local_key:
        print(f"{LOCAL.id}  built in\n    {LOCAL_KEY}  works on this machine only")
    elif not found:
        print("There is no account yet: ./dev payments account create NAME")
    return 0


def _rotate(args: argparse.Namespace) -> int:
    with closing(Database(_settings(args))) as database:
        key = Accounts(database).rotate(Account(args.account, args.mode), args.overlap)
    until = _date(clock.now_s() + args.overlap)
    print(f"key      {key}\n{_ONCE}\nThe keys before it work until {until}.")
    return 0


def _revoke(args: argparse.Namespace) -> int:
    if (args.key is None) == (not args.all):
        print("Name the key, in full or as `account list` shows it, or use --all.")
        return 2
    with closing(Database(_settings(args))) as database:
        for key in Accounts(database).revoke(Account(args.account, args.mode), args.key):
            print(f"revoked  {key.hint}")
    print("Servers that have cached a key reject it within 2 seconds.")
    return 0


def _resend(args: argparse.Namespace) -> int:
    tenant = Account(args.account, args.mode).tenant
    with closing(Database(_settings(args))) as database, database.begin() as connection:
        event = rows.get(connection, events, tenant, args.event, lock=True)
        ids = deliveries.send_again(connection, tenant, event, args.endpoint, clock.wall())
    if not ids:
        print("No enabled endpoint subscribes to this event: nothing will be sent.")
        return 1
    print(f"{event.type} will be sent again, as {', '.join(ids)}.")
    return 0


_ONCE = "The key is shown only now: the database stores its digest."


def _settings(args: argparse.Namespace) -> Settings:
    return Settings(data=args.data, database_url=args.database)


def _key_status(key: Key) -> str:
    if key.revoked is not None:
        return f"revoked {_date(key.revoked)}"
    if key.expires is None:
        return "works"
    return f"{'works until' if key.works(clock.wall()) else 'ended'} {_date(key.expires)}"


def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


# --------------------------------------------------------------------------- options


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="./dev payments",
        description=ABOUT,
        usage="./dev payments COMMAND ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(
        required=True, metavar="COMMAND", prog=top.prog, help=argparse.SUPPRESS
    )
    _describe_serve(commands.add_parser("serve", description="Serve the API until SIGTERM."))
    tables = commands.add_parser("migrate", description="Create missing tables.")
    tables.set_defaults(command=_migrate)
    _add_database_options(tables)
    resend = commands.add_parser("resend", description="Deliver an event again.")
    _describe_resend(resend)
    account = commands.add_parser("account", description="Accounts and their keys.")
    _describe_account(account.add_subparsers(required=True, metavar="COMMAND"))
    return top


def _describe_serve(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(command=_serve)
    _add_database_options(sub)
    usual = ListenOptions()
    sub.add_argument("--host", default=usual.host, help="address to listen on [%(default)s]")
    sub.add_argument("--port", type=int, default=usual.port, help="[%(default)s]")
    sub.add_argument("--workers", type=int, default=1, metavar="N", help="processes [%(default)s]")
    sub.add_argument("--network", default=_USUAL.network_url, help="the card network [%(default)s]")
    sub.add_argument(
        "--redis",
        default=os.environ.get("PAYMENTS_REDIS", ""),
        metavar="URL",
        help="count rate limits there, for all processes together [$PAYMENTS_REDIS, or in memory]",
    )
    sub.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=RATE",
        help='such as writes=50/second, "POST charges=5/second", total=off; see docs/payments.md',
    )
    sub.add_argument("--certificate", type=Path, metavar="FILE", help="PEM file; serves HTTPS")
    sub.add_argument("--private-key", type=Path, metavar="FILE", help="PEM file of its key")
    sub.add_argument(
        "--trusted-proxy",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="trust this proxy's X-Forwarded-For; may be repeated [none]",
    )
    sub.add_argument(
        "--webhook-network",
        action="append",
        default=[],
        type=_network,
        metavar="NETWORK",
        help="allow webhooks to this private network, such as 10.1.0.0/16; may be repeated [none]",
    )
    _add_bounds(sub)


def _add_bounds(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--events-kept",
        type=_duration,
        default=_USUAL.events_kept_s,
        metavar="TIME",
        help="how long to store events and their deliveries: 7d [30d]",
    )
    sub.add_argument(
        "--wait-s",
        type=_seconds,
        default=_USUAL.wait_s,
        metavar="N",
        help="how long a retry waits for the first request before it gets 409 [%(default)s]",
    )
    sub.add_argument(
        "--body-bytes-max",
        type=int,
        default=_USUAL.body_bytes_max,
        metavar="N",
        help="[%(default)s]",
    )
    sub.add_argument(
        "--drain-s-max",
        type=int,
        default=ListenOptions().drain_s_max,
        metavar="N",
        help="how long SIGTERM waits for running requests [%(default)s]",
    )


def _describe_resend(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(command=_resend)
    sub.add_argument("account", metavar="ACCOUNT", help="acct_…")
    sub.add_argument("event", metavar="EVENT", help="evt_…")
    sub.add_argument(
        "--endpoint", metavar="ENDPOINT", help="we_…, whatever it subscribes to [all subscribers]"
    )
    sub.add_argument("--mode", choices=("test", "live"), default="test", help="[%(default)s]")
    _add_database_options(sub)


def _describe_account(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    create = commands.add_parser("create", help="create an account with its first key")
    create.set_defaults(command=_create)
    create.add_argument("name", help="a display name, such as 'Tea shop'")
    every = commands.add_parser("list", help="list accounts and which of their keys work")
    every.set_defaults(command=_list)
    rotate = commands.add_parser(
        "rotate", help="create a new key; the old ones work a while longer"
    )
    rotate.set_defaults(command=_rotate)
    rotate.add_argument("account", metavar="ACCOUNT", help="acct_…")
    rotate.add_argument(
        "--overlap",
        type=_duration,
        default=OVERLAP_S,
        metavar="TIME",
        help="how long the old keys still work: 30m, 24h, 7d, 0s [24h]",
    )
    revoke = commands.add_parser("revoke", help="revoke a key now")
    revoke.set_defaults(command=_revoke)
    revoke.add_argument("account", metavar="ACCOUNT", help="acct_…")
    revoke.add_argument("key", nargs="?", metavar="KEY", help="in full, or as `list` shows it")
    revoke.add_argument("--all", action="store_true", help="all keys of the account")
    for sub in (create, every, rotate, revoke):
        _add_database_options(sub)
    for sub in (create, rotate, revoke):
        sub.add_argument("--mode", choices=("test", "live"), default="test", help="[%(default)s]")


def _add_database_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--data",
        type=Path,
        default=_USUAL.data,
        metavar="DIR",
        help="folder of the embedded database [%(default)s]",
    )
    sub.add_argument(
        "--database",
        default=os.environ.get("PAYMENTS_DATABASE", ""),
        metavar="URL",
        help="postgresql://… instead of it [$PAYMENTS_DATABASE]",
    )


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"write a network as 10.1.0.0/16: {error}") from None


def _seconds(text: str) -> float:
    """Parse a number of seconds, 0 or more."""
    if re.fullmatch(r"\d{1,6}(\.\d+)?", text) is None:
        raise argparse.ArgumentTypeError(f"{text}: write seconds as 10 or 0.5")
    return float(text)


def _duration(text: str) -> int:
    """Parse 30m, 24h or 7d into seconds."""
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text}: write a time as 30m, 24h or 7d")
    return int(found[1]) * _UNITS_S[found[2]]
