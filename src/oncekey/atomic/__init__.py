"""Atomic mode: claim, business rows and kept answer commit in one transaction.

    IdempotencyMiddleware(app, store=url, tenant=account_of, policy=Policy(atomic=True),
                          atomic=oncekey.atomic.Asyncpg(pool))

The handler finds its connection as `oncekey.current().connection` and writes its rows there.
"""

from oncekey.atomic.check import check
from oncekey.atomic.postgres import Asyncpg
from oncekey.atomic.unit import Adapter, AsyncUnit, Transaction, Unit

__all__ = ["Adapter", "AsyncUnit", "Asyncpg", "Transaction", "Unit", "check"]
