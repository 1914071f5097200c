"""ASGI's messages: requests read from them, answers written as them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

from oncekey._core.policy import Policy
from oncekey._core.problems import Kind, Problem
from oncekey._core.record import Answer
from oncekey._system.offload import file_thread
from oncekey.web._body import Body, too_large
from oncekey.web._hidden_headers import shown
from oncekey.web._request import GUARDED, Headers, Request

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SILENT_S_MAX = 60.0
"""How long a client may say nothing in the middle of its body."""
TOO_SLOW = Problem(
    Kind.MALFORMED_REQUEST,
    f"Nothing came of the request's body for {SILENT_S_MAX:g} seconds. Send it again, whole.",
)

# Ways to send a file past the application: what is not seen cannot be kept.
_UNCAPTURABLE = ("http.response.pathsend", "http.response.zerocopysend")


def request(scope: Scope) -> Request:
    """The request as the edge reads it."""
    return Request(
        scope["method"].upper(),  # as frameworks read it
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


def has_static_route(scope: Scope) -> bool:
    """Whether the route that was found is surely one without variables, as its mounts are."""
    path = getattr(scope.get("route"), "path", "{")
    return "{" not in path and not scope.get("path_params") and matched(scope)


def inner(scope: Scope, by: object = None) -> Scope:
    """The scope for a guarded application: nothing in it lets an answer pass by, and what is hidden
    is left out. `by` is what stands under `GUARDED`.
    """
    inner = {**scope, GUARDED: by}
    extensions = scope.get("extensions")
    if extensions:
        inner["extensions"] = {
            name: value for name, value in extensions.items() if name not in _UNCAPTURABLE
        }
    inner["headers"] = shown(scope["headers"])
    return inner


async def read(receive: Receive, request: Request, policy: Policy) -> Body | Problem | None:
    """The whole body; None if the client left."""
    declared = request.headers.first(b"content-length")
    if declared.isdigit() and int(declared) > policy.request_bytes_max:
        return too_large(policy.request_bytes_max)
    body = Body()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        refused = body.add(message.get("body", b""), policy)
        more = message.get("more_body", False)
        if refused is None and body.overflows_at(whole=not more):
            refused = await file_thread.run(partial(body.spill, whole=not more))
        if refused is not None:
            return refused
        if not more:
            return body


async def read_patiently(
    receive: Receive, request: Request, policy: Policy
) -> Body | Problem | None:
    """`read`, unless the client says nothing for too long: servers of ASGI would wait for ever."""

    async def received() -> Message:
        async with asyncio.timeout(SILENT_S_MAX):
            return await receive()

    try:
        return await read(received, request, policy)
    except TimeoutError:
        return TOO_SLOW


class Supply:
    """Gives a body that was read to an application, message by message."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._at = 0
        self.is_over = False

    async def next(self) -> Message:
        """The next part of it. What lies in memory is one part."""
        body = self._body
        if body.is_spooled:
            part = await file_thread.run(partial(body.part, self._at))
        else:
            part = body.content()
        self._at += len(part)
        self.is_over = self._at >= body.size
        return {"type": "http.request", "body": part, "more_body": not self.is_over}


def resupply(body: Body, receive: Receive) -> Receive:
    """A `receive` that gives a body which was read already, then goes on as before."""
    supply = Supply(body)

    async def resupplied() -> Message:
        return await (receive() if supply.is_over else supply.next())

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
