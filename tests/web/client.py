"""A client that speaks ASGI or WSGI directly: every byte, every message, no server in between."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from wsgiref.util import setup_testing_defaults

Lines = Sequence[tuple[bytes, bytes]]


@dataclass
class Reply:
    """What came back."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    def header(self, name: str) -> str | None:
        values = self.all(name)
        return values[0].decode("latin-1") if values else None

    def all(self, name: str) -> list[bytes]:
        return [value for line, value in self.headers if line.lower() == name.encode()]

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def kind(self) -> str:
        """The kind of a refusal."""
        assert self.header("content-type") == "application/problem+json", self
        return str(self.json()["type"]).removeprefix("urn:oncekey:problem:")

    @property
    def replayed(self) -> bool:
        return self.header("idempotent-replayed") == "true"


def request_headers(
    key: str | bytes | None, body: bytes, content_type: str, extra: Lines
) -> list[tuple[bytes, bytes]]:
    lines = [(b"host", b"test")]
    if body:
        lines += [
            (b"content-type", content_type.encode()),
            (b"content-length", b"%d" % len(body)),
        ]
    if key is not None:
        lines.append((b"idempotency-key", key if isinstance(key, bytes) else key.encode()))
    return [*lines, *extra]


def scope_for(
    method: str, path: str, headers: Lines, query: bytes = b"", **more: Any
) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "scheme": "http",
        "headers": list(headers),
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        **more,
    }


async def ask(
    app: Any,
    key: str | bytes | None = None,
    body: bytes | dict[str, Any] = b"{}",
    *,
    method: str = "POST",
    path: str = "/orders",
    query: bytes = b"",
    content_type: str = "application/json",
    headers: Lines = (),
    chunks: Iterable[bytes] | None = None,
    on_message: Callable[[Any], None] | None = None,
    **scope: Any,
) -> Reply:
    """One request to an ASGI application."""
    raw = json.dumps(body).encode() if isinstance(body, dict) else body
    parts = [raw] if chunks is None else list(chunks)
    messages = [
        {"type": "http.request", "body": part, "more_body": n < len(parts) - 1}
        for n, part in enumerate(parts)
    ]
    reply = Reply()

    async def receive() -> Any:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if on_message is not None:
            on_message(message)
        if message["type"] == "http.response.start":
            reply.status, reply.headers = message["status"], list(message["headers"])
        else:
            reply.body += message.get("body", b"")

    lines = request_headers(key, raw, content_type, headers)
    await app(scope_for(method, path, lines, query, **scope), receive, send)
    return reply


def ask_wsgi(
    app: Any,
    key: str | None = None,
    body: bytes | dict[str, Any] = b"{}",
    *,
    method: str = "POST",
    path: str = "/orders",
    query: str = "",
    content_type: str = "application/json",
    written: Any = None,
    **environ: Any,
) -> Reply:
    """One request to a WSGI application. `written` gets what it writes instead of yielding it."""
    written = [] if written is None else written
    raw = json.dumps(body).encode() if isinstance(body, dict) else body
    variables: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "CONTENT_TYPE": content_type,
        "CONTENT_LENGTH": str(len(raw)),
        "wsgi.input": io.BytesIO(raw),
    }
    if key is not None:
        variables["HTTP_IDEMPOTENCY_KEY"] = key
    variables |= environ
    setup_testing_defaults(variables)
    reply = Reply()

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        reply.status = int(status[:3])
        reply.headers = [(n.encode("latin-1"), v.encode("latin-1")) for n, v in headers]
        return written.append

    parts = app(variables, start_response)
    try:
        reply.body = b"".join([*written, *parts])
    finally:
        if hasattr(parts, "close"):
            parts.close()
    return reply
