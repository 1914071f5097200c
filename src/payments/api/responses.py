"""Answers: JSON, with the id of the request that they answer."""

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
    """The id under which this request is known, to its client and in the logs."""
    state = request.scope.setdefault("state", {})
    if "request_id" not in state:  # recovered: it did not come in by the door
        state["request_id"] = ids.new("req")
    found: str = state["request_id"]
    return found


def encode(body: Any) -> bytes:
    """The bytes of an answer."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def lines(request: Request) -> list[Line]:
    """The headers of an answer, as oncekey keeps them."""
    return [
        (b"content-type", b"application/json"),
        (b"request-id", request_id(request).encode("ascii")),
        (b"stripe-version", API_VERSION.encode("ascii")),
    ]


def answer(request: Request, body: Any, status: int = 200, more: Iterable[Line] = ()) -> Response:
    """An answer as the framework sends it, with `more` headers."""
    encoded = body if isinstance(body, bytes) else encode(body)
    response = Response(encoded, status)
    response.raw_headers[:] = [*lines(request), *more, (b"content-length", b"%d" % len(encoded))]
    return response
