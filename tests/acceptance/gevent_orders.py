"""Orders under gevent: one key from many greenlets at once, while its handler outlives its lease.

Run by `python -m gevent.monkey`, which changes the threads, locks and sockets of the whole process.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from oncekey import Policy, single_tenant
from oncekey._engine.heartbeat import BEATS_PER_LEASE
from oncekey._system import probes
from oncekey.web.wsgi import IdempotencyMiddleware
from tests.acceptance.shop import WAIT_S_MAX
from tests.web.client import ask_wsgi

CLIENTS = 8


def main(url: str) -> None:
    assert type(threading.Lock()).__module__.startswith("gevent.")
    runs, beats = 0, threading.Semaphore(0)
    probes.arm("after_renew", beats.release)

    def orders(environ: Any, start_response: Any) -> Iterable[bytes]:
        nonlocal runs
        runs += 1
        for _ in range(BEATS_PER_LEASE + 1):
            assert beats.acquire(timeout=WAIT_S_MAX)
        start_response("201 Created", [("content-type", "application/json")])
        return [b'{"order": 1}']

    policy = Policy(lease_s=1.0, in_flight="wait", wait_s=WAIT_S_MAX)
    app = IdempotencyMiddleware(orders, store=url, tenant=single_tenant, policy=policy)
    with ThreadPoolExecutor(CLIENTS) as greenlets:
        replies = list(greenlets.map(lambda _: ask_wsgi(app, "order-1"), range(CLIENTS)))
    app.close()
    told = sorted((reply.status, reply.body.decode(), reply.replayed) for reply in replies)
    json.dump({"runs": runs, "told": told}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
