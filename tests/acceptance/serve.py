"""Applications on real servers, each in a thread of this process, so that tests reach inside."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from werkzeug.serving import make_server

from tests.acceptance.client import Client

START_S_MAX = 20.0
STOP_S_MAX = 10


class _Uvicorn(uvicorn.Server):
    """Says when it serves, or that it never will."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.settled.set()

    async def main_loop(self) -> None:
        """As uvicorn's, but it ends as soon as it is told to, not at its next tick."""
        self._loop, self._told = asyncio.get_running_loop(), asyncio.Event()
        for tick in itertools.count():
            if await self.on_tick(tick % 864_000):
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), 0.1)

    def end(self) -> None:
        self.should_exit = True
        if self.started:
            self._loop.call_soon_threadsafe(self._told.set)

    def serve_on(self, listener: socket.socket) -> None:
        try:
            self.run(sockets=[listener])
        finally:
            self.settled.set()


@contextmanager
def serving(app: Any, *, http: str = "httptools", **settings: Any) -> Iterator[Client]:
    """An ASGI application under uvicorn, with its start and its shutdown."""
    config = uvicorn.Config(
        app,
        http=http,
        loop="asyncio",
        ws="none",
        log_config=None,
        **{"lifespan": "on", "timeout_graceful_shutdown": STOP_S_MAX, **settings},
    )
    server = _Uvicorn(config)
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        thread = threading.Thread(target=server.serve_on, args=(listener,))
        thread.start()
        try:
            assert server.settled.wait(START_S_MAX), "uvicorn did not start in time"
            assert server.started, "uvicorn gave up; its log says why"
            yield Client(listener.getsockname()[1])
        finally:
            server.end()
            thread.join(STOP_S_MAX + 5)
            assert not thread.is_alive(), "uvicorn did not end in time"


@contextmanager
def serving_wsgi(app: Any) -> Iterator[Client]:
    """A WSGI application under werkzeug's threaded server."""
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield Client(server.server_port)
    finally:
        server.shutdown()
        thread.join(STOP_S_MAX)
        server.server_close()
        assert not thread.is_alive(), "werkzeug did not end in time"
