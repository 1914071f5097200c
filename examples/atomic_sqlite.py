"""Orders that commit with their responses: one SQLite file, nothing else.

uvicorn --factory examples.atomic_sqlite:build
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import oncekey
from oncekey import Policy, atomic
from oncekey.web.asgi import IdempotencyMiddleware

ORDERS = "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)"


async def create(request: Request) -> JSONResponse:
    item = (await request.json())["item"]
    connection: sqlite3.Connection = oncekey.current().connection  # do not commit: oncekey does
    number = connection.execute("INSERT INTO orders (item) VALUES (?)", (item,)).lastrowid
    return JSONResponse({"id": number, "item": item}, status_code=201)


def build(file: Path = Path("shop.db")) -> Starlette:
    """The application; its records are in the same file as its orders."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(ORDERS)
    app = Starlette(routes=[Route("/orders", create, methods=["POST"])])
    app.add_middleware(
        IdempotencyMiddleware,
        store=f"sqlite:///{file}",
        tenant=oncekey.single_tenant,
        policy=Policy(required=True, atomic=True, atomic_s_max=2),
        atomic=atomic.Sqlite(),
    )
    return app
