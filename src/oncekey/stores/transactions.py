"""A caller's transaction: how records are written in it, on a connection of the caller's.

What is written this way is there if and only if the caller commits. Nothing here begins, commits or
rolls back for the caller, except for what a driver would begin by itself before its next statement.
Connections are recognised by their classes, and nothing is imported for that: a class can only be
one of a library that somebody has imported. Each engine knows its own drivers
(`<engine>/transactions.py`); what may stand around any of them is here.

psycopg       `Connection`, `AsyncConnection`
asyncpg       `Connection`, or what a pool lends
PyMySQL       `Connection`
asyncmy       `Connection`
SQLAlchemy 2  `Connection`, `Session`, `AsyncConnection`, `AsyncSession`, on psycopg, asyncpg,
              PyMySQL, asyncmy, sqlite3 and aiosqlite
Django        `connection`, `connections[alias]`, or the alias, within `transaction.atomic()`
sqlite3       `Connection`, on the store's own file
DynamoDB      a list of items as `TransactWriteItems` takes them: written together, here and now
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from typing import Any

from oncekey._core.op import Op, arun, run
from oncekey._core.record import Claim, Record
from oncekey._core.values import value
from oncekey._core.verbs import Refused, Swap, Verb
from oncekey.errors import Misuse
from oncekey.stores.base import Store, transactions_of

Ask = Callable[[Any], Any]
AsyncAsk = Callable[[Any], Awaitable[Any]]


# --------------------------------------------------------------------- what an engine brings


@value
class Hold:
    """What a transaction found when it asked for an id."""

    ours: bool
    """The id is this transaction's until it ends."""
    record: Record | None


@value
class TransactionVerbs:
    """What atomic mode asks beside the verbs, in the transaction that holds the business rows too.

    A server must let a transaction take an id, for as long as the transaction lasts.
    """

    hold: Callable[[Claim], Op[Hold]]
    """Take the id if nobody has it, and look for its record. Waits for nobody."""
    is_ours: Callable[[Claim], Op[bool]]
    """Whether the transaction is still the one that took the id."""
    insert_completed: Callable[[Claim, Swap], Op[bool]]
    """Write a record that did not exist, completed. False if there is one after all, or if the
    transaction is not the one that took the id.
    """
    undoes: Callable[[BaseException], bool] = lambda error: False
    """Whether the server undoes the whole transaction by itself when it raises this."""


@value
class SqlTransactions:
    """The `Transactions` of an SQL database: `store.transactions`.

    A store around another one has the same: it translates the verbs itself, and asks what the
    store within would ask.
    """

    engine: str
    """As the adapters of atomic mode name it."""
    adapters: str
    """Those that fit, for messages."""
    join: Callable[[Any, Any], Ask | None]
    """`join(store, connection)`: how to ask on a connection of one of the engine's drivers, in its
    transaction; None for any other.
    """
    ajoin: Callable[[Any, Any], AsyncAsk | None] = lambda store, connection: None
    """The same for connections that are awaited."""
    identity: Callable[[], Op[Any]] | None = None
    """What tells this database from any other; None where `join` compares them."""
    begin: Any = None
    """What a transaction of atomic mode asks first, if anything."""
    verbs: TransactionVerbs | None = None
    """None where whoever may begin has the id."""
    callers_verbs: TransactionVerbs | None = None
    """The same for a transaction that the caller began."""
    shows_early: Callable[[Any], bool] = lambda store: False
    """Whether a commit is shown to others before it is on disk."""

    def perform(self, store: Store, connection: Any, verbs: Sequence[Verb]) -> list[Any]:
        ask = join(store, connection)
        outcomes = [run(store.perform([verb]), ask)[0] for verb in verbs]
        if self.identity is not None and _finds_nothing(outcomes):
            _must_be_same(run(self.identity(), ask), database_of(store))
        return outcomes

    async def aperform(self, store: Store, connection: Any, verbs: Sequence[Verb]) -> list[Any]:
        ask = await ajoin(store, connection)
        outcomes = [(await arun(store.perform([verb]), ask))[0] for verb in verbs]
        if self.identity is not None and _finds_nothing(outcomes):
            here = await arun(self.identity(), ask)
            _must_be_same(here, await asyncio.to_thread(database_of, store))
        return outcomes

    def write(self, store: Store, given: Any, token: bytes) -> None:
        """What stands in a transaction of the caller's is the caller's to commit."""

    async def awrite(self, store: Store, given: Any, token: bytes) -> None:
        """The same."""


def sql_transactions(store: Store) -> SqlTransactions | None:
    """How a store writes in transactions of an SQL database; None if its records are in none."""
    found = transactions_of(store)
    return found if isinstance(found, SqlTransactions) else None


# ------------------------------------------------------------------------- in a transaction


def perform(store: Store, connection: Any, verbs: Sequence[Verb]) -> list[Any]:
    """Carry out verbs in the open transaction of `connection`."""
    transactions = transactions_of(store)
    if transactions is None:
        raise _cannot_join(store, connection, _BLOCKING)
    return transactions.perform(store, connection, verbs)


async def aperform(store: Store, connection: Any, verbs: Sequence[Verb]) -> list[Any]:
    """The same for async connections and sessions, or for blocking ones."""
    transactions = transactions_of(store)
    if transactions is None:
        raise _cannot_join(store, connection, _ANY)
    return await transactions.aperform(store, connection, verbs)


def write(store: Store | None, given: Any, token: bytes) -> None:
    """Write what would have been written together with a record, where there is none to complete.
    `token` is random.
    """
    transactions = None if store is None else transactions_of(store)
    if store is not None and transactions is not None:
        transactions.write(store, given, token)


async def awrite(store: Store | None, given: Any, token: bytes) -> None:
    """The same, awaited."""
    transactions = None if store is None else transactions_of(store)
    if store is not None and transactions is not None:
        await transactions.awrite(store, given, token)


def join(store: Store, connection: Any) -> Ask:
    """Return how to ask a store's questions on a connection that blocks, in its transaction."""
    connection = connection_behind(connection)
    if is_of(connection, "django.db.backends.base.base", "BaseDatabaseWrapper"):
        return _join_django(store, connection)
    if is_of(connection, "sqlalchemy", "Connection"):
        return _join_sqlalchemy(store, connection)
    return _join_driver(store, connection)


def _join_driver(store: Store, connection: Any) -> Ask:
    sql = sql_transactions(store)
    ask = None if sql is None else sql.join(store, connection)
    if ask is None:
        raise _cannot_join(store, connection, _BLOCKING)
    return ask


async def ajoin(store: Store, connection: Any) -> AsyncAsk:
    """The same for an async connection, or for one that blocks."""
    connection = await _connection_of(connection)
    if is_of(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        return await _join_async_sqlalchemy(store, connection)
    sql = sql_transactions(store)
    ask = None if sql is None else sql.ajoin(store, connection)
    if ask is not None:
        return ask
    if _engine_of(connection, _AWAITED) is not None:
        raise _cannot_join(store, connection, _AWAITED)
    blocking = join(store, connection)

    async def ask_blocking(question: Any) -> Any:
        return blocking(question)

    return ask_blocking


async def _connection_of(session: Any) -> Any:
    if is_of(session, "sqlalchemy.ext.asyncio", "async_scoped_session"):
        session = session.registry()
    if is_of(session, "sqlalchemy.ext.asyncio", "AsyncSession"):
        return await session.connection()
    return session


_BLOCKING = {
    ("sqlite3", "Connection"): "sqlite",
    ("psycopg", "Connection"): "postgres",
    ("pymysql.connections", "Connection"): "mysql",
}
_AWAITED = {
    ("asyncpg", "Connection"): "postgres",
    ("asyncpg.pool", "PoolConnectionProxy"): "postgres",
    ("psycopg", "AsyncConnection"): "postgres",
    ("asyncmy.connection", "Connection"): "mysql",
}
_ANY = {**_AWAITED, **_BLOCKING}


def _engine_of(connection: Any, drivers: dict[tuple[str, str], str]) -> str | None:
    """The engine that a driver's connection leads to, for messages."""
    return next((engine for known, engine in drivers.items() if is_of(connection, *known)), None)


def _cannot_join(store: Store, connection: Any, drivers: dict[tuple[str, str], str]) -> Misuse:
    engine = _engine_of(connection, drivers)
    if engine is not None:
        return other_engine(store, connection, engine)
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    return Misuse(
        f"{kind} is no connection whose transaction oncekey can join with records in {store.name}: "
        "give one of psycopg, asyncpg, PyMySQL, asyncmy, SQLAlchemy 2, Django or sqlite3 "
        "(docs/atomic.md)"
    )


def other_engine(store: Store, connection: Any, engine: str) -> Misuse:
    return Misuse(
        f"{type(connection).__name__} is a connection to {engine}, but the records are in "
        f"{store.name}: they commit together only in one database. Open the store there"
    )


def not_begun(how: str) -> Misuse:
    return Misuse(
        "no transaction is open on this connection, what is written would count at once: write "
        f"`{how}` around it, not in AUTOCOMMIT, and commit your rows with it"
    )


# -------------------------------------------------------------------- Django and SQLAlchemy


def is_of(connection: Any, module: str, name: str) -> bool:
    """Whether it is of a class that, if nobody imported its module, nothing can be of."""
    imported = sys.modules.get(module)
    return imported is not None and isinstance(connection, getattr(imported, name, ()))


def connection_behind(given: Any) -> Any:
    """Return the connection of a Django alias or proxy, or of a SQLAlchemy session; any other as it
    is.
    """
    if isinstance(given, str) or is_of(given, "django.utils.connection", "ConnectionProxy"):
        return _django_connection(given)
    if is_of(given, "sqlalchemy.orm", "scoped_session"):
        given = given.registry()
    return given.connection() if is_of(given, "sqlalchemy.orm", "Session") else given


def _django_connection(given: Any) -> Any:
    django = sys.modules.get("django.db")
    if django is None or (isinstance(given, str) and given not in django.connections):
        # Not shown: it may be a URL, with a password.
        raise Misuse(
            "a text names one of Django's connections, and this one names none of them: hand over "
            "the connection itself, with its transaction open"
        )
    return django.connections[given if isinstance(given, str) else given._alias]


def _join_django(store: Store, connection: Any) -> Ask:
    if not connection.in_atomic_block:
        raise not_begun("with transaction.atomic():")
    connection.ensure_connection()
    return join(store, connection.connection)


def _join_sqlalchemy(store: Store, connection: Any) -> Ask:
    if not connection.in_transaction():
        raise not_begun("with engine.begin() as connection:")
    driver = connection.connection.driver_connection
    if is_of(driver, "aiosqlite", "Connection"):
        return _join_aiosqlite(store, connection)
    return join(store, driver)


async def _join_async_sqlalchemy(store: Store, connection: Any) -> AsyncAsk:
    if not connection.in_transaction():
        raise not_begun("async with engine.begin() as connection:")
    driver = (await connection.get_raw_connection()).driver_connection
    if is_of(driver, "aiosqlite", "Connection"):
        return _ask_in_greenlet(store, connection)
    if is_of(driver, "asyncpg", "Connection") and not driver.is_in_transaction():
        await connection.exec_driver_sql("SELECT 1")  # it begins before its first statement
    return await ajoin(store, driver)


def _ask_in_greenlet(store: Store, connection: Any) -> AsyncAsk:
    """Where SQLAlchemy makes what is awaited look as if it blocked."""

    async def ask(question: Any) -> Any:
        return await connection.run_sync(lambda blocks: join(store, blocks)(question))

    return ask


def _join_aiosqlite(store: Store, connection: Any) -> Ask:
    """Within SQLAlchemy's greenlet the cursors of its connection look as if they blocked."""
    sql = sql_transactions(store)
    ask = None if sql is None else sql.join(store, connection)
    if ask is None:
        raise other_engine(store, connection, "sqlite")
    return ask


# ---------------------------------------------------------------------- the same database


def database_of(store: Store) -> Any:
    """What tells the store's database from any other, by a connection of its own. None where it
    need not be compared.
    """
    sql = sql_transactions(store)
    if sql is None or sql.identity is None:
        return None
    with closing(store.connect()) as connection:
        return run(sql.identity(), connection.ask)


def must_be_database(store: Store, own: Any) -> Op[None]:
    """Raise `Misuse` in a database that is not the store's. `own` is its `database_of`."""
    sql = sql_transactions(store)
    if own is not None and sql is not None and sql.identity is not None:
        _must_be_same((yield from sql.identity()), own)


def must_fit(store: Store, own: Any) -> Op[None]:
    """Raise for a database that is not the store's, or not fit for it."""
    if own is not None:
        yield from store.prepare()
        yield from must_be_database(store, own)


def _finds_nothing(outcomes: Sequence[Any]) -> bool:
    """Whether any is refused for want of a record, as all are in another database."""
    return any(isinstance(outcome, Refused) and outcome.record is None for outcome in outcomes)


def _must_be_same(here: Any, there: Any) -> None:
    if here != there:
        raise Misuse(
            f"the records are in the database {there[0]}, the connection to join is one to "
            f"{here[0]}, or sees other tables by its search_path: name that one as store=…"
        )
