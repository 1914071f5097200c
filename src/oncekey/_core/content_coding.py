"""Decompress request bodies in the codings that the standard library knows."""

from __future__ import annotations

import zlib

_EITHER = 32 + zlib.MAX_WBITS
"""gzip or zlib, by their headers."""
_READABLE = frozenset({"gzip", "x-gzip", "deflate"})


def is_readable(coding: str) -> bool:
    """Return whether this coding can be decoded here."""
    return coding.strip().lower() in _READABLE


def decode(body: bytes, coding: str, bytes_max: int) -> bytes | None:
    """Decode a body. None if its coding is unknown, it is malformed, or it is longer than
    `bytes_max`.
    """
    if coding.strip().lower() in ("", "identity"):
        return body
    if not is_readable(coding):
        return None
    reader = zlib.decompressobj(_EITHER)
    try:
        found = reader.decompress(body, bytes_max + 1)
    except zlib.error:
        return None
    whole = reader.eof and not reader.unused_data and len(found) <= bytes_max
    return found if whole else None
