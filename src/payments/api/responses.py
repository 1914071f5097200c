"""Responses: JSON, with the id of the request."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from payments.settings import API_VERSION
from payments.storage import ids

Line = tuple[bytes, bytes]


def request_id(request: Request) -> str:
    """Return the id of this request, as in its response and the logs."""
    state = request.scope.setdefault("state", {})
    if "request_id" not in state:  # recovered: it has not passed the middleware
        state["request_id"] = ids.new("req")
    id_: str = state["request_id"]
    return id_


def encode(body: Any) -> bytes:
    """Encode the body of a response."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def header_lines(request: Request) -> list[Line]:
    """Return the headers of a response, as oncekey stores them."""
    return [
        (b"content-type", b"application/json"),
        (b"request-id", request_id(request).encode("ascii")),
        (b"stripe-version", API_VERSION.encode("ascii")),
    ]


def respond(request: Request, body: Any, status: int = 200, more: Iterable[Line] = ()) -> Response:
    """Build a response, with `more` headers."""
    encoded = body if isinstance(body, bytes) else encode(body)
    response = Response(encoded, status)
    response.raw_headers[:] = [
        *header_lines(request),
        *more,
        (b"content-length", b"%d" % len(encoded)),
    ]
    return response
