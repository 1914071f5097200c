"""A request's content: its type, and its body without its coding."""

from __future__ import annotations

from oncekey.core.canonical import essence
from oncekey.core.coding import decoded
from oncekey.core.problem import Kind, Problem
from oncekey.web.request import Request


def content_type(request: Request) -> str:
    """The content type as sent, empty if none was."""
    return request.headers.first(b"content-type").decode("latin-1")


def said(request: Request, body: bytes, bytes_max: int) -> bytes | None:
    """The body without its coding; None where that cannot be read."""
    coding = request.headers.first(b"content-encoding")
    return decoded(body, coding.decode("latin-1"), bytes_max) if coding and body else body


def compared(request: Request, body: bytes, bytes_max: int) -> tuple[str, bytes]:
    """A content type and a body to compare. Of a compressed body that is what was compressed; where
    that cannot be read, its bytes, of no type that is looked into.
    """
    kind, plain = content_type(request), said(request, body, bytes_max)
    return (f"{essence(kind)}+coded", body) if plain is None else (kind, plain)


def too_large(bytes_max: int) -> Problem:
    """The refusal of a body that is larger than that."""
    return Problem(
        Kind.TOO_LARGE,
        f"The request's body is larger than {bytes_max} bytes, more than is taken with a key here.",
    )
