"""A real server on the loopback interface that answers each request by a script."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Seen:
    """One request as it arrived."""

    def __init__(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        self.method, self.path, self.body = handler.command, handler.path, body
        self.headers = handler.headers

    @property
    def key(self) -> str | None:
        return self.headers.get("idempotency-key")


class ScriptedServer:
    """Each answer is a status, or (status, headers), or (status, headers, body), or "drop" or
    "truncate", or a function that is given the handler. A header that is None is left out.
    """

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.script: list[Any] = []
        self.otherwise: Callable[[BaseHTTPRequestHandler], Any] = lambda handler: 201
        """What is answered when the script is over."""
        scripted_server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                scripted_server.answer(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one

            def log_message(self, *args: object) -> None:
                """Nothing on the terminal."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @property
    def keys(self) -> list[str | None]:
        return [seen.key for seen in self.seen]

    def answer(self, handler: BaseHTTPRequestHandler) -> Any:
        self.seen.append(Seen(handler, _body(handler)))
        turn = self.script.pop(0) if self.script else self.otherwise(handler)
        handler.close_connection = True
        if callable(turn):
            return turn(handler)
        if turn == "drop":
            return
        if turn == "truncate":
            handler.send_response(201)
            handler.send_header("content-length", "1000")
            handler.end_headers()
            handler.wfile.write(b"{")
            return
        status, headers, body = (*(turn if isinstance(turn, tuple) else (turn,)), {}, {"n": 1})[:3]
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response_only(status)  # without the date of a clock that nobody here goes by
        lines = {"content-type": "application/json", "content-length": str(len(raw)), **headers}
        for name, text in lines.items():
            if text is not None:
                handler.send_header(name, text)
        handler.send_header("connection", "close")
        handler.end_headers()
        handler.wfile.write(raw)


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    if handler.headers.get("transfer-encoding") != "chunked":
        return handler.rfile.read(int(handler.headers.get("content-length") or 0))
    body = b""
    while size := int(handler.rfile.readline(), 16):
        body += handler.rfile.read(size)
        handler.rfile.readline()
    handler.rfile.readline()
    return body


@contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    served = ScriptedServer()
    thread = threading.Thread(target=served.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield served
    finally:
        served.server.shutdown()
        served.server.server_close()
        thread.join()
