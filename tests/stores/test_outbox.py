"""The outbox's table, as workers ask of it, where they get into each other's way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from oncekey._core.op import Op, run
from oncekey.stores.outbox import DUE_S_MAX, ReturnedRow
from tests.messaging.outbox_databases import (
    OutboxDatabase,
    mariadb_outbox,
    mysql_outbox,
    outbox_db,
    postgres_outbox,
    sqlite_outbox,
)

__all__ = ["mariadb_outbox", "mysql_outbox", "outbox_db", "postgres_outbox", "sqlite_outbox"]

LEASE_S = 30.0
ONE, OTHER = b"1" * 16, b"2" * 16
Ask = Callable[[Op[Any]], Any]


@pytest.fixture
def ask(outbox_db: OutboxDatabase) -> Iterator[Ask]:
    """How a worker asks."""
    store = outbox_db.outbox.store
    with closing(store.connect()) as connection:
        run(store.prepare(), connection.ask)
        yield lambda op: run(op, connection.ask)


def claim(outbox_db: OutboxDatabase, ask: Ask, ns: list[int], token: bytes) -> list[int]:
    taken = ask(outbox_db.outbox.table.claim(ns, token, lease_s=LEASE_S, attempts_max=5))
    return [row.n for row in taken]


def heads(outbox_db: OutboxDatabase, ask: Ask) -> list[int]:
    return [head.n for head in ask(outbox_db.outbox.table.look(b"", 10))]


def test_a_worker_whose_lease_is_over_changes_nothing_that_another_has(
    outbox_db: OutboxDatabase, ask: Ask
) -> None:
    outbox_db.put("orders", b"1")
    shelf, ns = outbox_db.outbox.table, heads(outbox_db, ask)
    assert claim(outbox_db, ask, ns, ONE) == ns
    assert claim(outbox_db, ask, ns, OTHER) == []  # the lease holds
    outbox_db.elapse(LEASE_S)
    assert claim(outbox_db, ask, ns, OTHER) == ns
    assert ask(shelf.remove(ns, ONE)) == 0
    assert ask(shelf.give_back([ReturnedRow(ns[0], 0.0, 0, "late", True)], ONE)) == 0
    assert ask(shelf.list_parked(10)) == []
    assert ask(shelf.remove(ns, OTHER)) == 1
    assert outbox_db.count_waiting() == 0


@pytest.mark.parametrize(
    "outbox_db", ["postgres", pytest.param("mariadb", marks=pytest.mark.slow)], indirect=True
)
def test_what_another_is_about_to_claim_is_not_waited_for(
    outbox_db: OutboxDatabase, ask: Ask
) -> None:
    for payload in (b"1", b"2", b"3"):
        outbox_db.put("orders", payload)
    first, second, third = sorted(heads(outbox_db, ask))
    with outbox_db.connect() as another:
        another.cursor().execute(f"SELECT n FROM oncekey_outbox WHERE n = {second} FOR UPDATE")
        assert claim(outbox_db, ask, [first, second, third], ONE) == [first, third]
    assert claim(outbox_db, ask, [first, second, third], OTHER) == [second]


@pytest.mark.parametrize(
    "outbox_db", ["postgres", pytest.param("mariadb", marks=pytest.mark.slow)], indirect=True
)
def test_a_clock_that_is_set_back_far_holds_up_nobody(outbox_db: OutboxDatabase, ask: Ask) -> None:
    """SQLite goes by the host's boot clock, which nobody sets."""
    outbox_db.put("orders", b"1", key="k")
    ns = heads(outbox_db, ask)
    assert claim(outbox_db, ask, ns, ONE) == ns

    outbox_db.elapse(2 * LEASE_S - DUE_S_MAX)
    assert claim(outbox_db, ask, ns, OTHER) == [], "as long as somebody's lease may be"
    outbox_db.elapse(-2 * LEASE_S)

    assert [head.due for head in ask(outbox_db.outbox.table.look(b"", 10))] == [True]
    assert claim(outbox_db, ask, ns, OTHER) == ns


def test_lanes_that_are_longer_than_what_is_looked_at_hide_nobody(
    outbox_db: OutboxDatabase, ask: Ask
) -> None:
    with outbox_db.connect() as connection:
        for i in range(20):
            outbox_db.outbox.put_sync(connection, "orders", b"", key=f"k{i % 4}")
    seen = ask(outbox_db.outbox.table.look(b"", 3))
    assert len({head.lane for head in seen}) == len(seen) == 3
    rest = ask(outbox_db.outbox.table.look(seen[-1].lane, 3))
    first = sorted(heads(outbox_db, ask))
    assert sorted(head.n for head in (*seen, *rest)) == first
    assert first == list(range(first[0], first[0] + 4))
