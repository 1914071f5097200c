"""What every book must say when all is over, whoever died meanwhile."""

from __future__ import annotations

from collections import Counter
from typing import Any

import sqlalchemy as sa

from payments.money.reconcile import reconcile
from payments.network import Transaction
from payments.storage.database import Database
from payments.storage.tables import charges, deliveries, delivery_attempts, events, refunds

Told = list[dict[str, Any]]
"""What buyers were told."""


def rows(database: Database, query: sa.Select[Any] | sa.TextClause) -> list[Any]:
    with database.read() as connection:
        return list(connection.execute(query))


def count_unfinished(database: Database) -> int:
    """How much waits for somebody to continue it: rows, and oncekey's records."""
    charge, refund = charges.c, refunds.c
    waits = sa.or_(charge.status == "pending", charge.settling.is_not(None))
    [[begun]] = rows(database, sa.select(sa.func.count()).select_from(charges).where(waits))
    waits = refund.status == "pending"
    [[given]] = rows(database, sa.select(sa.func.count()).select_from(refunds).where(waits))
    claims = "SELECT count(*) FROM oncekey_claims WHERE state IN ('running', 'unknown')"
    [[held]] = rows(database, sa.text(claims))
    return int(begun + given + held)


def check_money(database: Database, book: list[Transaction], told: Told) -> None:
    """The ledger, the network's own file and the buyers agree."""
    report = reconcile(database, lambda: book, pending_s=0)
    assert not report.differences, report.differences
    assert not report.pending, report.pending
    wrong = [each for each in told if each["what"] == "wrong"]
    assert not wrong, wrong
    _check_acknowledged(book, told)
    _check_once(database, book)


def _check_acknowledged(book: list[Transaction], told: Told) -> None:
    """Whatever a buyer was told has happened at the network, in that amount, once."""
    seen = Counter((line.kind, line.reference, line.amount) for line in book if not line.declined)
    names = {"charged": ("capture", "charge"), "refunded": ("refund", "refund")}
    for each in told:
        if each["what"] in names:
            kind, name = names[each["what"]]
            assert seen[kind, each[name], each["amount"]] == 1, each
        elif each["what"] == "cancelled":
            kinds = [line.kind for line in book if line.reference == each["charge"]]
            assert kinds == ["authorisation", "void"], (each, kinds)


def _check_once(database: Database, book: list[Transaction]) -> None:
    """By the network's own file: each charge is captured once at most, each intent has one charge
    at most that took money, and so has whatever a buyer wanted.
    """
    captured = Counter(line.reference for line in book if line.kind == "capture")
    assert set(captured.values()) <= {1}, captured.most_common(5)
    columns = charges.c.id, charges.c.payment_intent, charges.c.description
    by_intent: Counter[str] = Counter()
    by_want: Counter[str] = Counter()
    for id_, intent, want in rows(database, sa.select(*columns)):
        by_intent[intent or id_] += captured[id_]
        by_want[want] += captured[id_]
    assert by_want.total() == captured.total(), "the network took money for charges we do not have"
    assert max(by_intent.values()) == 1, by_intent.most_common(5)
    assert max(by_want.values()) == 1, by_want.most_common(5)


def check_events(database: Database, bookings: Counter[str]) -> None:
    """Every event was delivered, and processed once."""
    written = [id_ for (id_,) in rows(database, sa.select(events.c.id))]
    states = Counter(state for (state,) in rows(database, sa.select(deliveries.c.status)))
    assert states == {"delivered": len(written)}, states
    assert bookings == Counter(written), (
        bookings - Counter(written),
        Counter(written) - bookings,
    )


def count_work(database: Database, book: list[Transaction], told: Told) -> dict[str, int]:
    """How much there was, to see that the test was no walk in the park."""
    [counts] = [each for each in told if each["what"] == "counts"]
    [[written]] = rows(database, sa.select(sa.func.count()).select_from(events))
    [[attempts]] = rows(database, sa.select(sa.func.count()).select_from(delivery_attempts))
    kinds = Counter(f"{line.kind}s at the network" for line in book if not line.declined)
    told_of = {name: count for name, count in counts.items() if name != "what"}
    return {**told_of, **kinds, "events": int(written), "deliveries tried": int(attempts)}
