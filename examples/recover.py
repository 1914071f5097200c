"""A booking of three steps whose process dies halfway, and whose client never retries.

    python examples/recover.py

Serves itself in a process that dies after the second step, then recovers the operation. In
production the recoverer runs in the application's lifespan, as here, or in a separate process:

    oncekey recover examples.recover:app
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

import oncekey
from oncekey import Recoverer
from oncekey.web.asgi import IdempotencyMiddleware

FOLDER = Path(os.environ.get("DATA") or tempfile.mkdtemp(prefix="oncekey-"))
STORE = f"sqlite:///{FOLDER / 'keys.db'}"
DIES = "DIES" in os.environ


def does(name: str) -> str:
    """What a step does. A real one calls another service, and sends `child_key(name)` along."""
    with (FOLDER / "effects.txt").open("a") as effects:
        effects.write(f"{name}\n")
    return f"{name} done"


async def book(request: Request) -> JSONResponse:
    trip = await request.json()
    attempt = oncekey.current()
    flight = await attempt.step("flight", does, "flight")
    hotel = await attempt.step("hotel", does, "hotel")
    if DIES:
        os._exit(1)  # like a power failure
    mail = await attempt.step("mail", does, "mail")
    return JSONResponse({"to": trip["to"], "steps": [flight, hotel, mail]}, status_code=201)


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with Recoverer(STORE, report=lambda recovered: print("recovered:", recovered.ending)):
        yield


app = Starlette(routes=[Route("/trips", book, methods=["POST"])], lifespan=lifespan)
app.add_middleware(
    IdempotencyMiddleware,
    store=STORE,
    tenant=oncekey.single_tenant,
    policy=oncekey.Policy(recovery="resume", lease_s=1.0),
)


def main() -> None:
    if DIES:
        TestClient(app).post("/trips", json={"to": "Rome"}, headers={"Idempotency-Key": "trip-1"})
        return
    environment = {**os.environ, "DIES": "1", "DATA": str(FOLDER)}
    died = subprocess.run([sys.executable, __file__], env=environment)  # noqa: S603
    effects = FOLDER / "effects.txt"
    print("the process ended with", died.returncode)
    print("it had done:", ", ".join(effects.read_text().split()))
    with TestClient(app):  # as a server: the lifespan starts, and with it the recoverer
        for _ in range(100):
            if "mail" in effects.read_text():
                break
            time.sleep(0.1)
    print("done in the end:", ", ".join(effects.read_text().split()))


if __name__ == "__main__":
    main()
