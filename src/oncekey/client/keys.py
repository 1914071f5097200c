"""New keys: one for each intent, made from time and chance, never from what is sent.

A key that is derived from the body makes two equal orders one order, and one order with a corrected
typo two. So a key is only ever new, and it is the intent, not the body, that it belongs to.
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
    """RFC 9562, version 7: milliseconds, then chance. Keys of one day lie together in an index.

    >>> uuid7(1_700_000_000.0, bytes(16))
    '018bcfe5-6800-7000-8000-000000000000'
    """
    ms = int(wall * 1000).to_bytes(6, "big")
    return _versioned(ms + token[:10], 7)


def uuid4(wall: float, token: bytes) -> str:
    """RFC 9562, version 4: nothing but chance, for keys that must not tell when they were made."""
    return _versioned(token[:16], 4)


def ulid(wall: float, token: bytes) -> str:
    """Milliseconds, then chance, in 26 characters that are sorted as they were made.

    >>> ulid(1_700_000_000.0, bytes(16))
    '01HF7YAT000000000000000000'
    """
    number = int.from_bytes(int(wall * 1000).to_bytes(6, "big") + token[:10], "big")
    return "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))


def _versioned(raw: bytes, version: int) -> str:
    hex_ = raw.hex()
    variant = "89ab"[raw[8] >> 4 & 3]
    return f"{hex_[:8]}-{hex_[8:12]}-{version}{hex_[13:16]}-{variant}{hex_[17:20]}-{hex_[20:]}"


KINDS: Final[Mapping[str, MakeKey]] = MappingProxyType(
    {"uuid7": uuid7, "uuid4": uuid4, "ulid": ulid}
)


def kind(name: str) -> MakeKey:
    """The way of this name."""
    if name not in KINDS:
        raise Misuse(f"there are no keys of the kind {name!r}: choose from {', '.join(KINDS)}")
    return KINDS[name]
