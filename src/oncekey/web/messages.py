"""ASGI's messages: requests read from them, answers written as them."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote_to_bytes

from oncekey.core.problem import Problem
from oncekey.core.record import Answer
from oncekey.web.content import too_large
from oncekey.web.request import GUARDED, Headers, Request

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Ways to send a file past the application: what is not seen cannot be kept.
_UNCAPTURABLE = ("http.response.pathsend", "http.response.zerocopysend")


def request(scope: Scope) -> Request:
    """The request as the edge reads it."""
    return Request(
        scope["method"],
        _path(scope),
        scope["query_string"],
        Headers(scope["headers"]),
        scope,
        scope.get("root_path", ""),
    )


def _path(scope: Scope) -> str:
    """The path. Servers put U+FFFD in place of bytes that are no text: here they stay told apart,
    as far as the server still knows them.
    """
    path: str = scope["path"]
    raw = scope.get("raw_path") if "\ufffd" in path else None
    return path if raw is None else unquote_to_bytes(raw).decode("utf-8", "surrogateescape")


def matched(scope: Scope) -> bool:
    """Whether the framework found a route. A mount is none yet: it only leads to more routes."""
    found = scope.get("route") or scope.get("endpoint")
    return found is not None and not hasattr(found, "routes")


def inner(scope: Scope, by: object = None) -> Scope:
    """The scope for a guarded application: nothing in it lets an answer pass by, or depend on this
    client alone. `by` is what stands under `GUARDED`.
    """
    inner = {**scope, GUARDED: by}
    extensions = scope.get("extensions")
    if extensions:
        inner["extensions"] = {
            name: value for name, value in extensions.items() if name not in _UNCAPTURABLE
        }
    # A kept answer is sent to whoever retries, so it must not be coded for whoever came first.
    # Middleware outside this one still sees the header and may code each answer for its own client.
    inner["headers"] = [line for line in scope["headers"] if line[0] != b"accept-encoding"]
    return inner


async def read(receive: Receive, request: Request, limit: int) -> bytes | Problem | None:
    """The whole body; None if the client left."""
    declared = request.headers.first(b"content-length")
    if declared.isdigit() and int(declared) > limit:
        return too_large(limit)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            return too_large(limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def resupply(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body which was read already, then goes on as before."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def resupplied() -> Message:
        return pending.pop() if pending else await receive()

    return resupplied


async def send(send: Send, answer: Answer) -> None:
    """Send an answer whole. A client that is gone is no error."""
    with contextlib.suppress(OSError):
        await send(
            {
                "type": "http.response.start",
                "status": answer.status,
                "headers": list(answer.headers),
            }
        )
        await send({"type": "http.response.body", "body": answer.body or b""})
