"""Atomic mode: the claim, your rows and the stored response commit in one transaction.

    IdempotencyMiddleware(app, store=url, tenant=account_of, policy=Policy(atomic=True),
                          atomic=oncekey.atomic.Asyncpg(pool))

The handler gets its connection from `oncekey.current().connection` and writes its rows there.
"""

from oncekey.atomic._unit_of_work import Adapter, AsyncUnit, Transaction, Unit
from oncekey.atomic._validation import check, check_blocking, check_loop, check_thread
from oncekey.atomic.django import Django
from oncekey.atomic.mysql import Asyncmy, PyMySQL
from oncekey.atomic.postgres import Asyncpg, AsyncPsycopg, Psycopg
from oncekey.atomic.sqlalchemy import SQLAlchemy
from oncekey.atomic.sqlalchemy_async import AsyncSQLAlchemy
from oncekey.atomic.sqlite import Sqlite

__all__ = [
    "Adapter",
    "AsyncPsycopg",
    "AsyncSQLAlchemy",
    "AsyncUnit",
    "Asyncmy",
    "Asyncpg",
    "Django",
    "Psycopg",
    "PyMySQL",
    "SQLAlchemy",
    "Sqlite",
    "Transaction",
    "Unit",
    "check",
    "check_blocking",
    "check_loop",
    "check_thread",
]
