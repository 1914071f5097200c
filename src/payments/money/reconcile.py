"""Reconcile: the ledger's word against the network's, movement by movement.

Different processes write both sides into different files, so every mistake between them shows here:
money taken but not posted, posted but not taken, taken twice, or authorised for no charge.

An unfinished operation is no difference yet: a retry or the recoverer will finish it. It is listed
as pending, and becomes a difference once it is older than `pending_s`.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from payments import clock
from payments.money.ledger import CLEARING
from payments.network import Network, NetworkDown, Transaction
from payments.settings import Settings
from payments.storage.database import Database
from payments.storage.tables import charges, ledger_entries, refunds

PENDING_S = 3600
LOOKS_MAX = 3
BETWEEN_LOOKS_S = 1.0

Moved = dict[tuple[str, str], int]
"""By charge or refund, and currency: what the network took or, if negative, gave back."""


@dataclass(frozen=True, slots=True)
class LedgerState:
    """The ledger's side."""

    moved: Moved
    holds: dict[str, str]
    """By charge: its authorisation."""
    released: set[str]
    """Charges whose authorisation was voided."""
    unfinished: dict[str, int]
    """Charges and refunds in progress, and when they began."""
    unbalanced: dict[str, int] = field(default_factory=dict)
    """Transactions that do not sum to zero, with their sums. There should be none."""


@dataclass(frozen=True, slots=True)
class NetworkState:
    """The network's side."""

    moved: Moved
    holds: dict[str, list[str]]
    """By reference: the granted authorisations."""
    released: set[str]
    seen: dict[str, int]
    """When each reference was last written."""


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    """One thing on which the two sides differ."""

    what: str
    ledger: str
    network: str

    def __str__(self) -> str:
        return f"{self.what}  ledger: {self.ledger}  network: {self.network}"


@dataclass(frozen=True, slots=True)
class Report:
    differences: list[Difference]
    pending: list[Difference]
    movements: int
    """How many movements were compared."""
    totals: dict[str, int]
    """What the network took, less what it gave back, by currency."""


# ------------------------------------------------------------------------------------- comparing


def compare(
    ledger: LedgerState, book: NetworkState, *, now_s: int, pending_s: int = PENDING_S
) -> Report:
    """List all differences and, separately, what is still pending."""
    differences: list[Difference] = []
    pending: list[Difference] = []

    def add(source: str, line: Difference) -> None:
        begun = ledger.unfinished.get(source)
        waits = begun is not None and now_s - max(begun, book.seen.get(source, 0)) < pending_s
        (pending if waits else differences).append(line)

    for source, currency in sorted(ledger.moved.keys() | book.moved.keys()):
        here = ledger.moved.get((source, currency), 0)
        there = book.moved.get((source, currency), 0)
        if here != there:
            sides = _amount(here, currency, "posted"), _amount(there, currency, "taken")
            add(source, Difference(source, *sides))
    for source in sorted(ledger.holds.keys() | book.holds.keys()):
        mine, granted = ledger.holds.get(source), book.holds.get(source, [])
        if [mine] != granted:
            stated = f"authorised as {mine}" if mine else "not authorised"
            add(source, Difference(source, stated, _describe_grants(granted)))
    for source in sorted(ledger.released ^ book.released):
        sides = ("voided", "still held") if source in ledger.released else ("still held", "voided")
        add(source, Difference(source, *sides))
    listed = {line.what for line in (*pending, *differences)}
    for source in sorted(ledger.unfinished.keys() - listed):
        add(source, Difference(source, "begun, not finished", "agrees so far"))
    for name, total in sorted(ledger.unbalanced.items()):
        differences.append(Difference(name, f"entries sum to {total}, not to 0", "-"))
    return Report(differences, pending, len(book.moved), _totals(book.moved))


def _amount(amount: int, currency: str, done: str) -> str:
    return f"{amount} {currency} {done}" if amount else f"nothing {done}"


def _describe_grants(ids: list[str]) -> str:
    if not ids:
        return "not authorised"
    return f"authorised as {ids[0]}" if len(ids) == 1 else f"authorised {len(ids)} times: {ids}"


def _totals(moved: Moved) -> dict[str, int]:
    totals: dict[str, int] = {}
    for (_, currency), amount in sorted(moved.items()):
        totals[currency] = totals.get(currency, 0) + amount
    return totals


# --------------------------------------------------------------------------------------- looking


def read_ledger(database: Database) -> LedgerState:
    """Read the ledger's side, at one moment."""
    entry, charge, refund = ledger_entries.c, charges.c, refunds.c
    amount = sa.func.sum(entry.amount)
    with database.read() as connection:
        moved = connection.execute(
            sa.select(entry.source, entry.currency, -amount)
            .where(entry.ledger_account == CLEARING)
            .group_by(entry.source, entry.currency)
        )
        unbalanced = connection.execute(
            sa.select(entry.transaction, amount).group_by(entry.transaction).having(amount != 0)
        )
        holds = connection.execute(
            sa.select(charge.id, charge.authorisation).where(charge.authorisation.is_not(None))
        )
        released = connection.execute(
            sa.select(charge.id).where(
                charge.authorisation.is_not(None),
                charge.captured.is_(False),
                charge.amount_refunded == charge.amount,
            )
        )
        under_way = sa.or_(charge.status == "pending", charge.settling.is_not(None))
        since = sa.func.coalesce(charge.settling_since, charge.created)
        begun = [
            *connection.execute(sa.select(charge.id, since).where(under_way)),
            *connection.execute(
                sa.select(refund.id, refund.created).where(refund.status == "pending")
            ),
        ]
        return LedgerState(
            {(source, currency): int(total) for source, currency, total in moved if total},
            {id_: str(authorisation) for id_, authorisation in holds},
            {id_ for (id_,) in released},
            {id_: int(created) for id_, created in begun},
            {name: int(total) for name, total in unbalanced},
        )


def read_book(lines: Iterable[Transaction]) -> NetworkState:
    """Sum up the network's side."""
    book = NetworkState({}, {}, set(), {})
    signs = {"capture": 1, "refund": -1}
    for line in lines:
        book.seen[line.reference] = line.created
        if line.declined is not None:
            continue
        if line.kind == "authorisation":
            book.holds.setdefault(line.reference, []).append(line.id)
        elif line.kind == "void":
            book.released.add(line.reference)
        elif line.kind in signs:
            where = line.reference, line.currency
            book.moved[where] = book.moved.get(where, 0) + signs[line.kind] * line.amount
    return book


def read_file(path: Path) -> Iterator[Transaction]:
    """Read the book of a network that is not running."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as file:
        for row in file.execute("SELECT * FROM transactions ORDER BY number"):
            yield Transaction(*row)


def reconcile(
    database: Database,
    lines: Callable[[], Iterable[Transaction]],
    *,
    pending_s: int = PENDING_S,
    pause: Callable[[float], None] = time.sleep,
) -> Report:
    """Compare both sides, even while both are in use.

    They cannot be read at the same moment, and what happens in between shows as a difference. So
    only differences that stay the same over several looks count.
    """
    report = _compare_once(database, lines, pending_s)
    for _ in range(LOOKS_MAX - 1):
        if not report.differences:
            break
        pause(BETWEEN_LOOKS_S)
        before, report = set(report.differences), _compare_once(database, lines, pending_s)
        report.differences[:] = [line for line in report.differences if line in before]
    return report


def _compare_once(
    database: Database, lines: Callable[[], Iterable[Transaction]], pending_s: int
) -> Report:
    ledger = read_ledger(database)
    return compare(ledger, read_book(lines()), now_s=clock.now_s(), pending_s=pending_s)


# ----------------------------------------------------------------------------------- the command


def main(argv: list[str] | None = None) -> int:
    """Run `payments reconcile`: 0 if both sides agree, 1 if not, 2 if one cannot be read."""
    usual = Settings()
    parser = argparse.ArgumentParser(
        prog="payments reconcile", description="Compare the ledger with the card network's book."
    )
    parser.add_argument("--data", type=Path, default=usual.data, help="the folder of the database")
    parser.add_argument(
        "--database",
        default=os.environ.get("PAYMENTS_DATABASE", ""),
        help="its URL, if it is elsewhere [$PAYMENTS_DATABASE]",
    )
    parser.add_argument(
        "--network", default=usual.network_url, help="its address, or its file if it is not running"
    )
    parser.add_argument(
        "--pending-s",
        type=int,
        default=PENDING_S,
        help="how long an operation may stay unfinished before it counts as a difference",
    )
    args = parser.parse_args(argv)
    settings = Settings(data=args.data, database_url=args.database, network_url=args.network)
    try:
        database = Database(settings)
    except ValueError as error:
        return _report_unreadable("the ledger", "--data or --database", error)
    with closing(database):
        try:
            return _print_report(_run(database, settings.network_url, args.pending_s))
        except (NetworkDown, sqlite3.Error) as error:
            return _report_unreadable(
                f"the network's book ({settings.network_url})", "--network", error
            )
        except sa.exc.DBAPIError as error:
            return _report_unreadable("the ledger", "--data or --database", error)


def _run(database: Database, network: str, pending_s: int) -> Report:
    if not network.startswith("http"):
        return reconcile(database, lambda: read_file(Path(network)), pending_s=pending_s)
    with Network(network) as client:
        return reconcile(database, client.transactions, pending_s=pending_s)


def _print_report(report: Report) -> int:
    for word, lines in (("pending", report.pending), ("DIFFERENCE", report.differences)):
        for line in lines:
            print(f"{word}  {line}")
    money = " ".join(f"{total} {currency}" for currency, total in report.totals.items())
    print(
        f"{report.movements} movements, {money or 'no money'}: "
        f"{len(report.differences)} differences, {len(report.pending)} pending"
    )
    return 1 if report.differences else 0


def _report_unreadable(what: str, option: str, error: Exception) -> int:
    print(f"Not compared: cannot read {what}: {error}\nCheck {option}.", file=sys.stderr)
    return 2
