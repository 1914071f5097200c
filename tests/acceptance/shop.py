"""A small shop that counts what it does, and can be made to wait: what the servers here serve."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from oncekey import open_store
from oncekey._core.op import run
from oncekey._core.record import Record
from oncekey._core.verbs import Scan

WAIT_S_MAX = 20.0

Scope = Any
Handler = Callable[[Request], Awaitable[Response]]


class Shop:
    """`POST /orders` runs `handler`; `runs` says how often it did."""

    def __init__(self) -> None:
        self.runs = 0
        self.started = threading.Event()
        self.go_on = threading.Event()
        self.handler: Handler = self.receipt
        self._ended = 0
        self._change = threading.Condition()
        self.app = Starlette(routes=[Route("/orders", self._order, methods=["POST"])])

    async def _order(self, request: Request) -> Response:
        with self._change:
            self.runs += 1
            self._change.notify_all()
        return await self.handler(request)

    async def receipt(self, request: Request) -> Response:
        """A different answer every time, so that only a replay can be equal."""
        return JSONResponse({"run": self.runs, "got": await request.json()}, status_code=201)

    async def held(self, request: Request) -> Response:
        """Says that it runs, then waits to be told to go on."""
        self.started.set()
        await asyncio.to_thread(self.go_on.wait, WAIT_S_MAX)
        return await self.receipt(request)

    # ------------------------------------------------------------------------ what the server saw

    def watched(self, app: Any) -> Any:
        """The application, with its requests counted as they end, whatever their end."""

        async def watching(scope: Scope, receive: Any, send: Any) -> None:
            try:
                await app(scope, receive, send)
            finally:
                if scope["type"] == "http":
                    with self._change:
                        self._ended += 1
                        self._change.notify_all()

        return watching

    def wait_ended(self, requests: int) -> None:
        """Until so many requests have ended."""
        self._wait(lambda: self._ended >= requests)

    def wait_runs(self, runs: int) -> None:
        """Until the handler was called so often."""
        self._wait(lambda: self.runs >= runs)

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._change:
            assert self._change.wait_for(condition, WAIT_S_MAX), (
                f"after {WAIT_S_MAX} s: {self.runs} runs, {self._ended} requests ended"
            )


def kept(url: str) -> list[Record]:
    """The records in a store, seen by somebody else."""
    store = open_store(url)
    with closing(store.connect()) as connection:
        run(store.prepare(), connection.ask)
        [records] = run(store.perform([Scan(100)]), connection.ask)
    return list(records)
