"""Orders that commit with their responses: Starlette, asyncmy, MySQL or MariaDB.

oncekey migrate mysql://shop:secret@localhost/shop
uvicorn --factory examples.atomic_asyncmy:build
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncmy
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import oncekey
from oncekey import Policy, atomic
from oncekey.web.asgi import IdempotencyMiddleware

DATABASE = "mysql://shop:secret@localhost/shop"
ORDERS = "CREATE TABLE IF NOT EXISTS orders (id SERIAL PRIMARY KEY, item TEXT NOT NULL)"


async def create(request: Request) -> JSONResponse:
    order = await request.json()
    connection = (
        oncekey.current().connection
    )  # its transaction is open; do not commit, oncekey does
    async with connection.cursor() as cursor:
        await cursor.execute("INSERT INTO orders (item) VALUES (%s)", (order["item"],))
    return JSONResponse({"id": cursor.lastrowid, "item": order["item"]}, status_code=201)


def build(database: str = DATABASE, store: str | None = None) -> Starlette:
    """The application; its records are in the same database as its orders."""
    address = urlsplit(database)
    pools: list[Any] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        created = asyncmy.create_pool(
            host=address.hostname,
            port=address.port or 3306,
            user=address.username,
            password=address.password,
            database=address.path[1:],
        )
        async with created as pool:
            async with pool.acquire() as connection, connection.cursor() as cursor:
                await cursor.execute(ORDERS)
            pools.append(pool)
            yield

    app = Starlette(routes=[Route("/orders", create, methods=["POST"])], lifespan=lifespan)
    app.add_middleware(
        IdempotencyMiddleware,
        store=store or database,
        tenant=oncekey.single_tenant,
        policy=Policy(required=True, atomic=True),
        atomic=atomic.Asyncmy(lambda: pools[0]),
    )
    return app
