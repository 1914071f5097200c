"""A service that operations call: it has a file of its own, takes keys, and counts.

python -m tests.crash.downstream PORT FILE

`POST /NAME` with an Idempotency-Key has its effect once per key and answers the same every time.
Without a key every call has an effect, as with most services in the world.
"""

from __future__ import annotations

import http.client
import json
import os
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.servers.process import free_port

ROOT = Path(__file__).parents[2]
START_S_MAX = 20.0


class Downstream:
    """The double, seen by a test."""

    def __init__(self, port: int) -> None:
        self.port = port

    def counts(self, order: str) -> dict[str, tuple[int, int]]:
        """Calls and effects of one order, by the name of what was asked."""
        found = ask(self.port, "GET", f"/counts/{order}")
        return {name: (calls, effects) for name, calls, effects in found}


def ask(port: int, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
    """One request to the double."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        headers = {"Idempotency-Key": key} if key else {}
        connection.request(method, path, json.dumps(body), headers)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


@contextmanager
def running(folder: Path) -> Iterator[Downstream]:
    """The double in a process of its own."""
    port = free_port()
    command = [sys.executable, "-m", "tests.crash.downstream", str(port), str(folder / "double.db")]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        deadline = time.monotonic() + START_S_MAX
        while True:
            try:
                ask(port, "GET", "/counts/none")
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        yield Downstream(port)
    finally:
        process.kill()
        process.wait()


class _Handler(BaseHTTPRequestHandler):
    file = ""

    def do_POST(self) -> None:
        name = self.path.strip("/")
        length = int(self.headers.get("Content-Length") or 0)
        order = json.loads(self.rfile.read(length))["order"]
        key = self.headers.get("Idempotency-Key") or uuid.uuid4().hex
        with sqlite3.connect(self.file, timeout=20, isolation_level=None) as db:
            db.execute("PRAGMA synchronous = OFF")  # it outlives the tests, or they fail
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO calls VALUES (?, ?)", (order, name))
            effect = (order, name, key, f"{name}_{uuid.uuid4().hex[:8]}")
            db.execute("INSERT INTO effects VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", effect)
            [made] = db.execute("SELECT id FROM effects WHERE key = ?", (key,)).fetchone()
            db.execute("COMMIT")
        db.close()
        self._answer({"id": made})

    def do_GET(self) -> None:
        order = self.path.rsplit("/", 1)[-1]
        with sqlite3.connect(self.file, timeout=20) as db:
            rows = db.execute(
                "SELECT name, count(*), (SELECT count(*) FROM effects AS e"
                " WHERE e.order_id = calls.order_id AND e.name = calls.name)"
                " FROM calls WHERE order_id = ? GROUP BY name",
                (order,),
            ).fetchall()
        db.close()
        self._answer(rows)

    def _answer(self, body: Any) -> None:
        raw = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


def main() -> None:
    port, _Handler.file = int(sys.argv[1]), sys.argv[2]
    with sqlite3.connect(_Handler.file) as db:
        db.execute("CREATE TABLE calls (order_id TEXT, name TEXT)")
        db.execute("CREATE TABLE effects (order_id TEXT, name TEXT, key TEXT UNIQUE, id TEXT)")
    db.close()
    parent = os.getppid()
    server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    server.timeout = 1.0
    while os.getppid() == parent:  # it ends with whoever started it, however that ended
        server.handle_request()


if __name__ == "__main__":
    main()
