"""A long body under gevent: what other greenlets do while it is looked into.

Run by `python -m gevent.monkey`, which changes the threads, locks and sockets of the whole process.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from oncekey import Policy, single_tenant
from oncekey.web.wsgi import IdempotencyMiddleware
from tests.web.client import ask_wsgi

BODY = b"[" + b",".join([b"1e308"] * 150_000) + b"]"


def main(url: str) -> None:
    assert type(threading.Lock()).__module__.startswith("gevent.")
    turns, over = 0, threading.Event()

    def orders(environ: Any, start_response: Any) -> Iterable[bytes]:
        over.set()
        start_response("201 Created", [("content-type", "application/json")])
        return [b"%d" % len(environ["wsgi.input"].read(len(BODY)))]

    def take_turns() -> None:
        nonlocal turns
        while not over.is_set():
            turns += 1
            time.sleep(0.001)

    policy = Policy(recovery="block")
    app = IdempotencyMiddleware(orders, store=url, tenant=single_tenant, policy=policy)
    other = threading.Thread(target=take_turns)
    other.start()
    replies = [ask_wsgi(app, "order-1", BODY) for _ in range(2)]
    other.join()
    app.close()
    told = [[reply.status, reply.body.decode(), reply.replayed] for reply in replies]
    json.dump({"turns": turns, "told": told}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
