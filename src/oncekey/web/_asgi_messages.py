"""ASGI messages: read requests from them, write responses as them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

from oncekey._core.policy import Policy
from oncekey._core.problems import Kind, Problem
from oncekey._core.record import Answer
from oncekey._system.offload import file_thread
from oncekey.web._body import MEMORY_BYTES_MAX, Body, too_large
from oncekey.web._hidden_headers import HIDDEN, is_hidden
from oncekey.web._request import GUARDED, Headers, Request

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SILENT_S_MAX = 60.0
"""How long a client may pause in the middle of its body."""
TOO_SLOW = Problem(
    Kind.MALFORMED_REQUEST,
    f"Nothing came of the request's body for {SILENT_S_MAX:g} seconds. Send it again, whole.",
)

# Ways to send a file past the middleware: what it does not see, it cannot store.
_UNCAPTURABLE = ("http.response.pathsend", "http.response.zerocopysend")


def request(scope: Scope) -> Request:
    """Read the request of a scope. Servers put U+FFFD in place of bytes in the path that are not
    UTF-8; such paths stay distinct here if the server passes `raw_path`.
    """
    path = scope["path"]
    if "\ufffd" in path and (raw := scope.get("raw_path")) is not None:
        path = unquote_to_bytes(raw).decode("utf-8", "surrogateescape")
    return Request(
        scope["method"].upper(),  # as frameworks read it
        path,
        scope["query_string"],
        Headers(scope["headers"]),
        scope,
        scope.get("root_path", ""),
    )


def inner(scope: Scope, by: object = None) -> Scope:
    """Make the scope for a guarded application: without extensions that send a response past the
    middleware, and without hidden headers. `by` is the value of `GUARDED`.
    """
    inner = {**scope, GUARDED: by}
    extensions = scope.get("extensions")
    if extensions:
        inner["extensions"] = {
            name: value for name, value in extensions.items() if name not in _UNCAPTURABLE
        }
    lines = scope["headers"]
    inner["headers"] = [line for line in lines if line[0] not in HIDDEN or not is_hidden(*line)]
    return inner


async def read(receive: Receive, request: Request, policy: Policy) -> Body | Problem | None:
    """Read the whole body; None if the client left. A client that pauses too long is refused: ASGI
    servers would wait for ever.
    """
    declared = request.headers.first.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > policy.request_bytes_max:
        return too_large(policy.request_bytes_max)
    body = Body()
    while True:
        try:
            async with asyncio.timeout(SILENT_S_MAX):
                message = await receive()
        except TimeoutError:
            return TOO_SLOW
        if message["type"] == "http.disconnect":
            return None
        refused = body.add(message.get("body", b""), policy)
        more = message.get("more_body", False)
        if body.size > MEMORY_BYTES_MAX and refused is None and body.overflows_at(whole=not more):
            refused = await file_thread.run(partial(body.spill, whole=not more))
        if refused is not None:
            return refused
        if not more:
            return body


@dataclass(slots=True)
class Supply:
    """Gives a body that was read already to an application, message by message."""

    body: Body
    closes: bool = False
    """Whether the body is closed once the application has all of it."""
    at: int = 0
    is_over: bool = False

    async def next(self) -> Message:
        """Return the next part. A body in memory is one part."""
        body = self.body
        if body.is_spooled:
            part = await file_thread.run(partial(body.part, self.at))
        else:
            part = body.content()
        self.at += len(part)
        self.is_over = self.at >= body.size
        if self.is_over and self.closes:
            body.close()
        return {"type": "http.request", "body": part, "more_body": not self.is_over}


def resupply(body: Body, receive: Receive) -> Receive:
    """Make a `receive` that first gives a body which was read already."""
    supply = Supply(body)

    async def receive_again() -> Message:
        return await (receive() if supply.is_over else supply.next())

    return receive_again


async def send(send: Send, answer: Answer) -> None:
    """Send a whole response. It is no error if the client is gone."""
    with contextlib.suppress(OSError):
        await send(
            {
                "type": "http.response.start",
                "status": answer.status,
                "headers": list(answer.headers),
            }
        )
        await send({"type": "http.response.body", "body": answer.body or b""})
