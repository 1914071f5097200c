"""The example's page on a real server, behind a line that can be cut.

Browsers talk to the line. It passes requests on, each on a connection of its own, and does to the
answers of POSTs what the next fault says. A request can be held at the line, so that a test decides
what happens while it is under way.
"""

from __future__ import annotations

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import uvicorn

from examples.browser_orders import build
from tests.servers.process import free_port

WAIT_S_MAX = 30.0


class Site:
    """The page at `url`; `faults` are for the next POSTs."""

    def __init__(self, data: Path, app: Any = None) -> None:
        self.faults: list[str] = []
        """lost, truncated, refused, login, 503, reset: before or after it was carried out."""
        self.keys: list[str] = []
        """Of every POST that arrived, in order."""
        self.free = threading.Event()
        """Not set: POSTs are held before they are passed on."""
        self.free.set()
        self._arrived = threading.Condition()
        self._behind = free_port()
        config = uvicorn.Config(
            app or build(data), host="127.0.0.1", port=self._behind, log_level="error"
        )
        self._server = uvicorn.Server(config)
        self._serving = threading.Thread(target=self._server.run)
        site = self

        class Line(_Line):
            owner = site

        self._line = ThreadingHTTPServer(("127.0.0.1", 0), Line)
        self._line.daemon_threads = True
        self._passing = threading.Thread(target=self._line.serve_forever)
        self.url = f"http://127.0.0.1:{self._line.server_port}"

    def __enter__(self) -> Self:
        self._serving.start()
        self._passing.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.free.set()
        self._line.shutdown()
        self._line.server_close()
        self._server.should_exit = True
        self._passing.join(WAIT_S_MAX)
        self._serving.join(WAIT_S_MAX)

    def orders(self) -> list[Any]:
        """What was carried out, as the server's own table has it."""
        status, _, body = self.passed_on("GET", "/orders", {}, b"")
        assert status == 200
        orders: list[Any] = json.loads(body)
        return orders

    def arrived(self, key: str) -> str | None:
        """A POST with this key is here; gives what is to go wrong with it."""
        with self._arrived:
            self.keys.append(key)
            self._arrived.notify_all()
            return self.faults.pop(0) if self.faults else None

    def await_posts(self, count: int) -> None:
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.keys) >= count, WAIT_S_MAX), self.keys

    def passed_on(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._behind, timeout=WAIT_S_MAX)
        while True:
            try:
                connection.connect()
                break
            except ConnectionRefusedError:  # it is still starting
                assert self._serving.is_alive()
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


class _Line(BaseHTTPRequestHandler):
    owner: Site

    def do_GET(self) -> None:
        self._answer(*self._passed_on(b""))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        fault = self.owner.arrived(self.headers["idempotency-key"])
        self.owner.free.wait(WAIT_S_MAX)
        if fault == "reset":  # before anything was carried out
            return
        if fault == "login":  # of a session that has ended
            return self._answer(302, [("Location", "/")], b"")
        if fault == "503":
            return self._answer(503, [("Retry-After", "0")], b"sick")
        status, headers, answer = self._passed_on(body)
        if fault == "lost":  # carried out, and nobody is told
            return
        self._answer(status, headers, answer, half=fault == "truncated")

    def _passed_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        return self.owner.passed_on(self.command, self.path, dict(self.headers), body)

    def _answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, *, half: bool = False
    ) -> None:
        kept = {"content-type", "etag", "location", "retry-after"}
        kept |= {"idempotent-replayed", "idempotency-expires"}
        self.send_response(status)
        for name, value in headers:
            if name.lower() in kept:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body[: len(body) // 2] if half else body)
        except ConnectionError:
            return  # the page was left meanwhile

    def log_message(self, format: str, *args: Any) -> None: ...
