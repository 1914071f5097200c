"""The atomic application that the crash tests kill: every run writes two rows in its transaction.

python -m tests.crash.atomic_server PORT STORE_URL ADAPTER POLICY_JSON

It serves from an event loop; `tests.crash.atomic_wsgi` is the same from threads.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncmy
import asyncpg
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from oncekey import Policy, atomic, current, single_tenant
from oncekey.web.asgi import IdempotencyMiddleware
from tests.crash.server import described, hold, open_sealed

ROWS = (
    "INSERT INTO payments (paid, pid) VALUES ('{key}', {pid})",
    "INSERT INTO entries (paid, pid) VALUES ('{key}', {pid})",
)


def opened(url: str) -> Any:
    """A pool of connections to a server."""
    if url.startswith("postgresql"):
        return asyncpg.create_pool(url, min_size=1, max_size=4)
    parts = urlsplit(url)
    return asyncmy.create_pool(
        maxsize=4,
        host=parts.hostname,
        port=parts.port,
        user=parts.username,
        password=parts.password,
        database=parts.path[1:],
    )


def reached(sign: Path) -> Path:
    """Made by a handler that waits for this sign, and so has its id."""
    return sign.with_suffix(".reached")


async def execute(connection: Any, statement: str) -> None:
    if isinstance(connection, asyncmy.connection.Connection):
        async with connection.cursor() as cursor:
            await cursor.execute(statement)
        return
    written = connection.execute(statement)
    if not isinstance(connection, sqlite3.Connection):
        await written


def build(store: str, adapter: str, policy: Policy) -> Starlette:
    pools: list[Any] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if adapter == "sqlite":
            yield
            return
        async with opened(store.partition("?")[0]) as pool:
            pools.append(pool)
            yield

    async def pay(request: Request) -> JSONResponse:
        order, attempt = await request.json(), current()
        for row in ROWS:
            await execute(attempt.connection, row.format(key=attempt.key, pid=os.getpid()))
        if "until" in order:
            reached(Path(order["until"])).touch()
            await hold(Path(order["until"]), blocking=False)
        return JSONResponse({"paid_by": os.getpid()}, status_code=order.get("status", 201))

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"pid": os.getpid()})

    app = Starlette(
        routes=[Route("/pay", pay, methods=["POST"]), Route("/healthz", health)], lifespan=lifespan
    )
    adapters: dict[str, atomic.Adapter] = {
        "sqlite": atomic.Sqlite(),
        "asyncpg": atomic.Asyncpg(lambda: pools[0]),
        "asyncmy": atomic.Asyncmy(lambda: pools[0]),
    }
    app.add_middleware(
        IdempotencyMiddleware,
        store=open_sealed(store),
        tenant=single_tenant,
        policy=policy,
        atomic=adapters[adapter],
    )
    return app


def main() -> None:
    app, port = described(build)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


if __name__ == "__main__":
    main()
