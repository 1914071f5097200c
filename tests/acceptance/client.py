"""A client that says exactly what a test wants said, and shows exactly what came back."""

from __future__ import annotations

import http.client
import json
import select
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from tests.web.client import Reply

ANSWER_S_MAX = 15.0


class Client:
    """Talks to one port of this machine, each request on a connection of its own."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(
        self,
        key: str | None = None,
        body: Any = None,
        *,
        method: str = "POST",
        path: str = "/orders",
        headers: Sequence[tuple[str, str]] = (),
    ) -> Reply:
        """One request. A body that is not bytes is sent as JSON."""
        raw = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        lines = [*headers]
        if method in ("POST", "PUT", "PATCH"):
            named = {name.lower() for name, _ in lines}
            typed = [] if "content-type" in named else [("Content-Type", "application/json")]
            lines += [*typed, ("Content-Length", str(len(raw)))]
        else:
            raw = b""
        if key is not None:
            lines.append(("Idempotency-Key", key))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines)
        with self.open() as wire:
            start = f"{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n"
            wire.send(f"{start}{head}\r\n".encode("latin-1") + raw)
            return wire.read(method)

    @contextmanager
    def open(self) -> Iterator[Exchange]:
        """A connection on which to say anything at all."""
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_S_MAX) as sock,
            sock.makefile("rb") as file,
        ):
            yield Exchange(sock, file)


class Exchange:
    """A raw connection to a server."""

    def __init__(self, sock: socket.socket, file: BinaryIO) -> None:
        self._sock = sock
        self._file = file

    def send(self, raw: bytes) -> None:
        self._sock.sendall(raw)

    def read(self, method: str = "POST") -> Reply:
        """The next answer; status 0 if the server closes the connection instead."""
        try:
            line = self._file.readline()
            if not line:
                return Reply()
            reply = Reply(status=int(line.split(b" ", 2)[1]))
            for name, value in http.client.parse_headers(self._file).items():
                reply.headers.append((name.lower().encode("latin-1"), value.encode("latin-1")))
            reply.body = self._body(reply, method)
            return reply
        except ConnectionError:
            return Reply()

    def _body(self, reply: Reply, method: str) -> bytes:
        if method == "HEAD" or reply.status < 200 or reply.status in (204, 304):
            return b""
        if reply.header("transfer-encoding") == "chunked":
            return b"".join(self._chunks())
        length = reply.header("content-length")
        return self._file.read() if length is None else self._file.read(int(length))

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self._file.readline().partition(b";")[0], 16):
            yield self._file.read(size)
            self._file.readline()
        self._file.readline()

    def read_some(self, size: int) -> bytes:
        """Exactly this many bytes of whatever comes."""
        return self._file.read(size)

    def has_something(self) -> bool:
        """Whether the server has begun to answer."""
        return bool(select.select([self._sock], [], [], 0)[0])

    def finish(self) -> None:
        """Say that nothing more will be sent, but go on listening."""
        self._sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Leave without a goodbye, as a process that was killed does."""
        self._file.close()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()
