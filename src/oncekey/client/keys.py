"""Make idempotency keys: one per intent, from time and randomness, never from the request's body.

A key derived from the body would merge two equal orders into one, and split one order with a
corrected typo into two. A key belongs to the intent, not to the body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from oncekey.errors import Misuse

MakeKey = Callable[[float, bytes], str]
"""From seconds since 1970 and at least 16 random bytes."""

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def uuid7(wall: float, token: bytes) -> str:
    """Make a UUID version 7 (RFC 9562): milliseconds, then random bits. Keys of one day are close
    together in an index.

    >>> uuid7(1_700_000_000.0, bytes(16))
    '018bcfe5-6800-7000-8000-000000000000'
    """
    ms = int(wall * 1000).to_bytes(6, "big")
    return _format_uuid(ms + token[:10], 7)


def uuid4(wall: float, token: bytes) -> str:
    """Make a UUID version 4 (RFC 9562): random only, for keys that must not reveal their time."""
    return _format_uuid(token[:16], 4)


def ulid(wall: float, token: bytes) -> str:
    """Make a ULID: milliseconds, then random bits, in 26 characters that sort by time.

    >>> ulid(1_700_000_000.0, bytes(16))
    '01HF7YAT000000000000000000'
    """
    number = int.from_bytes(int(wall * 1000).to_bytes(6, "big") + token[:10], "big")
    return "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))


def _format_uuid(raw: bytes, version: int) -> str:
    hex_ = raw.hex()
    variant = "89ab"[raw[8] >> 4 & 3]
    return f"{hex_[:8]}-{hex_[8:12]}-{version}{hex_[13:16]}-{variant}{hex_[17:20]}-{hex_[20:]}"


KINDS: Final[Mapping[str, MakeKey]] = MappingProxyType(
    {"uuid7": uuid7, "uuid4": uuid4, "ulid": ulid}
)


def kind(name: str) -> MakeKey:
    """Return the function that makes keys of this kind."""
    if name not in KINDS:
        raise Misuse(f"unknown kind of keys {name!r}: choose from {', '.join(KINDS)}")
    return KINDS[name]
