"""The ledger: every movement of money as two entries, so that the whole ledger sums to zero.

    merchant:acct_…/test:balance    what an account has
    network:clearing                what the card network owes for it

A transaction is a set of entries that sum to zero. Its name says what caused it and is part of the
primary key, so no cause moves money twice.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from payments import clock
from payments.storage.tables import ledger_entries

CLEARING = "network:clearing"


class UnbalancedError(AssertionError):
    """A transaction does not sum to zero and must not be committed."""


def balance_of(tenant: str) -> str:
    """Return the name of an account's balance."""
    return f"merchant:{tenant}:balance"


def post(
    connection: Connection, tenant: str, kind: str, source: str, amount: int, currency: str
) -> str:
    """Move `amount` from the network to the account, or back if negative.

    `source` is the charge or refund that causes it. Returns the transaction's name.
    """
    transaction = f"{kind}:{source}"
    common = {
        "transaction": transaction,
        "tenant": tenant,
        "currency": currency,
        "kind": kind,
        "source": source,
        "created": clock.now_s(),
    }
    connection.execute(
        ledger_entries.insert(),
        [
            {**common, "ledger_account": balance_of(tenant), "amount": amount},
            {**common, "ledger_account": CLEARING, "amount": -amount},
        ],
    )
    check(connection, transaction)
    return transaction


_SUM = sa.select(sa.func.sum(ledger_entries.c.amount)).where(
    ledger_entries.c.transaction == sa.bindparam("name")
)


def check(connection: Connection, transaction: str) -> None:
    """Raise if a transaction does not sum to zero, before it is committed."""
    total = connection.execute(_SUM, {"name": transaction}).scalar_one()
    if total != 0:
        raise UnbalancedError(f"the entries of {transaction} sum to {total!r}, not to zero")


def balances(connection: Connection, tenant: str) -> dict[str, int]:
    """What an account has, by currency."""
    entries = ledger_entries.c
    found = connection.execute(
        sa.select(entries.currency, sa.func.sum(entries.amount))
        .where(entries.tenant == tenant, entries.ledger_account == balance_of(tenant))
        .group_by(entries.currency)
        .order_by(entries.currency)
    )
    return {currency: int(total) for currency, total in found}


def total(connection: Connection) -> int:
    """The sum of all entries there are: zero."""
    return int(connection.execute(sa.select(sa.func.sum(ledger_entries.c.amount))).scalar() or 0)
