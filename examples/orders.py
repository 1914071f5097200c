"""A small orders API that is safe to retry, on an embedded SQLite file.

    .venv/bin/python examples/orders.py

Each order is written once per Idempotency-Key, however often the request arrives.
"""

from __future__ import annotations

import argparse
import signal
import sqlite3
import sys
import tempfile
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import oncekey
from oncekey.web.asgi import IdempotencyMiddleware

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, account TEXT, item TEXT, quantity INT)"
)


def account_of(request: oncekey.Request) -> str | None:
    """The stable account behind a request. A real application asks its authentication here."""
    return request.headers.get("x-account", "demo")


async def read_json(request: Request) -> dict[str, Any]:
    """The object in the request's body, empty if there is none."""
    try:
        body = await request.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def build(data: Path) -> Starlette:
    """The application, with its orders and its keys below `data`."""
    database = data / "orders.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(SCHEMA)

    async def create(request: Request) -> JSONResponse:
        order = await read_json(request)
        item, quantity = order.get("item"), order.get("quantity", 1)
        if not isinstance(item, str) or not isinstance(quantity, int) or quantity < 1:
            return JSONResponse({"error": "an order has an item and a quantity"}, status_code=422)
        order_id = f"order_{uuid.uuid4().hex[:12]}"
        row = (order_id, request.headers.get("x-account", "demo"), item, quantity)
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("INSERT INTO orders VALUES (?, ?, ?, ?)", row)
        oncekey.current().resource_id = order_id
        location = {"location": f"/orders/{order_id}"}
        body = {"id": order_id, "item": item, "quantity": quantity}
        return JSONResponse(body, status_code=201, headers=location)

    async def read(request: Request) -> JSONResponse:
        with closing(sqlite3.connect(database)) as connection:
            rows = connection.execute("SELECT id, item, quantity FROM orders").fetchall()
        return JSONResponse([{"id": i, "item": item, "quantity": q} for i, item, q in rows])

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    app = Starlette(
        routes=[
            Route("/orders", create, methods=["POST"]),
            Route("/orders", read, methods=["GET"]),
            Route("/healthz", health),
        ]
    )
    app.add_middleware(
        IdempotencyMiddleware,
        store=f"sqlite:///{data / 'keys.db'}",
        tenant=account_of,
        policy=oncekey.Policy(required=True),
        status_path="/idempotency",
    )
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve the orders API.")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--data", type=Path, default=None, help="where to keep its files")
    options = parser.parse_args()
    data = options.data or Path(tempfile.mkdtemp(prefix="oncekey-orders-"))
    data.mkdir(parents=True, exist_ok=True)
    base = f"http://127.0.0.1:{options.port}"
    order = (
        f"curl -i {base}/orders -H 'Idempotency-Key: {uuid.uuid4()}' \\\n"
        """       -H 'Content-Type: application/json' -d '{"item": "tea", "quantity": 2}'"""
    )
    print(
        f"The orders API is on {base}, its files are in {data}\n\n"
        "  Send an order, then send it again: the answer is the same, and says it is a replay.\n"
        f"    {order}\n\n"
        "  There is one order, however often you sent it.\n"
        f"    curl {base}/orders\n",
        flush=True,
    )
    # uvicorn drains, then raises the signal again: a requested shutdown is no failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    uvicorn.run(build(data), host="127.0.0.1", port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
