"""The application that the crash tests kill: every run leaves one line in a ledger file.

python -m tests.crash.server PORT STORE_URL LEDGER POLICY_JSON

It serves from an event loop; `tests.crash.wsgi` is the same from threads.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from oncekey import Answer, Learned, Policy, current, open_store, single_tenant
from oncekey._engine.attempt import Attempt
from oncekey._engine.steps import current_child_key as child_key
from oncekey.stores.base import Store
from oncekey.stores.urls import Unsealed
from oncekey.testing.crash import arm_from_environment
from oncekey.web.asgi import IdempotencyMiddleware
from tests import observing
from tests.crash import downstream

POLL_S = 0.01
SECRETS = "ONCEKEY_TEST_SECRETS"
"""Where this is set, records are sealed."""

ANSWERS, RAISES, CUT_OFF = HOWS = ("answers 503", "raises", "is cut off")
"""How an attempt fails, after its effect. A thread cannot be cut off: it raises."""

App = TypeVar("App")


class Ledger:
    """A file in which every run leaves a line."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, attempt: Attempt) -> None:
        # One write to a file opened for appending: it survives the death of this process whole.
        line = json.dumps({"key": attempt.key, "attempt": attempt.attempt, "pid": os.getpid()})
        os.write(self._file, line.encode() + b"\n")


def open_sealed(url: str) -> Store:
    """The store, sealed where the environment says so."""
    return open_store(url, secrets=os.environ.get(SECRETS, Unsealed.UNSEALED))


def receipt(order: dict[str, Any], attempt: Attempt) -> tuple[dict[str, Any], int]:
    """What is answered when it is paid, unless this attempt is to fail."""
    if order.get("fail_attempt") == attempt.attempt:
        if order.get("how", ANSWERS) != ANSWERS:
            raise RuntimeError("the bank did not answer")
        return {"error": "out of order"}, 503
    return {"paid_by": os.getpid(), "attempt": attempt.attempt}, 201


def find_out(ledger: str, attempt: Attempt) -> Answer | Learned:
    """What the application knows of an attempt that died: its ledger has the effect, or not."""
    for line in Path(ledger).read_text().splitlines():
        if json.loads(line)["key"] == attempt.key:
            return Answer(201, ((b"content-type", b"application/json"),), line.encode())
    return Learned.NOT_DONE


BOOKED = ("reserve", "charge", "mail")
"""The steps, each of which asks another service that takes its key."""


def ask_for(name: str, port: int, order: str) -> dict[str, str]:
    found = downstream.ask(port, "POST", f"/{name}", {"order": order}, child_key.get())
    return {"id": found["id"]}


async def hold(sign: Path, *, blocking: bool) -> None:
    """Wait for a file to appear; `blocking` keeps the event loop from doing anything else."""
    while not sign.exists():  # noqa: ASYNC240  (a look at a local file does not block)
        if blocking:
            time.sleep(POLL_S)  # noqa: ASYNC251  (this is what the test is about)
        else:
            await asyncio.sleep(POLL_S)


def build(store: str, ledger: str, policy: Policy) -> Starlette:
    observing.arrange()
    lines = Ledger(ledger)

    async def pay(request: Request) -> JSONResponse:
        order, attempt = await request.json(), current()
        lines.note(attempt)
        if "until" in order:
            await hold(Path(order["until"]), blocking=order.get("blocking", False))
        if order.get("how") == CUT_OFF and order["fail_attempt"] == attempt.attempt:
            async with asyncio.timeout(POLL_S):
                await asyncio.Event().wait()
        return JSONResponse(*receipt(order, attempt))

    async def book(request: Request) -> JSONResponse:
        order, attempt = await request.json(), current()
        once, port = order.get("at_most_once"), order["downstream"]
        made = [
            await attempt.step(name, ask_for, name, port, attempt.key, at_most_once=name == once)
            for name in BOOKED
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
    app.add_middleware(
        IdempotencyMiddleware, store=open_sealed(store), tenant=single_tenant, policy=policy
    )
    return app


def described(build: Callable[[str, str, Policy], App]) -> tuple[App, int]:
    """The application that the command describes, and the port to serve it on."""
    port, store, ledger, text = sys.argv[1:]
    arm_from_environment()
    policy = json.loads(text)
    if policy.get("recovery") == "ask":
        policy["ask"] = partial(find_out, ledger)
    return build(store, ledger, Policy(**policy)), int(port)


def main() -> None:
    app, port = described(build)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


if __name__ == "__main__":
    main()
