"""Several byte strings as one that can be taken apart again: each behind its length.

`framing` is for digests, which are never read back; this is for what is.
"""

from __future__ import annotations

import struct

from oncekey.errors import CorruptRecord

_LENGTH = struct.Struct("!I")
_NONE = 0xFFFF_FFFF


def pack(*parts: bytes | None) -> bytes:
    """None is distinct from empty.

    >>> pack(b"ab", None)
    b'\\x00\\x00\\x00\\x02ab\\xff\\xff\\xff\\xff'
    """
    packed = []
    for part in parts:
        if part is None:
            packed.append(_LENGTH.pack(_NONE))
        else:
            packed += (_LENGTH.pack(len(part)), part)
    return b"".join(packed)


def unpack(data: bytes, count: int) -> list[bytes | None]:
    """The inverse of `pack` for so many parts; raises `CorruptRecord` for anything else."""
    parts: list[bytes | None] = []
    at = 0
    for _ in range(count):
        try:
            (length,) = _LENGTH.unpack_from(data, at)
        except struct.error as error:
            raise CorruptRecord(f"packed parts end within a length, at byte {at}") from error
        at += _LENGTH.size
        if length == _NONE:
            parts.append(None)
            continue
        if at + length > len(data):
            raise CorruptRecord(f"packed parts end within one of them, at byte {at}")
        parts.append(data[at : at + length])
        at += length
    if at != len(data):
        raise CorruptRecord(f"packed parts have {len(data) - at} bytes too many")
    return parts
