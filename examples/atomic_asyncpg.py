"""Orders that commit with their responses: Starlette, asyncpg, PostgreSQL.

oncekey migrate postgresql://localhost/shop
uvicorn --factory examples.atomic_asyncpg:build
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import oncekey
from oncekey import Policy, atomic
from oncekey.web.asgi import IdempotencyMiddleware

ORDERS = "CREATE TABLE IF NOT EXISTS orders (id bigserial PRIMARY KEY, item text NOT NULL)"


async def create(request: Request) -> JSONResponse:
    order = await request.json()
    connection = (
        oncekey.current().connection
    )  # its transaction is open; do not commit, oncekey does
    number = await connection.fetchval(
        "INSERT INTO orders (item) VALUES ($1) RETURNING id", order["item"]
    )
    return JSONResponse({"id": number, "item": order["item"]}, status_code=201)


def build(database: str = "postgresql://localhost/shop", store: str | None = None) -> Starlette:
    """The application; its records are in the same database as its orders."""
    pools: list[Any] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with asyncpg.create_pool(database) as pool:
            await pool.execute(ORDERS)
            pools.append(pool)
            yield

    app = Starlette(routes=[Route("/orders", create, methods=["POST"])], lifespan=lifespan)
    app.add_middleware(
        IdempotencyMiddleware,
        store=store or database,
        tenant=oncekey.single_tenant,
        policy=Policy(required=True, atomic=True),
        atomic=atomic.Asyncpg(lambda: pools[0]),
    )
    return app
