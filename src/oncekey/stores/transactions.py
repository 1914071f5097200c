"""Joining: asking a store's questions on a connection of the caller's, in the caller's transaction.

What is written this way is there if and only if the caller commits. Nothing here begins, commits or
rolls back for the caller, but for what a driver would begin by itself before its next statement.
Connections are recognised by their classes, and a class can only be one of a library that somebody
has imported: nothing is imported here.

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
import functools
import os
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from typing import Any, TypeVar

from oncekey._core.op import Op, arun, run
from oncekey._core.verbs import Refused, Verb
from oncekey.errors import Misuse
from oncekey.stores.base import Store
from oncekey.stores.callers import connection_behind, is_of
from oncekey.stores.dynamodb import transactions
from oncekey.stores.mysql import joining
from oncekey.stores.postgres.verbs import Question

Ask = Callable[[Any], Any]
AsyncAsk = Callable[[Any], Awaitable[Any]]
T = TypeVar("T")


def perform(store: Store, connection: Any, verbs: Sequence[Verb]) -> list[Any]:
    """Carry out verbs on `connection`, in the transaction that is open there."""
    if store.name == "dynamodb":
        return transactions.perform(store, connection, verbs)
    ask = blocking(store, connection)
    outcomes = [run(store.perform([verb]), ask)[0] for verb in verbs]
    if _finds_nothing(store, outcomes):
        _compare(run(_identity(store), ask), _own_identity(store))
    return outcomes


async def aperform(store: Store, connection: Any, verbs: Sequence[Verb]) -> list[Any]:
    """The same for async connections and sessions; blocking ones will do too."""
    if store.name == "dynamodb":
        return await transactions.aperform(store, connection, verbs)
    ask = await awaited(store, connection)
    outcomes = [(await arun(store.perform([verb]), ask))[0] for verb in verbs]
    if _finds_nothing(store, outcomes):
        here = await arun(_identity(store), ask)
        _compare(here, await asyncio.to_thread(_own_identity, store))
    return outcomes


def write(store: Store | None, given: Any, token: bytes) -> None:
    """Where there is no record to complete: write what would have been written together with it.
    What stands in a transaction of the caller's is the caller's to commit. `token` is random.
    """
    if store is not None and store.name == "dynamodb":
        transactions.write(store, given, token)


async def awrite(store: Store | None, given: Any, token: bytes) -> None:
    """The same, awaited."""
    if store is not None and store.name == "dynamodb":
        await transactions.awrite(store, given, token)


def has_one_writer(store: Store) -> bool:
    """Whether all that a store does may have to wait until a caller's transaction ends."""
    return store.name == "sqlite"


def identity(store: Store) -> Any:
    """What tells the store's database from any other, by a connection of its own."""
    return _own_identity(store) if store.name in _IDENTITIES else None


def same_place(store: Store, own: Any) -> Op[None]:
    """Refuse a database that is not the store's. `own` is its `identity`."""
    if own is not None:
        _compare((yield from _identity(store)), own)


def prove(store: Store, own: Any, ask: Ask) -> None:
    """Refuse a database that is not the store's, or not fit for it. `own` is its `identity`."""
    if own is not None:
        run(store.prepare(), ask)
        _compare(run(_identity(store), ask), own)


async def aprove(store: Store, own: Any, ask: AsyncAsk) -> None:
    """The same, awaited."""
    if own is not None:
        await arun(store.prepare(), ask)
        _compare(await arun(_identity(store), ask), own)


# ------------------------------------------------------------------------------- recognising


def blocking(store: Store, connection: Any) -> Ask:
    """How to ask a store's questions on a connection that blocks."""
    connection = connection_behind(connection)
    if isinstance(connection, sqlite3.Connection):
        return _sqlite(store, connection)
    if is_of(connection, "psycopg", "Connection"):
        return _psycopg(store, connection)
    if is_of(connection, "pymysql.connections", "Connection"):
        return joining.by_pymysql(_begun_mysql(store, connection))
    if is_of(connection, "django.db.backends.base.base", "BaseDatabaseWrapper"):
        return _of_django(store, connection)
    if is_of(connection, "sqlalchemy", "Connection"):
        return _of_sqlalchemy(store, connection)
    raise _unknown(store, connection)


async def awaited(store: Store, connection: Any) -> AsyncAsk:
    """How to ask a store's questions on an async connection, or on one that blocks."""
    connection = await _connection_of(connection)
    if is_of(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        return await _of_async_sqlalchemy(store, connection)
    if is_of(connection, "asyncpg", "Connection") or is_of(
        connection, "asyncpg.pool", "PoolConnectionProxy"
    ):
        return by_asyncpg(store, connection)
    if is_of(connection, "psycopg", "AsyncConnection"):
        return _psycopg_async(store, connection)
    if is_of(connection, "asyncmy.connection", "Connection"):
        return joining.by_asyncmy(_begun_mysql(store, connection))
    ask = blocking(store, connection)

    async def asked(question: Any) -> Any:
        return ask(question)

    return asked


async def _connection_of(session: Any) -> Any:
    if is_of(session, "sqlalchemy.ext.asyncio", "async_scoped_session"):
        session = session.registry()
    if is_of(session, "sqlalchemy.ext.asyncio", "AsyncSession"):
        return await session.connection()
    return session


def _unknown(store: Store, connection: Any) -> Misuse:
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    return Misuse(
        f"{kind} is no connection whose transaction oncekey can join with records in {store.name}: "
        "give one of psycopg, asyncpg, PyMySQL, asyncmy, SQLAlchemy 2, Django or sqlite3 "
        "(docs/atomic.md)"
    )


def _needs(store: Store, name: str, connection: Any) -> None:
    if store.name != name:
        raise Misuse(
            f"{type(connection).__name__} is a connection to {name}, but the records are in "
            f"{store.name}: they commit together only in one database. Open the store there"
        )


def _not_begun(how: str) -> Misuse:
    return Misuse(
        "no transaction is open on this connection, what is written would count at once: write "
        f"`{how}` around it, not in AUTOCOMMIT, and commit your rows with it"
    )


# -------------------------------------------------------------------------------- PostgreSQL


@functools.lru_cache(maxsize=64)
def _by_callers_patience(statement: str) -> str:
    """How long to wait for a row is the caller's to say in its transaction, and stays as it is."""
    return statement.replace("set_config('lock_timeout', $1, true)", "$1::text")


def by_asyncpg(store: Store, connection: Any) -> AsyncAsk:
    """How to ask on a connection of asyncpg."""
    _needs(store, "postgres", connection)
    if not connection.is_in_transaction():
        raise _not_begun("async with connection.transaction():")

    async def ask(question: Question) -> Any:
        try:
            return await connection.fetch(_by_callers_patience(question.sql), *question.args)
        except sys.modules["asyncpg"].PostgresError as error:
            raise _judged(error) from error

    return ask


def _psycopg(store: Store, connection: Any) -> Ask:
    _needs(store, "postgres", connection)
    psycopg = _begun_psycopg(connection)

    def ask(question: Question) -> Any:
        with psycopg.RawCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
            try:
                statement = _by_callers_patience(question.sql)
                cursor.execute(statement, question.args, binary=True)
            except psycopg.Error as error:
                raise _judged(error) from error
            return cursor.fetchall() if cursor.description else ()

    return ask


def _psycopg_async(store: Store, connection: Any) -> AsyncAsk:
    _needs(store, "postgres", connection)
    psycopg = _begun_psycopg(connection)

    async def ask(question: Question) -> Any:
        async with psycopg.AsyncRawCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
            try:
                statement = _by_callers_patience(question.sql)
                await cursor.execute(statement, question.args, binary=True)
            except psycopg.Error as error:
                raise _judged(error) from error
            return await cursor.fetchall() if cursor.description else ()

    return ask


def _begun_psycopg(connection: Any) -> Any:
    """psycopg begins by itself before the next statement, unless it is in autocommit."""
    psycopg = sys.modules["psycopg"]
    idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    if idle and connection.autocommit:
        raise _not_begun("with connection.transaction():")
    if connection.info.encoding == "ascii":  # then psycopg gives texts as bytes
        raise Misuse(
            "the client_encoding of this connection is SQL_ASCII, and texts of records cannot be "
            "read on it: connect with client_encoding=utf8"
        )
    return psycopg


def _judged(error: Any) -> Exception:
    if error.sqlstate == "42P01":
        return Misuse(
            f"{error}: this connection's database (or search_path) has no oncekey tables. Records "
            "commit with your rows only where they are in the same database: name that one as "
            "store=…, and run `oncekey migrate URL` with its URL"
        )
    judged: Exception = error
    return judged


# ---------------------------------------------------------------------------------- MySQL


def _begun_mysql(store: Store, connection: Any) -> Any:
    _needs(store, "mysql", connection)
    if not joining.begun(connection):
        raise _not_begun("connection.begin()")
    return connection


# ------------------------------------------------------------------------------------ SQLite


class _Joined:
    """Stands for the store's open file: reading and writing are in the caller's transaction."""

    def __init__(self, execute: Callable[..., Any]) -> None:
        self._execute = execute

    def read(self, work: Callable[[Callable[..., Any]], T]) -> T:
        return work(self._execute)

    def write(self, work: Callable[[Callable[..., Any]], T], *, little: bool = False) -> T:
        return work(self._execute)

    write_at_once = read


def _sqlite(store: Store, connection: sqlite3.Connection) -> Ask:
    _needs(store, "sqlite", connection)
    if connection.text_factory in (bytes, bytearray):
        raise Misuse(
            "the text_factory of this connection gives texts as bytes, and texts of records cannot "
            "be read on it: lend one with text_factory = str"
        )

    def execute(statement: str, given: Any = ()) -> sqlite3.Cursor:
        cursor = connection.cursor()
        cursor.row_factory = None
        return cursor.execute(statement, given)

    must_be_same_file(store, execute)
    if not connection.in_transaction:
        if connection.isolation_level is None or getattr(connection, "autocommit", -1) is True:
            raise _not_begun('connection.execute("BEGIN IMMEDIATE")')
        execute("BEGIN IMMEDIATE")  # what this driver would do before the next INSERT or UPDATE
    return _file_ask(execute)


def _file_ask(execute: Callable[..., Any]) -> Ask:
    file = _Joined(execute)
    return lambda question: question(file)


def must_be_same_file(store: Any, execute: Callable[..., Any]) -> None:
    """Raise `Misuse` for a connection to another file of SQLite than the store's."""
    path = next(row[2] for row in execute("PRAGMA database_list").fetchall() if row[1] == "main")
    if not path or not os.path.samefile(path, store.place.path):
        raise Misuse(
            f"the records are in {store.place.path}, the connection to join is one to "
            f"{path or 'memory'}: they commit together only in one file. Name that one as store=…"
        )


# -------------------------------------------------------------------- Django and SQLAlchemy


def _of_django(store: Store, connection: Any) -> Ask:
    if not connection.in_atomic_block:
        raise _not_begun("with transaction.atomic():")
    connection.ensure_connection()
    return blocking(store, connection.connection)


def _of_sqlalchemy(store: Store, connection: Any) -> Ask:
    if not connection.in_transaction():
        raise _not_begun("with engine.begin() as connection:")
    driver = connection.connection.driver_connection
    if is_of(driver, "aiosqlite", "Connection"):
        return _through_cursors(store, connection)
    return blocking(store, driver)


async def _of_async_sqlalchemy(store: Store, connection: Any) -> AsyncAsk:
    if not connection.in_transaction():
        raise _not_begun("async with engine.begin() as connection:")
    driver = (await connection.get_raw_connection()).driver_connection
    if is_of(driver, "aiosqlite", "Connection"):
        return _in_greenlet(store, connection)
    if is_of(driver, "asyncpg", "Connection") and not driver.is_in_transaction():
        await connection.exec_driver_sql("SELECT 1")  # it begins before its first statement
    return await awaited(store, driver)


def _in_greenlet(store: Store, connection: Any) -> AsyncAsk:
    """Where SQLAlchemy makes what is awaited look as if it blocked."""

    async def ask(question: Any) -> Any:
        return await connection.run_sync(lambda blocks: blocking(store, blocks)(question))

    return ask


def _through_cursors(store: Store, connection: Any) -> Ask:
    """aiosqlite, from within SQLAlchemy's greenlet: its cursors look as if they blocked."""
    _needs(store, "sqlite", connection)
    dbapi = connection.connection.dbapi_connection

    def execute(statement: str, given: Any = ()) -> Any:
        cursor = dbapi.cursor()
        cursor.execute(statement, given)
        return cursor

    must_be_same_file(store, execute)
    driver = connection.connection.driver_connection
    if not driver.in_transaction:
        if driver.isolation_level is None:
            raise _not_begun("async with engine.begin() as connection:")
        execute("BEGIN IMMEDIATE")
    return _file_ask(execute)


# ---------------------------------------------------------------------- the same database

_IDENTITY = Question(
    "SELECT current_database(), 'oncekey_claims'::regclass::oid::int8, "
    "(SELECT (extract(epoch FROM min(applied)) * 1000000)::int8 FROM oncekey_schema)"
)


def _postgres_identity() -> Op[Any]:
    [row] = yield _IDENTITY
    return tuple(row)


_IDENTITIES: dict[str, Callable[[], Op[Any]]] = {
    "postgres": _postgres_identity,
    "mysql": joining.identity,
}


def _identity(store: Store) -> Op[Any]:
    return _IDENTITIES[store.name]()


def _own_identity(store: Store) -> Any:
    with closing(store.connect()) as connection:
        return run(_identity(store), connection.ask)


def _finds_nothing(store: Store, outcomes: Sequence[Any]) -> bool:
    """Refused for want of a record: so it always is where the database is another one."""
    return store.name in _IDENTITIES and any(
        isinstance(outcome, Refused) and outcome.record is None for outcome in outcomes
    )


def _compare(here: Any, there: Any) -> None:
    if here != there:
        raise Misuse(
            f"the records are in the database {there[0]}, the connection to join is one to "
            f"{here[0]}, or sees other tables by its search_path: name that one as store=…"
        )
