"""WSGI's environ: requests read from it."""

from __future__ import annotations

import re
from typing import Any

from oncekey._core.policy import Policy
from oncekey._core.problems import Kind, Problem
from oncekey.web._body import Body, too_large
from oncekey.web._hidden_headers import hide
from oncekey.web._request import GUARDED, Headers, Request

Environ = dict[str, Any]

_READ_BYTES = 65_536
_LENGTH = re.compile("[0-9]{0,19}")  # some servers hand over whatever a client sends
_LENGTH_NEEDED = Problem(
    Kind.MALFORMED_REQUEST,
    "The request comes in chunks, and this server does not tell where they end. Send it with a "
    "Content-Length.",
)
TWO_LENGTHS = Problem(
    Kind.MALFORMED_REQUEST,
    "The request has a Content-Length and comes in chunks as well, so nobody can tell where its "
    "body ends. Send it with one of both.",
)
NO_LENGTH = Problem(Kind.MALFORMED_REQUEST, "The request's Content-Length is no number of bytes.")
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
    root, path = environ.get("SCRIPT_NAME", ""), environ.get("PATH_INFO", "")
    if root and path and not path.startswith("/"):  # gunicorn only cuts the one off the other
        path = f"/{path}"
    return Request(
        environ["REQUEST_METHOD"].upper(),  # as frameworks read it
        _decode(root + path),
        environ.get("QUERY_STRING", "").encode("latin-1"),
        Headers(lines),
        environ,
        _decode(root),
    )


def _decode(path: str) -> str:
    """WSGI hands over bytes as if they were Latin-1. Those that are no text stay told apart."""
    return path.encode("latin-1").decode("utf-8", "surrogateescape")


def variable(header: bytes) -> str:
    return "HTTP_" + header.decode("latin-1").upper().replace("-", "_")


def found_route(environ: Environ) -> bool:
    """Whether the framework found a route; where nobody can tell, a 404 is the router's."""
    found = environ.get("werkzeug.request")
    return getattr(found, "url_rule", None) is not None or "django.route" in environ


def has_static_route(environ: Environ) -> bool:
    """Whether the route that was found is surely one without variables."""
    found = environ.get("werkzeug.request")
    return getattr(found, "url_rule", None) is not None and not getattr(found, "view_args", True)


def read(environ: Environ, policy: Policy) -> Body | Problem:
    """The whole body, never more than was declared or than is allowed."""
    limit = policy.request_bytes_max
    declared = environ.get("CONTENT_LENGTH") or ""
    if has_two_lengths(environ):
        return TWO_LENGTHS
    if not is_length(declared):
        return NO_LENGTH
    length = int(declared) if declared else None
    if length is None and not _tells_the_end(environ):
        # Some servers hand over such a body in a way of their own: to others it is not empty.
        return _LENGTH_NEEDED if environ.get("HTTP_TRANSFER_ENCODING") else Body()
    if length is not None and length > limit:
        return too_large(limit)
    body = take(environ["wsgi.input"], limit + 1 if length is None else length, policy)
    if isinstance(body, Body) and length is not None and body.size < length:
        return ended_early(body.size, length)
    return body


def is_length(declared: str) -> bool:
    """Whether a Content-Length is one, or none. Python's own `int` reads `+1` and `1_0` as well."""
    return _LENGTH.fullmatch(declared) is not None


def has_two_lengths(environ: Environ) -> bool:
    """Whether a body is said to have a length and to come in chunks. Not all servers go by the
    same, and so a part of it may stand for the whole.
    """
    return bool(environ.get("CONTENT_LENGTH") and environ.get("HTTP_TRANSFER_ENCODING"))


def _tells_the_end(environ: Environ) -> bool:
    """Whether reading to the end gives a whole body, or else fails. Granian ends it as well where
    its client did in the middle (2.8.7).
    """
    server = str(environ.get("SERVER_SOFTWARE", "")).lower()
    return bool(environ.get("wsgi.input_terminated")) and not server.startswith("granian")


def ended_early(size: int, length: int) -> Problem:
    """The refusal of a body that is shorter than was declared."""
    return Problem(
        Kind.MALFORMED_REQUEST,
        f"The request ended after {size} of the {length} bytes that it declared.",
    )


def take(source: Any, wanted: int, policy: Policy) -> Body | Problem:
    """So many bytes, or all that there are."""
    body = Body()
    while wanted > 0:
        try:
            chunk = source.read(min(wanted, _READ_BYTES))
        except Exception:  # each server has its own for chunks that are broken, or a client gone
            return _CUT_OFF
        wanted = wanted - len(chunk) if chunk else 0
        refused = body.add(chunk, policy)
        if refused is None and body.overflows_at(whole=not wanted):
            refused = body.spill(whole=not wanted)
        if refused is not None:
            return refused
    return body


def resupply(environ: Environ, body: Body) -> Environ:
    """An environ that gives a body which was read already."""
    given = {name: each for name, each in environ.items() if name != "HTTP_TRANSFER_ENCODING"}
    return given | {"wsgi.input": body.open(), "CONTENT_LENGTH": str(body.size)}


def inner(environ: Environ, by: object = None) -> Environ:
    """The environ for a guarded application, without what is hidden from it. `by` is what stands
    under `GUARDED`.
    """
    inner = environ | {GUARDED: by}
    hide(inner)
    return inner
