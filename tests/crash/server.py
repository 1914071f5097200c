"""The application that the crash tests kill: every run leaves one line in a ledger file.

python -m tests.crash.server PORT STORE_URL LEDGER POLICY_JSON
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from oncekey import Policy, current, open_store, single_tenant
from oncekey.steps import current_child_key as child_key
from oncekey.testing.crash import arm_from_environment
from oncekey.web.asgi import IdempotencyMiddleware
from tests import observing
from tests.crash import downstream

POLL_S = 0.01
SECRETS = "ONCEKEY_TEST_SECRETS"
"""Where this is set, records are sealed."""


async def hold(sign: Path, *, blocking: bool) -> None:
    """Wait for a file to appear; `blocking` keeps the event loop from doing anything else."""
    while not sign.exists():  # noqa: ASYNC240  (a look at a local file does not block)
        if blocking:
            time.sleep(POLL_S)  # noqa: ASYNC251  (this is what the test is about)
        else:
            await asyncio.sleep(POLL_S)


def build(store: str, ledger: str, policy: Policy) -> Starlette:
    observing.arrange()
    ledger_file = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def pay(request: Request) -> JSONResponse:
        order = await request.json()
        attempt = current()
        # One write to a file opened for appending: it survives the death of this process whole.
        line = json.dumps({"key": attempt.key, "attempt": attempt.attempt, "pid": os.getpid()})
        os.write(ledger_file, line.encode() + b"\n")
        if "until" in order:
            await hold(Path(order["until"]), blocking=order.get("blocking", False))
        if order.get("fail_attempt") == attempt.attempt:
            return JSONResponse({"error": "out of order"}, status_code=503)
        return JSONResponse({"paid_by": os.getpid(), "attempt": attempt.attempt}, status_code=201)

    async def book(request: Request) -> JSONResponse:
        """Three steps, each of which asks another service that takes its key."""
        order = await request.json()
        attempt = current()

        def asks(name: str) -> dict[str, str]:
            body = {"order": attempt.key}
            found = downstream.ask(order["downstream"], "POST", f"/{name}", body, child_key.get())
            return {"id": found["id"]}

        once = order.get("at_most_once", "")
        made = [
            await attempt.step(name, asks, name, at_most_once=name == once)
            for name in ("reserve", "charge", "mail")
        ]
        return JSONResponse({"made": [part["id"] for part in made]}, status_code=201)

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"pid": os.getpid()})

    app = Starlette(
        routes=[
            Route("/pay", pay, methods=["POST"]),
            Route("/book", book, methods=["POST"]),
            Route("/healthz", health),
        ]
    )
    secrets = os.environ.get(SECRETS)
    opened = open_store(store, secrets=secrets) if secrets else store
    app.add_middleware(IdempotencyMiddleware, store=opened, tenant=single_tenant, policy=policy)
    return app


def main() -> None:
    port, store, ledger, policy = sys.argv[1:]
    arm_from_environment()
    app = build(store, ledger, Policy(**json.loads(policy)))
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="error")


if __name__ == "__main__":
    main()
