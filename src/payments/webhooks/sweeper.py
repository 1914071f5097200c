"""The sweeper: events, their deliveries and the log of attempts are kept for a while, then removed.

What still waits to be delivered stays, however old it is, and so does its event. Everything goes in
small transactions, so that nobody who moves money waits for it. Several sweepers may run.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from payments import clock
from payments.background import PeriodicTask
from payments.storage.database import Database
from payments.storage.tables import deliveries, delivery_attempts, events

ROWS_MAX = 500
"""Removed at once."""
PAUSE_S = 0.05
"""Between two transactions, for others to write."""

_HAS_DELIVERIES = sa.exists().where(
    deliveries.c.tenant == events.c.tenant, deliveries.c.event == events.c.id
)
_REMOVABLE: tuple[tuple[sa.Table, sa.ColumnElement[bool]], ...] = (
    (delivery_attempts, sa.true()),
    (deliveries, deliveries.c.status != "pending"),
    (events, ~_HAS_DELIVERIES),
)
"""In this order: an event goes after its last delivery."""


class EventSweeper(PeriodicTask):
    """Removes what is older than `kept_s`."""

    every_s = 60.0

    def __init__(self, database: Database, kept_s: float) -> None:
        super().__init__()
        self._database = database
        self._kept_s = kept_s

    def run_once(self) -> int:
        """Remove all that is old; how many rows that were."""
        before = clock.now_s() - self._kept_s
        return sum(self._remove(table, may_go, before) for table, may_go in _REMOVABLE)

    def _remove(self, table: sa.Table, may_go: sa.ColumnElement[bool], before: float) -> int:
        removed = 0
        while not self.stopping.is_set():
            with self._database.read() as connection:
                if not _any(connection, table, may_go, before):
                    break
            with self._database.begin() as connection:
                gone = _remove_some(connection, table, may_go, before)
            if not gone:  # others are at them
                break
            removed += gone
            self.stopping.wait(PAUSE_S)
        return removed


def _any(
    connection: Connection, table: sa.Table, may_go: sa.ColumnElement[bool], before: float
) -> bool:
    """Whether there is something to remove: reads only, and leaves SQLite's writer to others."""
    found = sa.select(table.c.id).where(table.c.created < before, may_go).limit(1)
    return connection.execute(found).first() is not None


def _remove_some(
    connection: Connection, table: sa.Table, may_go: sa.ColumnElement[bool], before: float
) -> int:
    """Lock a few, then look again: whoever sends an event once more has locked it before, so that
    no delivery is left without its event.
    """
    few = (
        sa.select(table.c.tenant, table.c.id)
        .where(table.c.created < before, may_go)
        .order_by(table.c.created)
        .limit(ROWS_MAX)
        .with_for_update(skip_locked=True, of=table)
    )
    found = [(row.tenant, row.id) for row in connection.execute(few)]
    these = sa.tuple_(table.c.tenant, table.c.id).in_(found)
    return connection.execute(table.delete().where(these, may_go)).rowcount
