"""Recovering a request: the middleware runs again what its client does not come back for.

A kept request becomes a scope or an environ again, and enters the middleware where a client's retry
would after the tenant function: tenant and key are the record's, and nothing outside the middleware
is passed.
"""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from oncekey._core.policy import Policy
from oncekey._core.profiles import Header
from oncekey._core.record import Record
from oncekey._core.values import value
from oncekey._engine.guard import Call
from oncekey._engine.registry import Orphan
from oncekey._system.offload import cpu_thread
from oncekey.errors import CorruptRecord, Misuse
from oncekey.web._asgi_messages import Message, Scope
from oncekey.web._asgi_run import RequestRun
from oncekey.web._body import Body
from oncekey.web._edge import Edge
from oncekey.web._kept_request import KeptRequest, decode
from oncekey.web._request import within
from oncekey.web._routes import Route

if TYPE_CHECKING:
    from oncekey.web.asgi import IdempotencyMiddleware as AsgiMiddleware
    from oncekey.web.wsgi import IdempotencyMiddleware as WsgiMiddleware


@value
class Reread:
    """A kept request, as the edge reads it today."""

    kept: KeptRequest
    headers: list[tuple[bytes, bytes]]
    route: Route
    call: Call


Find = Callable[[KeptRequest, list[tuple[bytes, bytes]]], Route | None]
"""The route of a kept request, by its headers as they are now."""


def reread(edge: Edge, orphan: Orphan, find: Find | None = None) -> Reread | None:
    """The orphan's request; None where this edge cannot have written it, or would not today: its
    route has another name, its scope is another, or it is not finished without its client. An edge
    takes any path, so without the last it would run what belongs to another application.
    """
    if orphan.request is None:
        return None
    try:
        kept = decode(orphan.request)
    except CorruptRecord:
        return None
    record, headers = orphan.record, _headers(edge, kept, orphan.record.key)
    match = edge.routes.match
    route = find(kept, headers) if find else match(kept.method, kept.path, kept.root)
    if route is None or route.is_unclear:
        return None
    if route.is_named:
        edge.routes.note(route.operation)
    call = edge.call(kept.as_request(), route, record.tenant, record.key, Body(kept.body))
    if not isinstance(call, Call) or call.request is None:
        return None
    if edge.guard.claim(call, route.policy).id != record.id:
        return None
    return Reread(kept, headers, route, call)


def _headers(edge: Edge, kept: KeptRequest, key: str) -> list[tuple[bytes, bytes]]:
    """With what was left out and is known all the same."""
    lines = [*kept.headers, (b"content-length", b"%d" % len(kept.body))]
    key_in = edge.profile.key_in
    if isinstance(key_in, Header):
        lines.append((key_in.name.lower().encode("ascii"), key.encode("latin-1")))
    return lines


class _Runner:
    """The rules of an edge, and which orphans are its own."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self.guard = edge.guard

    def policy(self, record: Record) -> Policy | None:
        """By the operation's name alone."""
        method, _, path = record.operation.partition(" ")
        return self._edge.routes.match(method, path).policy if path.startswith("/") else None

    def owns(self, orphan: Orphan) -> bool:
        return self._reread(orphan) is not None

    def _reread(self, orphan: Orphan) -> Reread | None:
        return reread(self._edge, orphan)


# ------------------------------------------------------------------------------------- ASGI


class AsgiRunner(_Runner):
    """Runs kept requests in an ASGI application, in the event loop that serves it."""

    def __init__(self, middleware: AsgiMiddleware) -> None:
        super().__init__(middleware.edge)
        self._middleware = middleware

    async def recover(self, orphan: Orphan) -> bool:
        found = await cpu_thread.run(partial(self._reread, orphan))
        if found is None:
            return False
        if self._edge.runtime.belongs_elsewhere():
            raise Misuse(
                "this application is served by another event loop: run its recoverer there "
                "(`async with Recoverer(…)` in its lifespan), or in a process of its own "
                "(`oncekey recover`)"
            )
        self._edge.start()
        return await self._run(found).take_up(found.call, orphan)

    def _run(self, found: Reread) -> RequestRun:
        scope = scope_of(found.kept, found.headers, self._middleware.lifespan)
        given = scope, receive_disconnect, send_to_nobody, found.route, Body(found.kept.body)
        return RequestRun(self._middleware, *given)


def scope_of(kept: KeptRequest, headers: list[tuple[bytes, bytes]], lifespan: Scope) -> Scope:
    """A kept request as a server would hand it over."""
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": kept.method,
        "scheme": kept.scheme,
        "path": kept.path,
        "raw_path": quote(kept.path).encode("ascii"),
        "query_string": kept.query,
        "root_path": kept.root,
        "headers": headers,
        "client": None,
        "server": None,
        "extensions": {},
    }
    if "app" in lifespan:  # where Starlette's applications find themselves
        scope["app"] = lifespan["app"]
    if "state" in lifespan:
        scope["state"] = dict(lifespan["state"])
    return scope


async def receive_disconnect() -> Message:
    return {"type": "http.disconnect"}


async def send_to_nobody(message: Message) -> None:
    raise OSError("no client waits for this answer")


# ------------------------------------------------------------------------------------- WSGI


class WsgiRunner(_Runner):
    """Runs kept requests in a WSGI application, each in a thread."""

    def __init__(self, middleware: WsgiMiddleware) -> None:
        super().__init__(middleware.edge)
        self._middleware = middleware

    async def recover(self, orphan: Orphan) -> bool:
        found = await cpu_thread.run(partial(self._reread, orphan))
        if found is None:
            return False
        self._edge.start()
        environ = _environ(found)
        return await asyncio.to_thread(
            self._middleware.take_up, environ, found.route, found.call, orphan
        )


def _environ(found: Reread) -> dict[str, Any]:
    kept = found.kept
    path = within(kept.root, kept.path)
    environ: dict[str, Any] = {
        "REQUEST_METHOD": kept.method,
        "SCRIPT_NAME": _as_latin(kept.path.removesuffix(path)),
        "PATH_INFO": _as_latin(path),
        "QUERY_STRING": kept.query.decode("latin-1"),
        "SERVER_NAME": "localhost",  # for applications that look past the header Host
        "SERVER_PORT": "443" if kept.scheme == "https" else "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": kept.scheme,
        "wsgi.input": io.BytesIO(kept.body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    for name, content in found.headers:
        variable = name.decode("latin-1").upper().replace("-", "_")
        bare = variable in ("CONTENT_TYPE", "CONTENT_LENGTH")
        environ[variable if bare else f"HTTP_{variable}"] = content.decode("latin-1")
    return environ


def _as_latin(path: str) -> str:
    """As WSGI has it: the bytes of a path, as if they were Latin-1."""
    return path.encode("utf-8", "surrogateescape").decode("latin-1")
