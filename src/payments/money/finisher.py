"""The finisher: completes charges, captures and refunds that still wait for the card network.

Usually a client's retry finishes them or, if the process died, oncekey's recoverer. One case is
left: the network did not answer, the client got an error and never retried. The row says what was
about to happen and under which key, so anyone can call the network again and record the result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError, ProgrammingError

from payments import clock
from payments.background import PeriodicTask
from payments.money import orders, settlement
from payments.network import Network, NetworkDown
from payments.storage import rows
from payments.storage.database import Database
from payments.storage.tables import charges as charge_rows
from payments.storage.tables import refunds as refund_rows

log = logging.getLogger("payments")

Finish = Callable[[Database, Network, Row[Any]], None]

ROWS_MAX = 100


class Finisher(PeriodicTask):
    """Finishes what nobody else does. Several may run: a row settles once."""

    every_s = 10.0

    def __init__(self, database: Database, network: Network, patience_s: float) -> None:
        super().__init__()
        self._database = database
        self._network = network
        self._patience_s = patience_s

    def run_once(self) -> int:
        """Finish what has waited long enough and return how many there were."""
        finished = 0
        with self._database.read() as connection:
            waiting = list(_find_waiting(connection, clock.now_s(), self._patience_s))
        for row, finish in waiting:
            if self.stopping.is_set():
                break
            try:
                finish(self._database, self._network, row)
                finished += 1
            except NetworkDown as error:
                log.warning("%s is still unfinished: %s", row.id, error)
                return finished  # the other rows would wait for it too
            except (InterfaceError, InternalError, OperationalError, ProgrammingError):
                raise  # the database is gone or read-only: the other rows would fail too
            except Exception:
                log.exception("%s is still unfinished and will be retried", row.id)
        return finished


def _find_waiting(
    connection: Connection, now: int, patience_s: float
) -> Iterator[tuple[Row[Any], Finish]]:
    def long_ago(since: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
        # A time in the future, from when the machine's clock was ahead, counts as long ago.
        return sa.or_(since < now - patience_s, since > now + patience_s)

    charge, refund = charge_rows.c, refund_rows.c
    pending = sa.select(charge_rows).where(charge.status == "pending", long_ago(charge.created))
    settling = sa.select(charge_rows).where(
        charge.settling.is_not(None), long_ago(charge.settling_since)
    )
    ends_with_its_charge = sa.exists().where(
        charge.tenant == refund.tenant,
        charge.id == refund.charge,
        charge.settling == refund.network_key,
    )
    refunding = sa.select(refund_rows).where(
        refund.status == "pending", long_ago(refund.created), ~ends_with_its_charge
    )
    for query, finish in (
        (pending, _finish_charge),
        (settling, _finish_settling),
        (refunding, _finish_refund),
    ):
        for row in connection.execute(query.limit(ROWS_MAX)):
            yield row, finish


def _finish_charge(database: Database, network: Network, row: Row[Any]) -> None:
    outcome = orders.authorise(network, orders.of_charge(row._mapping))
    with database.begin() as connection:
        settlement.record_authorisation(connection, row.tenant, row.id, outcome, None)


def _finish_settling(database: Database, network: Network, row: Row[Any]) -> None:
    order = orders.of_settling(row)
    done = orders.settle(network, order) is None
    with database.begin() as connection:
        settlement.record_settlement(connection, row.tenant, order, done, None)


def _finish_refund(database: Database, network: Network, row: Row[Any]) -> None:
    with database.read() as connection:
        charge = rows.get(connection, charge_rows, row.tenant, row.charge)
    network_id = orders.give_back(network, orders.of_refund(row._mapping, charge.authorisation))
    with database.begin() as connection:
        settlement.record_refund(connection, row.tenant, row.id, network_id, None)
