"""A line to the API that fails where a test says so: a proxy that handles one request for each
connection, and writes down what was answered, whether the client got to see it or not.
"""

from __future__ import annotations

import re
import socket
import socketserver
import struct
import threading
from dataclasses import dataclass, field
from typing import Literal, Self

WAIT_S_MAX = 60.0
_RESET = struct.pack("ii", 1, 0)  # linger on, for no time: closing sends a reset
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PlannedBreak:
    """How the next request fails: `moment` says whether the API has carried it out by then."""

    moment: Literal["before", "after"]
    status: int | None = None
    """What somebody on the way answers instead; None: the line is cut."""
    part: float = 0.0
    """How much of the API's own answer comes through before the line is cut."""


@dataclass(slots=True)
class FaultyProxy:
    """Listens on `port` in threads; a context manager."""

    to_port: int
    breaks: list[PlannedBreak] = field(default_factory=list)
    """For the next requests, one each; afterwards all goes well."""
    statuses: list[int] = field(default_factory=list)
    """What the API answered."""
    keys: list[str] = field(default_factory=list)
    """The idempotency keys that came."""
    _server: socketserver.ThreadingTCPServer = field(init=False)

    def __enter__(self) -> Self:
        line = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                line._carry(self.request)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def _carry(self, client: socket.socket) -> None:
        client.settimeout(WAIT_S_MAX)
        request = _read_request(client)
        if not request:
            return
        self.keys += re.findall(r"(?i)\r\nidempotency-key: *(\S+)", request.decode("latin-1"))
        planned = self.breaks.pop(0) if self.breaks else None
        answer = b""
        if planned is None or planned.moment == "after":
            answer = self._forward(request)
        if planned is None:
            client.sendall(answer)
        elif planned.status is not None:
            client.sendall(_made_up(planned.status))
        else:
            client.sendall(answer[: int(len(answer) * planned.part)])
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            client.close()

    def _forward(self, request: bytes) -> bytes:
        line, rest = request.split(b"\r\n", 1)
        rest = re.sub(rb"(?i)(^|\r\n)connection: *[^\r]*", b"", rest, count=1).removeprefix(b"\r\n")
        with socket.create_connection(("127.0.0.1", self.to_port), WAIT_S_MAX) as api:
            api.sendall(line + b"\r\nConnection: close\r\n" + rest)
            answer = b"".join(iter(lambda: api.recv(65_536), b""))
        self.statuses.append(int(answer.split(b" ", 2)[1]))
        return answer


def _read_request(client: socket.socket) -> bytes:
    read = b""
    while b"\r\n\r\n" not in read:
        if not (part := client.recv(65_536)):
            return b""
        read += part
    head, _, body = read.partition(b"\r\n\r\n")
    found = _LENGTH.search(head)
    missing = (int(found[1]) if found else 0) - len(body)
    while missing > 0:
        if not (part := client.recv(65_536)):
            return b""
        read += part
        missing -= len(part)
    return read


def _made_up(status: int) -> bytes:
    body = b'{"error": {"type": "api_error", "message": "made up on the way"}}'
    head = f"HTTP/1.1 {status} Made Up\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
