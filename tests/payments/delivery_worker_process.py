"""The courier that the tests kill: it delivers what is due, and ends.

python -m tests.payments.delivery_worker_process DATA DATABASE_URL LEASE_S POINT COUNT

It dies when it passes POINT, `before_send` or `after_send`, for the COUNTth time.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from oncekey.webhooks import LOOPBACK, Destinations, Sender, Sent
from payments.settings import Settings
from payments.storage.database import Database
from payments.webhooks.senders import Senders
from payments.webhooks.worker import DeliveryWorker, WorkerSettings


class DyingSender(Sender):
    """Kills its own process before or after an attempt."""

    def __init__(self, point: str, count: int) -> None:
        super().__init__(Destinations(https_required=False, allowed=LOOPBACK))
        self._point, self._left, self._guard = point, count, threading.Lock()

    def send(self, url: str, headers: Mapping[str, str], body: bytes) -> Sent:
        self._pass("before_send")
        sent = super().send(url, headers, body)
        self._pass("after_send")
        return sent

    def _pass(self, point: str) -> None:
        with self._guard:
            self._left -= point == self._point
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class DyingSenders(Senders):
    def __init__(self, settings: Settings, point: str, count: int) -> None:
        super().__init__(settings)
        self._deadly = DyingSender(point, count)

    def of(self, tenant: str) -> Sender:
        return self._deadly


def main(data: str, url: str, lease_s: str, point: str, count: str) -> None:
    settings = Settings(data=Path(data), database_url=url, webhook_networks=LOOPBACK)
    database = Database(settings)
    worker = DeliveryWorker(
        database,
        DyingSenders(settings, point, int(count)),
        pace=WorkerSettings(lease_s=float(lease_s), concurrency_max=4, poll_s=0.02),
    )
    worker.drain()
    database.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
