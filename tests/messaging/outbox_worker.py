"""The worker that the tests kill: its broker is a file to which every publication adds a line.

python -m tests.messaging.outbox_worker OUTBOX_URL BROKER_FILE LEASE_S POINT COUNT

It dies when it passes POINT, a probe or `publishing`, for the COUNTth time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable

from oncekey._system import probes
from oncekey.messaging import Limits, Message, Outbox, Publisher

BATCH_MAX = 6


def deadly(count: int) -> Callable[[], None]:
    left = count

    def pass_by() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return pass_by


def main(url: str, broker: str, lease_s: str, point: str, count: str) -> None:
    file = os.open(broker, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    die = deadly(int(count))
    if point != "publishing":
        probes.arm(point, die)

    def publish(message: Message) -> None:
        line = {"id": message.id, "key": message.key, "payload": message.payload.decode()}
        os.write(file, json.dumps(line).encode() + b"\n")  # whole, whoever dies
        if point == "publishing":
            die()

    limits = Limits(lease_s=float(lease_s), batch_max=BATCH_MAX)
    Publisher(Outbox(url), publish, limits=limits).drain_sync()


if __name__ == "__main__":
    main(*sys.argv[1:])
