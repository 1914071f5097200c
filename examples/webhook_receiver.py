"""A service that receives webhooks: every event is booked once, however often it is delivered.

    WEBHOOK_SECRET=whsec_… python examples/webhook_receiver.py          # on http://127.0.0.1:4242

Register http://127.0.0.1:4242/webhooks with the sender of events, such as Stripe or the payments
API of this repository. The booking and the note that its event was handled commit
together, and only then does the sender get its response. Kill it at any moment: events without a
response are delivered again, and what was booked is not booked again.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, Request, Response

import oncekey
from oncekey.webhooks import Event, Receiver, Scheme


def book(database: sqlite3.Connection, event: Event) -> None:
    """What the service does about an event. Its only effects are rows."""
    content = event.json()
    database.execute("INSERT INTO bookings VALUES (?, ?)", (event.id, content["type"]))


async def raw(request: Request) -> bytes:
    """The body as it was signed: nothing may parse and write it anew on the way."""
    return await request.body()


def create_app(secrets: list[str], file: Path, scheme: Scheme = Scheme.STRIPE) -> FastAPI:
    runtime = oncekey.Runtime(f"sqlite:///{file}")
    receiver = Receiver(runtime, name="bookings", secrets=secrets, scheme=scheme)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with closing(connect(file)) as database:
            database.execute("CREATE TABLE IF NOT EXISTS bookings (event TEXT, type TEXT)")
        with runtime:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/webhooks")
    def webhooks(request: Request, body: Annotated[bytes, Depends(raw)]) -> Response:
        with closing(connect(file)) as database:
            with database:  # commits; rolls back on every exception, which becomes a 500
                receipt = receiver.receive_in_sync(
                    database, request.headers, body, lambda event: book(database, event)
                )
            return Response(receipt.body, receipt.status, receipt.headers)

    @app.get("/bookings")
    def bookings() -> dict[str, Any]:
        with closing(connect(file)) as database:
            rows = database.execute(
                "SELECT event, type FROM bookings ORDER BY rowid DESC LIMIT 100"
            )
            return {"bookings": [{"event": event, "type": type} for event, type in rows]}

    return app


def connect(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file, timeout=10)


def main() -> None:
    parser = argparse.ArgumentParser(description="Book every event once.")
    parser.add_argument("--port", type=int, default=4242)
    parser.add_argument("--data", type=Path, default=Path(), help="where to keep its file")
    parser.add_argument("--scheme", choices=[s.value for s in Scheme], default=Scheme.STRIPE.value)
    args = parser.parse_args()
    secrets = [text for text in os.environ.get("WEBHOOK_SECRET", "").split(",") if text]
    if not secrets:
        parser.error("WEBHOOK_SECRET is not set: the sender shows it when you register the URL")
    app = create_app(secrets, args.data / "bookings.db", Scheme(args.scheme))
    uvicorn.run(app, port=args.port)


if __name__ == "__main__":
    main()
