"""What the tests of the MySQL store share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from oncekey._core.op import run
from oncekey.stores.mysql.store import MySQLStore, open_url
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import FACES
from tests.servers.mariadb import mysql_connection
from tests.stores import elapse

# The server is shared: what other databases' connections do, or wait for, is none of ours.
OTHERS = "FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
LOCK_WAIT = (
    f"{OTHERS} AND id IN (SELECT trx_mysql_thread_id FROM information_schema.innodb_trx "
    "WHERE trx_state = 'LOCK WAIT')"
)


@contextlib.contextmanager
def case_of(face: str, url: str, direct_url: str) -> Iterator[Case]:
    store = open_url(url)
    with contextlib.closing(FACES[face](store)) as asked:
        yield Case(Subject(store, elapse=partial(elapse.mysql, direct_url)), asked)


def migrate(store: MySQLStore) -> list[str]:
    with contextlib.closing(store.connect()) as connection:
        return run(store.migrate(), connection.ask)


@contextlib.contextmanager
def lock_rows(url: str, *ids: bytes, table: str = "oncekey_claims") -> Iterator[Any]:
    """A transaction that has these rows for itself."""
    with mysql_connection(url, autocommit=False) as holder, holder.cursor() as cursor:
        for record_id in ids:
            cursor.execute(f"SELECT 1 FROM {table} WHERE id = %s FOR UPDATE", (record_id,))
        yield cursor
        holder.rollback()


def until(db: Any, condition: str, what: str = "1") -> list[Any]:
    """Wait until there is something of the kind; what was seen then."""
    for _ in range(200):
        with db.cursor() as cursor:
            cursor.execute(f"SELECT {what} {condition}")
            if seen := [row[0] for row in cursor.fetchall()]:
                return seen
        time.sleep(0.15)  # looked at more often, the server's tables of locks are not renewed
    raise AssertionError(f"never came true: {condition}")
