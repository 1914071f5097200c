"""WSGI's environ: requests read from it."""

from __future__ import annotations

import io
import re
from typing import Any

from oncekey.core.problem import Kind, Problem
from oncekey.web.content import too_large
from oncekey.web.request import GUARDED, Headers, Request

Environ = dict[str, Any]

_READ_BYTES = 65_536
_LENGTH = re.compile("[0-9]{0,19}")  # some servers hand over whatever a client sends
_LENGTH_NEEDED = Problem(
    Kind.MALFORMED_REQUEST,
    "The request comes in chunks, and this server does not tell where they end. Send it with a "
    "Content-Length.",
)
_CUT_OFF = Problem(
    Kind.MALFORMED_REQUEST,
    "The request's body could not be read to its end: it was cut off, or its chunks are broken. "
    "Send it again, whole.",
)


def request(environ: Environ) -> Request:
    """The request as the edge reads it."""
    lines = [
        (name[5:].replace("_", "-").lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in environ.items()
        if name.startswith("HTTP_")
    ]
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            lines.append((name.replace("_", "-").lower().encode(), environ[name].encode("latin-1")))
    root = environ.get("SCRIPT_NAME", "")
    return Request(
        environ["REQUEST_METHOD"],
        _decoded(root + environ.get("PATH_INFO", "")),
        environ.get("QUERY_STRING", "").encode("latin-1"),
        Headers(lines),
        environ,
        _decoded(root),
    )


def _decoded(path: str) -> str:
    """WSGI hands over bytes as if they were Latin-1. Those that are no text stay told apart."""
    return path.encode("latin-1").decode("utf-8", "surrogateescape")


def variable(header: bytes) -> str:
    return "HTTP_" + header.decode("latin-1").upper().replace("-", "_")


def matched(environ: Environ) -> bool:
    """Whether the framework found a route; where nobody can tell, a 404 is the router's."""
    found = environ.get("werkzeug.request")
    return getattr(found, "url_rule", None) is not None or "django.route" in environ


def read(environ: Environ, limit: int) -> bytes | Problem:
    """The whole body, never more than was declared or than is allowed."""
    declared = environ.get("CONTENT_LENGTH") or ""
    if not _LENGTH.fullmatch(declared):
        return Problem(
            Kind.MALFORMED_REQUEST, "The request's Content-Length is no number of bytes."
        )
    length = int(declared) if declared else None
    if length is None and not environ.get("wsgi.input_terminated"):
        # Some servers hand over such a body in a way of their own: to others it is not empty.
        return _LENGTH_NEEDED if environ.get("HTTP_TRANSFER_ENCODING") else b""
    if length is not None and length > limit:
        return too_large(limit)
    try:
        body = _take(environ["wsgi.input"], limit + 1 if length is None else length)
    except (OSError, ValueError):  # as servers say of chunks that are broken, or of a client gone
        return _CUT_OFF
    if length is None:
        return too_large(limit) if len(body) > limit else body
    if len(body) < length:
        return Problem(
            Kind.MALFORMED_REQUEST,
            f"The request ended after {len(body)} of the {length} bytes that it declared.",
        )
    return body


def _take(source: Any, wanted: int) -> bytes:
    """So many bytes, or all that there are."""
    chunks: list[bytes] = []
    while wanted > 0:
        chunk = source.read(min(wanted, _READ_BYTES))
        if not chunk:
            break
        chunks.append(chunk)
        wanted -= len(chunk)
    return b"".join(chunks)


def resupply(environ: Environ, body: bytes) -> Environ:
    """An environ that gives a body which was read already."""
    return environ | {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}


def inner(environ: Environ, by: object = None) -> Environ:
    """The environ for a guarded application: nothing in it lets an answer depend on this client
    alone. `by` is what stands under `GUARDED`.

    A kept answer is sent to whoever retries, so it must not be coded for whoever came first.
    Middleware outside this one still sees the header and may code each answer for its own client.
    """
    hidden = ("HTTP_ACCEPT_ENCODING", "wsgi.file_wrapper")
    return {n: value for n, value in environ.items() if n not in hidden} | {GUARDED: by}
