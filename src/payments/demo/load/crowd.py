"""The crowd: shopper processes, killed at random, paying through a network that fails.

It counts what they report; an inspector counts what the network charged and all differences, of
which there should be none.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from oncekey.client import Retries
from payments import clock
from payments.access.accounts import Account, AccountNotFoundError, Accounts
from payments.demo.child_process import ChildProcess
from payments.demo.load.inspector import Inspector
from payments.demo.load.shopper import PAID, WORDS, pick
from payments.network import FAULTS, Network, NetworkDown
from payments.storage import ids
from payments.storage.database import Database

CROWD = Account("acct_crowd")
SHOPPERS = 3
KILL_EVERY_S = 4.0
FAULT_EVERY_S = 2.0
LEAVE_S_MAX = 30.0
READ_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Shop:
    """Where the crowd goes."""

    url: str
    api_key: str
    network_url: str


def rotate_crowd_key(database: Database) -> str:
    """Return a new API key of the crowd's own account.

    So its purchases are not among the checkout page's orders. The account stays the same over
    restarts, so that the purchases in the journals continue under it.
    """
    accounts = Accounts(database)
    try:
        return accounts.rotate(CROWD, overlap_s=0)
    except AccountNotFoundError:
        return accounts.create("The crowd", id_=CROWD.id)[1]


class Crowd:
    """Call `tick` a few times per second, from the main thread."""

    def __init__(self, shop: Shop, folder: Path, database: Database) -> None:
        # No retries: the main loop, which restarts a crashed network, must not wait for it.
        self._network = Network(shop.network_url, retries=Retries(attempts_max=1))
        self._shoppers = [_ShopperProcess(number, folder, shop) for number in range(SHOPPERS)]
        self._inspector = Inspector(shop.network_url, database)
        self._inspector.start()
        self._counts: Counter[str] = Counter()
        self._kills = 0
        self._due: dict[Callable[[], None], float] = {}
        self._leave_by = float("inf")

    def tick(self) -> None:
        """Count what shoppers reported, and cause what is due."""
        for shopper in self._shoppers:
            self._read_output(shopper)
            shopper.start_if_ended()
        self._now_and_then(self._kill, KILL_EVERY_S)
        self._now_and_then(self._arm_fault, FAULT_EVERY_S)

    @property
    def line(self) -> str:
        """The status in a line, most important first, in case it is cut."""
        counts = self._counts
        return (
            f"differences {self.differences} · purchases {counts['purchases']}"
            f" · charges {self._inspector.charges} · clicks {counts['clicks']}"
            f" · requests {counts['requests']} · replays {counts['replays']}"
            f" · refused {counts['refused']} · kills {self._kills}"
        )

    @property
    def differences(self) -> int:
        """What must stay 0: differences between ledger, network and the shoppers' purchases."""
        return self._inspector.differences + self._counts["doubles"]

    def leave(self) -> None:
        """Tell all shoppers to finish their purchases and exit."""
        self._leave_by = clock.monotonic() + LEAVE_S_MAX
        for shopper in self._shoppers:
            shopper.leave()

    @property
    def is_leaving(self) -> bool:
        """Whether a shopper still runs, or the last inspection."""
        if (
            any(shopper.is_running for shopper in self._shoppers)
            and clock.monotonic() < self._leave_by
        ):
            return True
        for shopper in self._shoppers:
            shopper.kill()
            self._read_output(shopper)
        self._inspector.finish()
        return self._inspector.is_alive()

    def close(self) -> None:
        """Kill what is left."""
        for shopper in self._shoppers:
            shopper.close()
        self._inspector.finish()
        self._network.close()

    def _read_output(self, shopper: _ShopperProcess) -> None:
        for word in shopper.read():
            if word in WORDS:
                self._counts[word] += 1
            elif word.startswith(PAID):
                self._inspector.add_acknowledged(word.removeprefix(PAID))

    # ------------------------------------------------------------------------------ faults

    def _kill(self) -> None:
        pick(*self._shoppers).kill()
        self._kills += 1

    def _arm_fault(self) -> None:
        try:
            self._network.arm(pick(*FAULTS))
        except NetworkDown:
            return

    def _now_and_then(self, action: Callable[[], None], every_s: float) -> None:
        now = clock.monotonic()
        if now >= self._due.setdefault(action, now + every_s):
            action()
            self._due[action] = now + every_s * (0.5 + ids.jitter())


class _ShopperProcess:
    """A shopper process. After it dies, the next one continues with the same journal."""

    def __init__(self, number: int, folder: Path, shop: Shop) -> None:
        self._name = f"shopper {number}"
        self._log = folder / "shoppers.log"
        self._command = [sys.executable, "-m", "payments.demo.load.shopper", "--url", shop.url]
        self._command += ["--journal", str(folder / f"intents-{number}.db")]
        self._environment = {**os.environ, "SHOPPER_KEY": shop.api_key}
        self._child: ChildProcess | None = None
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.exit_status is None

    def start_if_ended(self) -> None:
        """Start a process unless one runs."""
        if self.is_running:
            return
        with open(self._log, "ab") as log:
            self._child = ChildProcess(
                self._name,
                self._command,
                output=self._write,
                errors=log,
                environment=self._environment,
            )

    def read(self) -> list[str]:
        """Return the words reported since the last call."""
        try:
            return os.read(self._read, READ_BYTES).decode(errors="replace").split()
        except BlockingIOError:
            return []

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def leave(self) -> None:
        if self._child is not None:
            self._child.signal(signal.SIGTERM)

    def close(self) -> None:
        self.kill()
        for end in (self._read, self._write):
            os.close(end)
