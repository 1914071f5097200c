"""Content codings of requests: what a compressed body says, as far as that can be read."""

from __future__ import annotations

import zlib

_EITHER = 32 + zlib.MAX_WBITS
"""gzip and zlib, told apart by their heads."""
_READABLE = frozenset({"gzip", "x-gzip", "deflate"})


def is_readable(coding: str) -> bool:
    """Whether a coding is one of those that can be read here."""
    return coding.strip().lower() in _READABLE


def decode(body: bytes, coding: str, bytes_max: int) -> bytes | None:
    """The body without its coding. None if that is not one of those that can be read here, is
    broken, or makes more than `bytes_max` of it.
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
