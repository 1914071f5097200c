"""The inspector: checks in a thread that the crowd was charged correctly.

It counts what the network charged and compares that with the ledger, with what the shoppers were
told, and with what they wanted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import sqlalchemy as sa

from oncekey.client import Retries
from payments import clock
from payments.money.reconcile import reconcile
from payments.network import Network, NetworkDown, Transaction
from payments.storage.database import Database
from payments.storage.tables import charges

COUNT_EVERY_S = 1.0
INSPECT_EVERY_S = 5.0
INSPECT_SHARE = 0.1
"""Books grow: comparing them must not take more of the time than this."""
LAST_LOOK_S_MAX = 30.0


class Inspector(threading.Thread):
    """Its numbers may be read at any time, from any thread."""

    def __init__(self, network_url: str, database: Database) -> None:
        super().__init__(name="inspector", daemon=True)
        # No retries: the network may be down until the supervisor restarts it.
        self._network = Network(network_url, retries=Retries(attempts_max=1))
        self._database = database
        self._acknowledged: set[str] = set()
        self._lock = threading.Lock()
        self._last = threading.Event()
        self.charges = 0
        """Cards that were charged, as the network counts them."""
        self.differences = 0
        """As of the last inspection."""
        self.lost = 0
        """Charges that a shopper was told of but the network does not have."""

    def add_acknowledged(self, charge: str) -> None:
        """Note that a shopper was told that this charge succeeded."""
        with self._lock:
            self._acknowledged.add(charge)

    def finish(self) -> None:
        """Inspect everything once more, then end."""
        self._last.set()

    def run(self) -> None:
        next_look = clock.monotonic() + INSPECT_EVERY_S
        while not self._last.wait(COUNT_EVERY_S):
            self._count()
            began = clock.monotonic()
            if began >= next_look:
                self._inspect()
                took_s = clock.monotonic() - began
                next_look = began + max(INSPECT_EVERY_S, took_s / INSPECT_SHARE)
        deadline = clock.monotonic() + LAST_LOOK_S_MAX
        while not self._inspect() and clock.monotonic() < deadline:
            time.sleep(0.1)
        self._network.close()

    def _count(self) -> bool:
        try:
            self.charges = self._network.tally().captures
        except NetworkDown:
            return False  # it is being restarted
        return True

    def _inspect(self) -> bool:
        """Compare everything; False if the network is down."""
        with self._lock:
            acknowledged, self._acknowledged = self._acknowledged, set()
        taken: set[str] = set()

        def lines() -> Iterator[Transaction]:
            for line in self._network.transactions():
                if line.kind == "capture":
                    taken.add(line.reference)
                yield line

        try:
            report = reconcile(self._database, lines)
        except NetworkDown:
            with self._lock:
                self._acknowledged |= acknowledged
            return False
        self.lost += len(acknowledged - taken)
        self.differences = len(report.differences) + _charged_twice(self._database) + self.lost
        return self._count()


def _charged_twice(database: Database) -> int:
    """Count purchases that were charged more than once."""
    columns = charges.c
    often = (
        sa.select(columns.description)
        .where(columns.status == "succeeded", columns.description.like("purchase %"))
        .group_by(columns.description)
        .having(sa.func.count() > 1)
    )
    with database.read() as connection:
        return len(connection.execute(often).all())
