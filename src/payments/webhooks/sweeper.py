"""The event sweeper: deletes old events, their deliveries and the log of attempts.

Pending deliveries stay, however old, and so do their events. It deletes in small transactions, so
that payments need not wait for it. Several sweepers may run.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from payments import clock
from payments.background import PeriodicTask
from payments.storage.database import Database
from payments.storage.tables import deliveries, delivery_attempts, events

ROWS_MAX = 500
"""Deleted in one transaction."""
PAUSE_S = 0.05
"""The pause between two transactions, so that others can write."""

_HAS_DELIVERIES = sa.exists().where(
    deliveries.c.tenant == events.c.tenant, deliveries.c.event == events.c.id
)
_REMOVABLE: tuple[tuple[sa.Table, sa.ColumnElement[bool]], ...] = (
    (delivery_attempts, sa.true()),
    (deliveries, deliveries.c.status != "pending"),
    (events, ~_HAS_DELIVERIES),
)
"""In this order: an event is deleted after its last delivery."""


class EventSweeper(PeriodicTask):
    """Deletes what is older than `retention_s`."""

    every_s = 60.0

    def __init__(self, database: Database, retention_s: float) -> None:
        super().__init__()
        self._database = database
        self._retention_s = retention_s

    def run_once(self) -> int:
        """Delete everything old; return the number of rows."""
        before = clock.now_s() - self._retention_s
        return sum(self._remove(table, condition, before) for table, condition in _REMOVABLE)

    def _remove(self, table: sa.Table, condition: sa.ColumnElement[bool], before: float) -> int:
        total = 0
        while not self.stopping.is_set():
            with self._database.read() as connection:
                if not _exists(connection, table, condition, before):
                    break
            with self._database.begin() as connection:
                deleted = _remove_some(connection, table, condition, before)
            if not deleted:  # others have locked them
                break
            total += deleted
            self.stopping.wait(PAUSE_S)
        return total


def _exists(
    connection: Connection, table: sa.Table, condition: sa.ColumnElement[bool], before: float
) -> bool:
    """Whether there is something to delete. Reads only, so SQLite's writer stays free."""
    found = sa.select(table.c.id).where(table.c.created < before, condition).limit(1)
    return connection.execute(found).first() is not None


def _remove_some(
    connection: Connection, table: sa.Table, condition: sa.ColumnElement[bool], before: float
) -> int:
    """Lock a few rows, then check again before deleting.

    Sending an event again locks it first, so no delivery loses its event.
    """
    few = (
        sa.select(table.c.tenant, table.c.id)
        .where(table.c.created < before, condition)
        .order_by(table.c.created)
        .limit(ROWS_MAX)
        .with_for_update(skip_locked=True, of=table)
    )
    found = [(row.tenant, row.id) for row in connection.execute(few)]
    these = sa.tuple_(table.c.tenant, table.c.id).in_(found)
    return connection.execute(table.delete().where(these, condition)).rowcount
