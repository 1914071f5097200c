"""The crowd: shoppers in processes of their own, killed at random, over a network that fails.

It counts what they tell, what the network charged, and what differs; nothing ever should.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from oncekey.client import Retries
from payments import clock, ids
from payments.child import Child
from payments.database import Database
from payments.network import FAULTS, Network, NetworkDown
from payments.reconcile import reconcile
from payments.shopper import WORDS, chosen
from payments.tables import charges

SHOPPERS = 3
KILL_EVERY_S = 4.0
FAULT_EVERY_S = 2.0
CHECK_EVERY_S = 5.0
LEAVE_S_MAX = 30.0
READ_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Shop:
    """Where the crowd goes."""

    url: str
    api_key: str
    network_url: str


class Crowd:
    """Call `tick` a few times per second, from the main thread."""

    def __init__(
        self, shop: Shop, folder: Path, database: Database, *, shoppers: int = SHOPPERS
    ) -> None:
        self._shop = shop
        self._database = database
        # Asked once, never again: while it is down, whoever waits for it may have to start it.
        self._network = Network(shop.network_url, retries=Retries(attempts_max=1))
        self._aside = ThreadPoolExecutor(1, "crowd")
        self._seats = [_Seat(number, folder, shop) for number in range(shoppers)]
        self._counts: Counter[str] = Counter()
        self._kills = 0
        self._differences = 0
        self._leave_by = 0.0
        self._charges = 0
        self._due: dict[Callable[[], None], float] = {}
        self._checking: Future[None] | None = None

    def tick(self) -> None:
        """Count what was told, and let happen what is due."""
        for seat in self._seats:
            self._counts.update(seat.read())
            seat.fill()
        self._now_and_then(self._kill, KILL_EVERY_S)
        self._now_and_then(self._spoil, FAULT_EVERY_S)
        self._now_and_then(self._check_aside, CHECK_EVERY_S)

    @property
    def line(self) -> str:
        """How it stands, in a line."""
        counts = self._counts
        return (
            f"purchases {counts['purchases']} · clicks {counts['clicks']}"
            f" · requests {counts['requests']} · charges {self._charges}"
            f" · replays {counts['replays']} · refused {counts['refused']}"
            f" · kills {self._kills} · differences {self.differences}"
        )

    @property
    def differences(self) -> int:
        """What must stay 0: between ledger and network, and purchases that were charged twice."""
        return self._differences + self._counts["doubles"]

    def check(self) -> None:
        """Ask the network what it charged, and compare it with the ledger."""
        try:
            self._charges = self._network.tally().captures
            report = reconcile(self._database, self._network.transactions)
        except NetworkDown:
            return  # it is being started again
        self._differences = len(report.differences) + _twice(self._database)

    def leave(self) -> None:
        """Everybody may finish what is in hand, and go."""
        self._leave_by = clock.monotonic() + LEAVE_S_MAX
        for seat in self._seats:
            seat.leave()

    @property
    def leaving(self) -> bool:
        """Whether somebody is still there, and may be."""
        return clock.monotonic() < self._leave_by and any(seat.taken for seat in self._seats)

    def close(self) -> None:
        """Nobody is there any more; a last look at what happened."""
        for seat in self._seats:
            seat.kill()
            self._counts.update(seat.read())
        self._aside.shutdown()
        self.check()
        self._network.close()

    # ------------------------------------------------------------------------------ what goes wrong

    def _kill(self) -> None:
        chosen(*self._seats).kill()
        self._kills += 1

    def _spoil(self) -> None:
        try:
            self._network.arm(chosen(*FAULTS))
        except NetworkDown:
            return

    def _check_aside(self) -> None:
        """In another thread: children must be looked after meanwhile."""
        if self._checking is None or self._checking.done():
            self._checking = self._aside.submit(self.check)

    def _now_and_then(self, action: Callable[[], None], every_s: float) -> None:
        now = clock.monotonic()
        if now >= self._due.setdefault(action, now + every_s * ids.spread()):
            action()
            self._due[action] = clock.monotonic() + every_s * (0.5 + ids.spread())


class _Seat:
    """A place in the crowd: whoever dies in it is followed by another one with the same journal."""

    def __init__(self, number: int, folder: Path, shop: Shop) -> None:
        self._name = f"shopper {number}"
        self._log = folder / "shoppers.log"
        self._command = [sys.executable, "-m", "payments.shopper", "--url", shop.url]
        self._command += ["--journal", str(folder / f"intents-{number}.db")]
        self._environment = {**os.environ, "SHOPPER_KEY": shop.api_key}
        self._child: Child | None = None
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)

    def fill(self) -> None:
        """Somebody sits here."""
        if self._child is None or self._child.ended is not None:
            with open(self._log, "ab") as log:
                self._child = Child(
                    self._name,
                    self._command,
                    output=self._write,
                    errors=log,
                    environment=self._environment,
                )

    def read(self) -> Counter[str]:
        """What was told since."""
        try:
            text = os.read(self._read, READ_BYTES)
        except BlockingIOError:
            return Counter()
        told = text.decode(errors="replace").split()
        return Counter(word for word in told if word in WORDS)

    @property
    def taken(self) -> bool:
        return self._child is not None and self._child.ended is None

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def leave(self) -> None:
        if self._child is not None:
            self._child.signal(signal.SIGTERM)


def _twice(database: Database) -> int:
    """Purchases that were charged more than once."""
    columns = charges.c
    often = (
        sa.select(columns.description)
        .where(columns.status == "succeeded", columns.description.like("purchase %"))
        .group_by(columns.description)
        .having(sa.func.count() > 1)
    )
    with database.read() as connection:
        return len(connection.execute(often).all())
