"""A shop on two engines: its tables, an order of five statements, and how it lends its connections.

As small as a shop's tables can be that are not made for a benchmark: foreign keys, and an index for
whatever is looked up. Transactions are READ COMMITTED on both.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self
from urllib.parse import urlsplit

import asyncmy
import asyncpg

from bench import mysql, postgres
from bench.limits import WAYS
from oncekey import atomic
from oncekey.stores.mysql import transactions
from oncekey.stores.postgres import transactions as postgres_transactions
from oncekey.stores.transactions import AsyncAsk, TransactionVerbs
from tests.servers import start_mariadb
from tests.servers.process import Server

ACCOUNTS = 10_000


class Shop(ABC):
    """A pool of connections to a database with a shop's tables."""

    name: str
    verbs: TransactionVerbs
    adapter: atomic.Adapter

    @staticmethod
    @abstractmethod
    def start() -> Server:
        """A server that keeps what it acknowledges."""

    @classmethod
    @abstractmethod
    async def open(cls, url: str) -> Self: ...

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Of a connection, which is lent until it is committed."""

    @abstractmethod
    def asker(self, connection: Any) -> Callable[[Any], Awaitable[Any]]:
        """How questions of atomic mode are asked in a transaction."""

    @abstractmethod
    async def order(self, connection: Any, item: str) -> int:
        """The five statements; the number of the order."""

    @abstractmethod
    async def close(self) -> None: ...


_accounts = itertools.count(1)


def _next_account() -> int:
    """None is wanted by two orders at a time."""
    return next(_accounts) % ACCOUNTS


class PostgresShop(Shop):
    name = "PostgreSQL"
    verbs = postgres_transactions.VERBS
    TABLES = f"""
        CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL);
        INSERT INTO accounts SELECT n, 1000000 FROM generate_series(0, {ACCOUNTS - 1}) AS n;
        CREATE TABLE orders (
            id bigserial PRIMARY KEY,
            account int NOT NULL REFERENCES accounts,
            created timestamptz NOT NULL DEFAULT now()
        );
        CREATE INDEX ON orders (account);
        CREATE TABLE lines (
            id bigserial PRIMARY KEY,
            order_id bigint NOT NULL REFERENCES orders,
            item text NOT NULL
        );
        CREATE INDEX ON lines (order_id);
        CREATE TABLE journal (
            id bigserial PRIMARY KEY,
            account int NOT NULL REFERENCES accounts,
            order_id bigint NOT NULL REFERENCES orders,
            amount bigint NOT NULL
        );
        CREATE INDEX ON journal (account);
    """
    LOOK = "SELECT balance FROM accounts WHERE id = $1 FOR UPDATE"
    DEBIT = "UPDATE accounts SET balance = balance - 2 WHERE id = $1"
    ORDER = "INSERT INTO orders (account) VALUES ($1) RETURNING id"
    LINES = "INSERT INTO lines (order_id, item) SELECT $1, unnest($2::text[])"
    BOOK = "INSERT INTO journal (account, order_id, amount) VALUES ($1, $2, -2), ($1, $2, 2)"

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.adapter = atomic.Asyncpg(pool)

    @staticmethod
    def start() -> Server:
        return postgres.start()

    @classmethod
    async def open(cls, url: str) -> Self:
        pool = await asyncpg.create_pool(url, min_size=WAYS, max_size=WAYS)
        await pool.execute(cls.TABLES)
        return cls(pool)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._pool.acquire() as connection, connection.transaction():
            yield connection

    def asker(self, connection: Any) -> Callable[[Any], Awaitable[Any]]:
        return lambda question: connection.fetch(question.sql, *question.args)

    async def order(self, connection: Any, item: str) -> int:
        account = _next_account()
        await connection.fetchval(self.LOOK, account)
        await connection.execute(self.DEBIT, account)
        number: int = await connection.fetchval(self.ORDER, account)
        await connection.execute(self.LINES, number, [item, "sugar", "milk"])
        await connection.execute(self.BOOK, account, number)
        return number

    async def close(self) -> None:
        await self._pool.close()


class MariaShop(Shop):
    """Its foreign keys come with their indexes."""

    name = "MariaDB"
    verbs = transactions.VERBS
    TABLES = (
        "CREATE TABLE accounts (id INT PRIMARY KEY, balance BIGINT NOT NULL)",
        f"INSERT INTO accounts SELECT seq, 1000000 FROM seq_0_to_{ACCOUNTS - 1}",
        "CREATE TABLE orders ("
        "id BIGINT AUTO_INCREMENT PRIMARY KEY, "
        "account INT NOT NULL, "
        "created TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), "
        "FOREIGN KEY (account) REFERENCES accounts (id))",
        "CREATE TABLE `lines` ("
        "id BIGINT AUTO_INCREMENT PRIMARY KEY, "
        "order_id BIGINT NOT NULL, "
        "item TEXT NOT NULL, "
        "FOREIGN KEY (order_id) REFERENCES orders (id))",
        "CREATE TABLE journal ("
        "id BIGINT AUTO_INCREMENT PRIMARY KEY, "
        "account INT NOT NULL, "
        "order_id BIGINT NOT NULL, "
        "amount BIGINT NOT NULL, "
        "FOREIGN KEY (account) REFERENCES accounts (id), "
        "FOREIGN KEY (order_id) REFERENCES orders (id))",
    )
    LOOK = "SELECT balance FROM accounts WHERE id = %s FOR UPDATE"
    DEBIT = "UPDATE accounts SET balance = balance - 2 WHERE id = %s"
    ORDER = "INSERT INTO orders (account) VALUES (%s)"
    LINES = "INSERT INTO `lines` (order_id, item) VALUES (%s, %s), (%s, %s), (%s, %s)"
    BOOK = "INSERT INTO journal (account, order_id, amount) VALUES (%s, %s, -2), (%s, %s, 2)"

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.adapter = atomic.Asyncmy(pool)

    @staticmethod
    def start() -> Server:
        settings = {**mysql.SETTINGS, "transaction-isolation": "READ-COMMITTED"}
        return start_mariadb(durable=True, settings=settings)

    @classmethod
    async def open(cls, url: str) -> Self:
        place = urlsplit(url)
        pool = await asyncmy.create_pool(
            minsize=WAYS,
            maxsize=WAYS,
            host=place.hostname,
            port=place.port,
            user=place.username,
            password=place.password,
            database=place.path[1:],
        )
        async with pool.acquire() as connection, connection.cursor() as cursor:
            for statement in cls.TABLES:
                await cursor.execute(statement)
            await connection.commit()
        return cls(pool)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._pool.acquire() as connection:
            yield connection
            await connection.commit()

    def asker(self, connection: Any) -> Callable[[Any], Awaitable[Any]]:
        ask: AsyncAsk = transactions.join_asyncmy(connection)
        return ask

    async def order(self, connection: Any, item: str) -> int:
        account = _next_account()
        async with connection.cursor() as cursor:
            await cursor.execute(self.LOOK, (account,))
            await cursor.execute(self.DEBIT, (account,))
            await cursor.execute(self.ORDER, (account,))
            number: int = cursor.lastrowid
            await cursor.execute(self.LINES, (number, item, number, "sugar", number, "milk"))
            await cursor.execute(self.BOOK, (account, number) * 2)
        return number

    async def close(self) -> None:
        self._pool.close()
        await self._pool.wait_closed()


SHOPS: tuple[type[Shop], ...] = (PostgresShop, MariaShop)
