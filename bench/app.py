"""The application under load: it reads an order and responds, no more.

python -m bench.app SOCKET [STORE_URL] [by-hand] [relaxed]
"""

from __future__ import annotations

import gc
import socket
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

import oncekey
from bench import by_hand
from oncekey.web.asgi import IdempotencyMiddleware

RELAXED = 20_000, 20, 50
"""Garbage collection thresholds instead of 700, 10, 10."""


def build(store: str | None, *, manually: bool = False) -> Starlette:
    """Build the application: guarded if there is a store, else bare, for comparison.

    `manually`: write to the store twice by hand instead.
    """
    runs = 0
    opened: list[by_hand.Write] = []

    async def create(request: Request) -> JSONResponse:
        nonlocal runs
        runs += 1
        order = await request.json()
        if store is not None and manually:
            opened[:] = opened or [await by_hand.writer(store)()]
            key = by_hand.new_id()
            await opened[0](key, None)
            await opened[0](key, "{}")
        return JSONResponse({"id": "order_1", "item": order["item"], "quantity": order["quantity"]})

    async def upload(request: Request) -> PlainTextResponse:
        size = 0
        async for part in request.stream():
            size += len(part)
        return PlainTextResponse(str(size), 201)

    async def count(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(runs))

    app = Starlette(
        routes=[
            Route("/orders", create, methods=["POST"]),
            Route("/uploads", upload, methods=["POST"]),
            Route("/runs", count, methods=["GET"]),
        ]
    )
    if store is not None and not manually:
        app.add_middleware(
            IdempotencyMiddleware,
            store=store,
            tenant=oncekey.single_tenant,
            policy=oncekey.Policy(recovery="block"),  # costs the same, and needs no warning
        )
    return app


def main() -> None:
    descriptor, *options = sys.argv[1:]
    store = next((word for word in options if "://" in word), None)
    if "relaxed" in options:
        gc.set_threshold(*RELAXED)
    config = uvicorn.Config(
        build(store, manually="by-hand" in options),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(descriptor))])


if __name__ == "__main__":
    main()
